"""What is on disk of a run: how it stands, its result, its learning curve."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from staircase_attention.experiments.lengths import read_lengths
from staircase_attention.files import read_json
from staircase_attention.training import Recipe, RunResult
from staircase_attention.training.run_folder import RunFolder

Status = Literal["finished", "diverged", "failed", "unfinished"]
"""Failed: an error ended it; unfinished: it was stopped. Both can be taken up again."""

LAST_PART = 0.1
"""Of the updates so far, those whose training errors are looked at.

Long enough for some lanes to begin anew, which is when errors are highest.
"""
PREFIX = "seed-"
FAILURE_SUFFIX = ".failure.txt"
SHARED_SUFFIX = ".shared.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as it stands."""

    seed: int
    status: Status
    result: RunResult | None = None
    """Where the run has come to its end."""
    failure: str | None = None
    """The error that ended it, in one line."""
    curve: tuple[tuple[int, float], ...] = ()
    """Updates and validation errors in percent."""
    train: float | None = None
    """Error in percent on what it was trained on, over the last of its updates."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """How long training had taken at the updates of the curve, as far as that was written down."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Test errors in percent on episodes of other lengths."""
    is_shared: bool = False
    """Whether other runs were under way beside it, so that its times are not its own."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The machine, the packages and the command with which it began."""

    def seconds_to(self, percent: float) -> float | None:
        """How long it took until the validation error first was this low; None where it never was.

        >>> run = RunRecord(
        ...     seed=0, status="finished", curve=((5, 9.0), (6, 2.0)), seconds={5: 1.0, 6: 1.5}
        ... )
        >>> run.seconds_to(9.5), run.seconds_to(2.0), run.seconds_to(1.0)
        (1.0, 1.5, None)
        """
        reached = [update for update, error in self.curve if error <= percent]
        return self.seconds.get(reached[0]) if reached else None


def seed_folder(row: Path, seed: int) -> Path:
    """Where the run of a row with this seed is."""
    return row / f"{PREFIX}{seed}"


def failure_file(run: Path) -> Path:
    """Where the error of a run is kept: beside its folder, which has to be empty to begin anew."""
    return run.with_name(run.name + FAILURE_SUFFIX)


def shared_file(run: Path) -> Path:
    """What there is beside the folder of a run that was under way beside others."""
    return run.with_name(run.name + SHARED_SUFFIX)


def seeds_in(row: Path) -> list[int]:
    """The seeds of which a row's folder holds something."""
    names = {path.name.removesuffix(FAILURE_SUFFIX) for path in row.glob(f"{PREFIX}*")}
    numbers = [name.removeprefix(PREFIX) for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_runs(row: Path) -> tuple[RunRecord, ...]:
    """All runs of a row that have begun."""
    return tuple(read_run(row, seed) for seed in seeds_in(row))


def read_run(row: Path, seed: int) -> RunRecord:
    """One run that has begun."""
    path = seed_folder(row, seed)
    place, failure = RunFolder(path), failure_file(path)
    curve = tuple(_errors(place.metrics, "valid"))
    record = RunRecord(
        seed=seed,
        status="unfinished",
        curve=curve,
        train=_end(_errors(place.metrics, "train")),
        seconds=_seconds(place.timing, [update for update, _ in curve]),
        lengths={length: 100 * score.error for length, score in read_lengths(path).items()},
        is_shared=shared_file(path).exists(),
        environment=_environment(place),
    )
    if place.is_finished:
        result = place.read_result()
        record = replace(record, status=result.status, result=result)
    if failure.exists():
        # A finished run may have failed afterwards, when other lengths were scored.
        reason = failure.read_text(encoding="utf-8").partition("\n")[0]
        record = replace(record, status="failed", failure=reason)
    return record


def read_recipe(run: Path) -> Recipe | None:
    """The recipe with which a run began; None where none has."""
    folder = RunFolder(run)
    return None if folder.is_unbegun else folder.recipe()


def _environment(place: RunFolder) -> dict[str, Any]:
    """What was written down of it; a report is not to fail for the want of it."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = read_json(place.environment)
        return found
    return {}


def _errors(metrics: Path, kind: Literal["train", "valid"]) -> list[tuple[int, float]]:
    """Errors on the way that led to the result: what a rollback undid is left out."""
    points: list[tuple[int, float]] = []
    for line in _lines(metrics):
        if line["kind"] == "rollback":
            points = [point for point in points if point[0] <= line["update"]]
        elif line["kind"] == kind:
            points.append((line["update"], 100 * line["error"]))
    return points


def _end(points: Sequence[tuple[int, float]]) -> float | None:
    """The mean of the last ones.

    >>> _end([(80, 9.0), (90, 5.0), (96, 4.0), (100, 2.0)])
    3.0
    """
    if not points:
        return None
    first = (1 - LAST_PART) * points[-1][0]
    return fmean(error for update, error in points if update > first)


def _seconds(timing: Path, updates: Sequence[int]) -> dict[int, float]:
    """When each update was done; the way that led to the result was the last to be gone."""
    found = {line["update"]: line["wall_seconds"] for line in _lines(timing)}
    return {update: found[update] for update in updates if update in found}


def _lines(metrics: Path) -> Iterator[dict[str, Any]]:
    if not metrics.exists():
        return
    for line in metrics.read_text(encoding="utf-8").splitlines():
        # A line may be torn: the last while it is being written, any where a full disk cut it off.
        with suppress(ValueError):
            yield json.loads(line)
