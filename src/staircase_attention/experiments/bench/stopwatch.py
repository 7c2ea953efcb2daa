"""Time and memory on any device."""

import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

KIBIBYTE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Laps:
    """The same thing done many times over."""

    total: float
    """Seconds of all of them by the wall clock, the device waited for before and after."""
    each: tuple[float, ...]
    """Seconds of every one: by the device's own events on a GPU, by the wall clock elsewhere."""

    @property
    def mean(self) -> float:
        """Seconds a lap, by the wall clock."""
        return self.total / len(self.each)

    @property
    def median(self) -> float:
        """The lap in the middle."""
        return statistics.median(self.each)

    def to_plain(self) -> dict[str, Any]:
        """All that was measured."""
        return {
            "num_laps": len(self.each),
            "seconds_in_all": self.total,
            "seconds_each": list(self.each),
            "mean_seconds": self.mean,
            "median_seconds": self.median,
        }


class Stopwatch:
    """Measures what happens on one device."""

    def __init__(
        self, device: torch.device, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.device = device
        self.now = now

    @property
    def is_cuda(self) -> bool:
        """Whether work is queued on a GPU, and has to be waited for."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Go on when all that was asked of the device is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def lap(self, action: Callable[[], object]) -> float:
        """Seconds of one action, waited for."""
        self.wait()
        began = self.now()
        action()
        self.wait()
        return self.now() - began

    def laps(self, action: Callable[[], object], count: int) -> Laps:
        """The action many times, without waiting in between."""
        return self._device_laps(action, count) if self.is_cuda else self._host_laps(action, count)

    def _host_laps(self, action: Callable[[], object], count: int) -> Laps:
        times = [self.now()]
        for _ in range(count):
            action()
            times.append(self.now())
        each = tuple(after - before for before, after in itertools.pairwise(times))
        return Laps(total=times[-1] - times[0], each=each)

    def _device_laps(self, action: Callable[[], object], count: int) -> Laps:
        events = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(count + 1)
        ]
        self.wait()
        began = self.now()
        events[0].record()
        for event in events[1:]:
            action()
            event.record()
        self.wait()
        total = self.now() - began
        # Events count milliseconds.
        each = tuple(
            before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)
        )
        return Laps(total=total, each=each)

    def forget_memory(self) -> None:
        """Let the peak of memory be counted from here, where that can be done."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def peak_memory(self) -> int:
        """Bytes: the most that tensors took on a GPU, or that this process ever took."""
        if self.is_cuda:
            return torch.cuda.max_memory_allocated(self.device)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Linux counts kibibytes here, macOS bytes.
        return most if sys.platform == "darwin" else most * KIBIBYTE

    @property
    def reserved_memory(self) -> int | None:
        """Bytes of a GPU that PyTorch held at most, in use or not."""
        return torch.cuda.max_memory_reserved(self.device) if self.is_cuda else None

    @property
    def memory_kind(self) -> str:
        """What `peak_memory` counts."""
        return "tensors on the GPU" if self.is_cuda else "the whole process since it began"
