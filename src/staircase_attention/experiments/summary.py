"""A row's runs as the numbers of one line: means, the best seed, and the budget they really had."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from staircase_attention.experiments.rows import Row
from staircase_attention.experiments.run_records import RunRecord, read_runs
from staircase_attention.experiments.spread import Spread
from staircase_attention.training import RunResult

SOLVED = 1.0
"""Validation error in percent at which a task counts as solved, where times are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestSeed:
    """The run with the lowest validation error, which is how the paper chose."""

    seed: int
    valid: float
    test: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSummary:
    """All that a report says of a row. Errors are in percent.

    A run that diverged counts with the score of its best weights, if it has one: to leave it out
    would flatter the row.
    """

    row: Row
    runs: tuple[RunRecord, ...]

    @property
    def results(self) -> list[RunResult]:
        """Of the runs that came to an end with a score."""
        return [run.result for run in self._scored if run.result is not None]

    @property
    def _scored(self) -> list[RunRecord]:
        return [run for run in self.runs if run.result and run.result.valid and run.result.test]

    @property
    def is_run(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.results)

    def error(self, split: Literal["valid", "test"]) -> Spread | None:
        """Mean and deviation over the seeds; None where nothing was run."""
        return Spread.over([percent(result, split) for result in self.results])

    @property
    def train_error(self) -> Spread | None:
        """Mean and deviation over the seeds of the error in training, at its end."""
        return Spread.over([run.train for run in self._scored if run.train is not None])

    @property
    def best(self) -> BestSeed | None:
        """The best seed by its validation error, and by the loss between equals."""
        if not self.results:
            return None
        best = min(self.results, key=_valid_error_and_loss)
        return BestSeed(seed=best.seed, valid=percent(best, "valid"), test=percent(best, "test"))

    @property
    def num_updates(self) -> list[int]:
        """Fewest and most updates of a run; one number where they agree."""
        return self._range(lambda result: result.num_updates)

    @property
    def num_tokens(self) -> list[int]:
        """Fewest and most tokens of a run; one number where they agree."""
        return self._range(lambda result: result.num_tokens)

    @property
    def num_parameters(self) -> list[int]:
        """Of the model."""
        return self._range(lambda result: result.num_parameters)

    @property
    def wall_seconds(self) -> float | None:
        """Mean time of a run."""
        spread = Spread.over([result.wall_seconds for result in self.results])
        return None if spread is None else spread.mean

    @property
    def is_shared(self) -> bool:
        """Whether some of these times were taken while other runs were under way."""
        return any(run.is_shared for run in self._scored)

    @property
    def seconds_to_solve(self) -> Spread | None:
        """Mean time until the validation error was SOLVED or less; None unless all runs came there.

        Of runs of which some never solve the task there is no such mean.
        """
        times = [run.seconds_to(SOLVED) for run in self._scored]
        known = [seconds for seconds in times if seconds is not None]
        return Spread.over(known) if len(known) == len(times) else None

    @property
    def lengths(self) -> list[int]:
        """Other lengths of episodes for which there are scores."""
        return sorted({length for run in self.runs for length in run.lengths})

    def length_error(self, length: int) -> Spread | None:
        """Mean and deviation over seeds of the test error at a length."""
        return Spread.over([run.lengths[length] for run in self.runs if length in run.lengths])

    @property
    def devices(self) -> list[str]:
        """What the runs ran on."""
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

    def with_status(self, *statuses: str) -> list[RunRecord]:
        """The runs that stand so."""
        return [run for run in self.runs if run.status in statuses]

    def _range(self, count: Callable[[RunResult], int]) -> list[int]:
        counts = [count(result) for result in self.results]
        return sorted({min(counts), max(counts)}) if counts else []


def summarize(rows: Sequence[Row], folder: Path) -> tuple[RowSummary, ...]:
    """Every row, with all of its runs that are in the folder, asked for now or earlier."""
    return tuple(RowSummary(row=row, runs=read_runs(folder / row.name)) for row in rows)


def percent(result: RunResult, split: Literal["valid", "test"]) -> float:
    """A result's error on a split, in percent."""
    scores: dict[str, Any] | None = getattr(result, split)
    assert scores is not None, "only results with scores are asked"
    return 100 * float(scores["error"])


def _valid_error_and_loss(result: RunResult) -> tuple[float, float]:
    assert result.valid is not None
    return float(result.valid["error"]), float(result.valid["loss"])
