"""CUDA graphs, captured with nothing else going on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is launched inside.

    Python's collector rests meanwhile: it could come upon an older graph, and to destroy one
    breaks a capture.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()
