"""Capture of CUDA graphs, and memory that they share."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Pool:
    """Memory that several graphs share, made on the current device.

    Graphs reuse each other's temporary memory, so they must run one after another. A tensor that
    outlives a run must be referenced while other graphs are captured, and read before they run.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        # One stream for all graphs: freed memory can be reused only on the stream that used it.
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, pool: Pool | None = None) -> Iterator[None]:
    """Capture what is launched inside, on the current device; without a pool, in separate memory.

    Python's garbage collector is off meanwhile: it could destroy an older graph, which breaks a
    capture.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # PyTorch's default stream for captures is on whichever device captured first.
        pool = pool or Pool()
        # If a capture fails at its very end, PyTorch leaves its stream the current one.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(
                graph, pool=pool.handle, stream=pool.stream, capture_error_mode="thread_local"
            ),
        ):
            yield
        # PyTorch sets a graph's random offset on this stream, and at every replay on another.
        pool.stream.synchronize()
    finally:
        if was_enabled:
            gc.enable()
