"""CUDA graphs, captured with nothing else going on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Pool:
    """Memory that several graphs share, made on the current device.

    What a graph needs only while it runs, another may use as well. So they must run one after
    another, and whatever is to outlast a run must be held by somebody when the others are captured,
    and be read before these run.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        # One for all of them: memory that is free again serves only the stream that had it.
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, pool: Pool | None = None) -> Iterator[None]:
    """Capture what is launched inside, on the current device; without a pool, in memory of its own.

    Python's collector rests meanwhile: it could come upon an older graph, and to destroy one
    breaks a capture.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # A stream of our own: PyTorch's default is on whichever device captured first.
        pool = pool or Pool()
        # Where a capture fails at its very end, PyTorch leaves its stream the current one.
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
