"""What run folders hold: status, result and learning curve of every run, then means per row."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from staircase_attention.experiments.catalog import Row
from staircase_attention.experiments.lengths import read_lengths
from staircase_attention.experiments.paper import Spread
from staircase_attention.files import read_json
from staircase_attention.training import RunResult
from staircase_attention.training.run_folder import RunFolder

Status = Literal["finished", "diverged", "failed", "unfinished"]
"""Failed: an error ended it; unfinished: it was stopped. Both are resumed by the next call."""
LAST_PART = 0.1
"""The training error is the mean over this last fraction of the updates.

Long enough that some lanes restart in it, which is when errors are highest.
"""
SOLVED = 1.0
"""Validation error in percent at which a task counts as solved, where times are compared."""
PREFIX = "seed-"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as its folder shows it. Errors are in percent."""

    seed: int
    status: Status
    result: RunResult | None = None
    """None while the run has not ended."""
    failure: str | None = None
    """The error that ended it, in one line."""
    curve: tuple[tuple[int, float], ...] = ()
    """Updates and validation errors."""
    train: float | None = None
    """Training error over the last updates."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Seconds of training at the updates of the curve, where timing.jsonl has them."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Test errors on episodes of other lengths."""
    is_shared: bool = False
    """Whether other runs ran at the same time, so that its times are not its own."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The machine, the packages and the command with which it began."""

    def seconds_to(self, percent: float) -> float | None:
        """Seconds until the validation error first was this low; None if it never was.

        >>> run = RunRecord(
        ...     seed=0, status="finished", curve=((5, 9.0), (6, 2.0)), seconds={5: 1.0, 6: 1.5}
        ... )
        >>> run.seconds_to(9.5), run.seconds_to(2.0), run.seconds_to(1.0)
        (1.0, 1.5, None)
        """
        reached = [update for update, error in self.curve if error <= percent]
        return self.seconds.get(reached[0]) if reached else None


def seed_folder(row: Path, seed: int) -> Path:
    """The run folder of a row with this seed."""
    return row / f"{PREFIX}{seed}"


def beside(run: Path, suffix: str) -> Path:
    """A file about a run, beside its folder, which must be new or empty for the run to start."""
    return run.with_name(f"{run.name}.{suffix}")


