"""CUDA graphs, captured with nothing else going on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is launched inside, on the current device.

    Python's collector rests meanwhile: it could come upon an older graph, and to destroy one
    breaks a capture.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # A stream of its own: PyTorch's default is on whichever device captured first.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()
