"""What a bench has found: raw times, and what follows from them."""

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from staircase_attention.experiments.bench.decoding import DecodingTimes
from staircase_attention.experiments.bench.peaks import Peaks
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.experiments.bench.updates import UpdateTimes
from staircase_attention.files import write_json

FORMAT = 1
"""Counted up when the layout of the file changes."""
MOST_LETTERS = 160
"""Of a failure's reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Something that could not be timed."""

    reason: str
    """In one line."""
    details: str
    """The traceback."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """What an error says."""
        details = "".join(traceback.format_exception(error))
        words = " ".join(str(error).split())[:MOST_LETTERS]
        # The CPU's allocator has no error of its own.
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if is_memory or "not enough memory" in words:
            return cls(reason="out of memory", details=details)
        return cls(reason=f"{type(error).__name__}: {words}", details=details)

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"failure": self.reason, "traceback": self.details}


@dataclass(kw_only=True, slots=True)
class BenchRow:
    """One subject, and what was measured of it."""

    subject: Subject
    updates: UpdateTimes | Failure | None = None
    """None: not asked for."""
    decoding: dict[int, DecodingTimes | Failure] = field(default_factory=dict)
    """By the number of rows."""

    @property
    def name(self) -> str:
        """The subject's."""
        return self.subject.name

    @property
    def precision(self) -> str:
        """The subject's."""
        return self.subject.recipe.training.precision

    @property
    def failures(self) -> list[Failure]:
        """All that could not be timed."""
        parts = (self.updates, *self.decoding.values())
        return [part for part in parts if isinstance(part, Failure)]


@dataclass(kw_only=True, slots=True)
class BenchReport:
    """All that one bench has found so far."""

    command: str
    written: str
    """Day and time at which it began, in UTC."""
    environment: dict[str, Any]
    peaks: Peaks | Failure
    rows: list[BenchRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False

    @property
    def failures(self) -> list[Failure]:
        """All that could not be timed."""
        own = [self.peaks] if isinstance(self.peaks, Failure) else []
        return own + [failure for row in self.rows for failure in row.failures]

    def share_of_peak(self, row: BenchRow) -> float | None:
        """Operations a second, as a share of what a matrix product reaches here."""
        if not isinstance(row.updates, UpdateTimes) or isinstance(self.peaks, Failure):
            return None
        peak = self.peaks.products[row.precision].flops_per_second
        return row.updates.flops_per_second / peak

    def ratio_to_baseline(self, row: BenchRow) -> float | None:
        """Time of an update in that of the set's baseline."""
        times = {
            other.name: other.updates.laps.mean
            for other in self.rows
            if isinstance(other.updates, UpdateTimes)
        }
        baseline = row.subject.baseline
        if baseline not in times or row.name not in times:
            return None
        return times[row.name] / times[baseline]

    def floor(self, times: DecodingTimes) -> float | None:
        """Seconds in which the weights of a round could be read here."""
        if isinstance(self.peaks, Failure):
            return None
        return times.floor(self.peaks.copy.bytes_per_second)

    def to_plain(self) -> dict[str, Any]:
        """The whole report as plain data."""
        return {
            "format": FORMAT,
            "is_complete": self.is_complete,
            "written": self.written,
            "command": self.command,
            "environment": self.environment,
            "peaks": self.peaks.to_plain(),
            "rows": [self._plain_row(row) for row in self.rows],
            "notes": self.notes,
        }

    def write(self, path: Path) -> None:
        """Write the file whole, or leave what was there."""
        write_json(path, self.to_plain())

    def _plain_row(self, row: BenchRow) -> dict[str, Any]:
        updates = None if row.updates is None else row.updates.to_plain()
        if isinstance(row.updates, UpdateTimes):
            updates = row.updates.to_plain() | {
                "num_parameters": row.updates.num_parameters,
                "share_of_peak": self.share_of_peak(row),
                "ratio_to_baseline": self.ratio_to_baseline(row),
            }
        return {
            "name": row.name,
            "precision": row.precision,
            "config": row.subject.to_plain(),
            "updates": updates,
            "decoding": [
                {"num_rows": num_rows, **self._plain_decoding(times)}
                for num_rows, times in row.decoding.items()
            ],
        }

    def _plain_decoding(self, times: DecodingTimes | Failure) -> dict[str, Any]:
        if isinstance(times, Failure):
            return times.to_plain()
        floor = self.floor(times)
        ratio = None if floor is None else times.laps.mean / floor
        return times.to_plain() | {"floor_seconds": floor, "ratio_to_floor": ratio}