def seeds_in(row: Path) -> list[int]:
    """The seeds that have a run folder or a recorded failure in a row's folder."""
    names = {path.name.removesuffix(".failure.txt") for path in row.glob(f"{PREFIX}*")}
    numbers = [name.removeprefix(PREFIX) for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_runs(row: Path) -> tuple[RunRecord, ...]:
    """All runs of a row that have begun."""
    return tuple(read_run(seed_folder(row, seed), seed) for seed in seeds_in(row))


def read_run(path: Path, seed: int) -> RunRecord:
    """One run that has begun."""
    folder, failure = RunFolder(path), beside(path, "failure.txt")
    curve = tuple(_errors(folder.metrics, "valid"))
    # Of updates that were done twice, after a rollback or a resume, the last time counts.
    seconds = {line["update"]: line["wall_seconds"] for line in _lines(folder.timing)}
    record = RunRecord(
        seed=seed,
        status="unfinished",
        curve=curve,
        train=_mean_of_last(_errors(folder.metrics, "train")),
        seconds={update: seconds[update] for update, _ in curve if update in seconds},
        lengths={length: 100 * score.error for length, score in read_lengths(path).items()},
        is_shared=beside(path, "shared.txt").exists(),
        environment=_environment(folder),
    )
    if folder.is_finished:
        result = folder.read_result()
        record = replace(record, status=result.status, result=result)
    if failure.exists():
        # A finished run may have failed afterwards, while other lengths were scored.
        reason = failure.read_text(encoding="utf-8").partition("\n")[0]
        record = replace(record, status="failed", failure=reason)
    return record


def latest_facts(path: Path) -> tuple[int, dict[str, float]]:
    """How far a run is: the last update on record, and its loss, errors and speed."""
    folder, update = RunFolder(path), 0
    facts: dict[str, float] = {}
    for line in _last_lines(folder.metrics):
        update = line["update"]
        before = "valid_" if line["kind"] == "valid" else ""
        names = ("error",) if before else ("loss", "error")
        facts |= {before + name: line[name] for name in names if line.get(name) is not None}
    for line in _last_lines(folder.timing):
        facts["tokens_per_second"] = line["tokens_per_second"]
    return update, facts


def _last_lines(path: Path, num_bytes: int = 4096) -> Iterator[dict[str, Any]]:
    """The whole lines at the end of a file that may be growing."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - num_bytes))
        for line in file.read().splitlines():
            with suppress(ValueError):
                plain = json.loads(line)
                if isinstance(plain, dict) and "update" in plain:
                    yield plain


def _environment(folder: RunFolder) -> dict[str, Any]:
    """The recorded environment; a report must not fail because it is missing."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = read_json(folder.environment)
        return found
    return {}


def _errors(metrics: Path, kind: Literal["train", "valid"]) -> list[tuple[int, float]]:
    """Errors of the updates that led to the result: what a rollback undid is left out."""
    points: list[tuple[int, float]] = []
    for line in _lines(metrics):
        if line["kind"] == "rollback":
            points = [point for point in points if point[0] <= line["update"]]
        elif line["kind"] == kind:
            points.append((line["update"], 100 * line["error"]))
    return points


def _mean_of_last(points: Sequence[tuple[int, float]]) -> float | None:
    """The mean error over the last part of the updates.

    >>> _mean_of_last([(80, 9.0), (90, 5.0), (96, 4.0), (100, 2.0)])
    3.0
    """
    if not points:
        return None
    first = (1 - LAST_PART) * points[-1][0]
    return fmean(error for update, error in points if update > first)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        # A line may be torn: the last while it is being written, any where a full disk cut it off.
        with suppress(ValueError):
            yield json.loads(line)


@dataclass(frozen=True, kw_only=True, slots=True)
class BestSeed:
    """The run with the lowest validation error, which is how the paper chose."""

    seed: int
    valid: float
    test: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSummary:
    """All that a report shows of a row. Errors are in percent.

    A run that diverged counts with the score of its best weights, if it has one: leaving it out
    would flatter the row.
    """

    row: Row
    runs: tuple[RunRecord, ...]

    @property
    def scored(self) -> list[RunRecord]:
        """The runs that ended with a score."""
        return [run for run in self.runs if run.result and run.result.valid and run.result.test]

    @property
    def results(self) -> list[RunResult]:
        """Their results."""
        return [run.result for run in self.scored if run.result is not None]

    @property
    def is_run(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.results)

    def error(self, split: Literal["valid", "test"]) -> Spread | None:
        """Mean and deviation over the seeds; None where nothing was run."""
        return Spread.over([percent(result, split) for result in self.results])

    @property
    def train_error(self) -> Spread | None:
        """Mean and deviation over the seeds of the error at the end of training."""
        return Spread.over([run.train for run in self.scored if run.train is not None])

    @property
    def best(self) -> BestSeed | None:
        """The best seed by its validation error, and by the loss between equals."""
        if not self.results:
            return None
        best = min(self.results, key=lambda one: (percent(one, "valid"), (one.valid or {})["loss"]))
        return BestSeed(seed=best.seed, valid=percent(best, "valid"), test=percent(best, "test"))

    def extremes(self, count: Callable[[RunResult], int]) -> list[int]:
        """The lowest and the highest of a count over the runs; one number where they agree."""
        counts = [count(result) for result in self.results]
        return sorted({min(counts), max(counts)}) if counts else []

    @property
    def num_updates(self) -> list[int]:
        """Fewest and most updates of a run."""
        return self.extremes(lambda result: result.num_updates)

    @property
    def num_tokens(self) -> list[int]:
        """Fewest and most tokens of a run."""
        return self.extremes(lambda result: result.num_tokens)

    @property
    def num_parameters(self) -> list[int]:
        """Parameters of the model."""
        return self.extremes(lambda result: result.num_parameters)

    @property
    def wall_seconds(self) -> float | None:
        """Mean time of a run."""
        return fmean(one.wall_seconds for one in self.results) if self.results else None

    @property
    def is_shared(self) -> bool:
        """Whether some of these times were taken while other runs ran at the same time."""
        return any(run.is_shared for run in self.scored)

    @property
    def seconds_to_solve(self) -> Spread | None:
        """Mean time until the validation error was SOLVED or less; None unless every run got there.

        A mean over only the runs that solved the task would flatter the row.
        """
        times = [run.seconds_to(SOLVED) for run in self.scored]
        known = [seconds for seconds in times if seconds is not None]
        return Spread.over(known) if len(known) == len(times) else None

    @property
    def lengths(self) -> list[int]:
        """Other episode lengths for which there are scores."""
        return sorted({length for run in self.runs for length in run.lengths})

    def length_error(self, length: int) -> Spread | None:
        """Mean and deviation over seeds of the test error at a length."""
        return Spread.over([run.lengths[length] for run in self.runs if length in run.lengths])

    @property
    def devices(self) -> list[str]:
        """The devices of the runs."""
        return sorted({result.device for result in self.results})

    @property
    def is_shortened(self) -> bool:
        """Whether some run had fewer updates or tokens than it should have."""
        updates, tokens = self.row.full_updates, self.row.full_tokens
        if updates is None or tokens is None:
            return False
        return any(count < updates for count in self.num_updates) or any(
            count < tokens for count in self.num_tokens
        )

    def with_status(self, *statuses: Status) -> list[RunRecord]:
        """The runs that have one of these statuses."""
        return [run for run in self.runs if run.status in statuses]


def summarize(rows: Sequence[Row], folder: Path) -> tuple[RowSummary, ...]:
    """Every row, with all of its runs that are in the folder, whenever they were run."""
    return tuple(RowSummary(row=row, runs=read_runs(folder / row.name)) for row in rows)


def percent(result: RunResult, split: Literal["valid", "test"]) -> float:
    """A result's error on a split, in percent."""
    scores = result.valid if split == "valid" else result.test
    assert scores is not None, "only results with scores are summarised"
    return 100 * float(scores["error"])
