"""What run folders show: status, result and learning curve of a run, and what a row of runs has.

Scores are errors in percent for a task, bits per byte or perplexity for a corpus.

    python -m staircase_attention.experiments.results RUN LENGTH...

scores a run's best weights on test episodes of these lengths.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from staircase_attention.cores import watch_input
from staircase_attention.evaluation import Score
from staircase_attention.experiments.paper import PaperResult, Spread, paper_tables
from staircase_attention.files import as_written, opened, parse_json, read_summed
from staircase_attention.generation.stepper import placed
from staircase_attention.plain import from_plain
from staircase_attention.schedules import PaperRow
from staircase_attention.training import RunFolder, RunResult, TaskData, choose_device, load_run
from staircase_attention.training.recipe import FamilyModel, Recipe, TaskChoice
from staircase_attention.training.trainer import score_split

# Failed: an error ended it; unfinished: it was stopped. Both are resumed by the next call.
Status = Literal["finished", "diverged", "failed", "unfinished"]
Split = Literal["valid", "test"]
# Validation error in percent at which a task counts as solved, where times are compared.
SOLVED = 1.0
# The training error is the mean over this last fraction of the updates.
#
# Long enough that some lanes restart in it, which is when errors are highest.
LAST_PART = 0.1
PREFIX = "seed-"
# In a run folder: for each length, the score of the best weights on test episodes.
LENGTHS_FILE = "lengths.json"
# Of the suite: by task, then by model, the facts of a cell; all tasks have the same models.
# Accuracies are in percent, means over seeds: of the best constant answer, at trained lengths, at
# each longer one, and the mean of those.
Cells = Mapping[str, Mapping[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """The number of a score that reports show; lower is better."""

    key: str
    unit: str
    scale: float = 1.0
    digits: int
    """Decimals of our numbers; the paper's have one less."""

    def of(self, score: Mapping[str, Any]) -> float:
        """The number."""
        return self.scale * _number(score[self.key])


ERROR = Measure(key="error", unit="error %", scale=100, digits=2)
BITS = Measure(key="bits_per_byte", unit="bits per byte", digits=3)
# Per token: only rows of one vocabulary compare.
PERPLEXITY = Measure(key="perplexity", unit="perplexity", digits=2)
LOSS = Measure(key="loss", unit="loss in nats", digits=4)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as its folder shows it."""

    seed: int
    status: Status
    result: RunResult | None = None
    """None while the run has not ended."""
    failure: str | None = None
    """The error that ended it, in one line."""
    curve: tuple[tuple[int, float], ...] = ()
    """Updates and validation scores."""
    train: float | None = None
    """Training error over the last updates; None for a corpus."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Seconds of training at the updates of the curve, where timing.jsonl has them."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Test errors in percent on episodes of other lengths."""
    is_shared: bool = False
    """Whether other runs ran at the same time, so that its times are not its own."""
    num_starts: int = 0
    """1, and 1 for every time it was resumed; 0 where its TensorBoard files are gone."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The machine, the packages and the command with which it began."""

    def seconds_to(self, score: float) -> float | None:
        """Seconds until the validation score first was this low; None if it never was."""
        reached = [update for update, found in self.curve if found <= score]
        return self.seconds.get(reached[0]) if reached else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A recipe, its runs with several seeds, and what a report shows of them.

    A run that diverged counts with the score of its best weights, if it has one: leaving it out
    would flatter the row.
    """

    name: str
    """Also the folder of its runs."""
    label: str
    """What reports and figures call it."""
    model: str
    """The name of the model: as printed, where the paper has it."""
    recipe: Recipe
    """As it is run, apart from the seed."""
    budget: tuple[int, int] | None = None
    """Updates and tokens that a table's row should have; None for a row that is in no table."""
    paper: PaperResult | None = None
    runs: tuple[RunRecord, ...] = ()
    """All its runs that are in the experiment's folder, whenever they were run."""
    is_wanted: bool = True
    """Whether it is to be run now; else it is listed only."""

    @property
    def words(self) -> PaperRow:
        """Recurrent steps, step size and forward size: as printed, where the paper has the row."""
        if self.paper is not None:
            return self.paper.words
        if isinstance(self.recipe.model, FamilyModel):
            return self.recipe.model.schedule.paper_row
        # The tables have no words for an LSTM.
        return PaperRow(recurrent_steps=None, step_size=None, forward_size=None)

    @property
    def measure(self) -> Measure:
        """What its scores are."""
        if isinstance(self.recipe.task, TaskChoice):
            return ERROR
        is_printed = self.paper and paper_tables()[self.paper.table].unit == PERPLEXITY.unit
        return PERPLEXITY if is_printed else BITS

    @property
    def scored(self) -> list[RunRecord]:
        """The runs that ended with a score."""
        return [run for run in self.runs if run.result and run.result.valid and run.result.test]

    @property
    def results(self) -> list[RunResult]:
        """Their results."""
        return [run.result for run in self.scored if run.result is not None]

    def value(self, result: RunResult, split: Split) -> float:
        """The score of a result on a split."""
        return self.measure.of(result.scores[split])

    def score(self, split: Split | Literal["train"]) -> Spread | None:
        """Mean and deviation over the seeds, in training at its end; None where nothing was run."""
        if split == "train":
            return Spread.over([run.train for run in self.scored if run.train is not None])
        return Spread.over([self.value(result, split) for result in self.results])

    @property
    def best(self) -> RunResult | None:
        """The seed with the lowest validation score, by which the paper chose; then by loss."""
        return min(
            self.results,
            key=lambda one: (self.value(one, "valid"), one.scores["valid"]["loss"]),
            default=None,
        )

    @property
    def is_shared(self) -> bool:
        """Whether some of these times were taken while other runs ran at the same time."""
        return any(run.is_shared for run in self.scored)

    @property
    def seconds_to_solve(self) -> Spread | None:
        """Mean time until the validation error was SOLVED or less; None unless every run got there.

        A mean over only the runs that solved the task would flatter the row.
        """
        if self.measure is not ERROR:
            return None
        times = [run.seconds_to(SOLVED) for run in self.scored]
        known = [seconds for seconds in times if seconds is not None]
        return Spread.over(known) if len(known) == len(times) else None

    @property
    def seconds(self) -> float:
        """Mean time of training."""
        return fmean(one.wall_seconds for one in self.results)

    @property
    def lengths(self) -> list[int]:
        """Other episode lengths for which there are scores."""
        return sorted({length for run in self.runs for length in run.lengths})

    def length_error(self, length: int) -> Spread | None:
        """Mean and deviation over seeds of the test error at a length."""
        return Spread.over([run.lengths[length] for run in self.runs if length in run.lengths])

    @property
    def is_shortened(self) -> bool:
        """Whether some run had fewer updates or tokens than it should have."""
        num_updates, num_tokens = self.budget or (0, 0)
        return any(
            one.num_updates < num_updates or one.num_tokens < num_tokens for one in self.results
        )


def unit(rows: Sequence[Row]) -> str:
    """What the scores of some rows are: the units of tasks and corpora."""
    return " and ".join(dict.fromkeys(row.measure.unit for row in rows))


def beside(run: Path, suffix: str) -> Path:
    """A file about a run, beside its folder, which must be new or empty for the run to start."""
    return run.with_name(f"{run.name}.{suffix}")


def seeds_in(row: Path) -> list[int]:
    """The seeds that have a run folder or a recorded failure in a row's folder."""
    names = {path.name.removesuffix(".failure.txt") for path in row.glob(f"{PREFIX}*")}
    numbers = [name.removeprefix(PREFIX) for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_runs(row: Path, *options: Any) -> tuple[RunRecord, ...]:  # noqa: ANN401
    """All runs of a row that have begun; options as of `read_run`."""
    return tuple(read_run(row / f"{PREFIX}{seed}", seed, *options) for seed in seeds_in(row))


def read_run(
    path: Path, seed: int, measure: Measure = ERROR, lengths: Sequence[int] = ()
) -> RunRecord:
    """One run that has begun; it is unfinished until it is scored at all `lengths`."""
    folder = RunFolder(path)
    with as_written("a run's metrics.jsonl", folder.metrics, "restore it from a copy"):
        lines = list(parse_lines(folder.read_metrics()))
        curve = tuple(scores(lines, "valid", measure))
        train = _mean_of_last(scores(lines, "train", measure))
        # Of updates that were done twice, after a rollback or a resume, the last time counts.
        times = {line["update"]: line["wall_seconds"] for line in read_lines(folder.timing)}
        seconds = {update: times[update] for update, _ in curve if update in times}
    environment: dict[str, Any] = {}
    # A report must not fail because it is missing.
    with suppress(OSError, ValueError):
        environment = folder.read_environment()
    known = {length: 100 * score.error for length, score in read_lengths(path).items()}
    status: Status = "unfinished"
    result = folder.read_result() if folder.is_finished else None
    if result is not None and (result.test is None or {*lengths} <= known.keys()):
        status = result.status
    # A finished run may have failed afterwards, while other lengths were scored.
    failure, reason = beside(path, "failure.txt"), None
    if failure.exists():
        status, reason = "failed", failure.read_text(encoding="utf-8").partition("\n")[0]
    return RunRecord(
        seed=seed,
        status=status,
        result=result,
        failure=reason,
        curve=curve,
        train=train,
        seconds=seconds,
        lengths=known,
        is_shared=beside(path, "shared.txt").exists(),
        # Every process that trains writes a file of its own.
        num_starts=len(list(folder.tensorboard.glob("events*"))),
        environment=environment,
    )


def latest_facts(path: Path) -> tuple[int, dict[str, float]]:
    """How far a run is: the last update on record, and its loss, errors and speed."""
    folder, update = RunFolder(path), 0
    # Later lines replace earlier ones, so that the latest of each kind remain.
    facts: dict[str, float] = {}
    for line in read_lines(folder.metrics, last_bytes=4096):
        update = line["update"]
        before = "valid_" if line["kind"] == "valid" else ""
        names = ("error", "bits_per_byte") if before else ("loss", "error")
        facts |= {before + name: _number(line[name]) for name in names if name in line}
    for line in read_lines(folder.timing, last_bytes=4096):
        facts["tokens_per_second"] = line["tokens_per_second"]
    return update, facts


def scores(
    lines: list[dict[str, Any]], kind: Literal["train", "valid"], measure: Measure
) -> list[tuple[int, float]]:
    """Scores of the updates that led to the result: what a rollback undid is left out."""
    points: list[tuple[int, float]] = []
    for line in lines:
        if line["kind"] == "rollback":
            points = [point for point in points if point[0] <= line["update"]]
        elif line["kind"] == kind and measure.key in line:
            points.append((line["update"], measure.of(line)))
    return points


def _mean_of_last(points: Sequence[tuple[int, float]]) -> float | None:
    """The mean error over the last part of the updates."""
    if not points:
        return None
    first = (1 - LAST_PART) * points[-1][0]
    return fmean(error for update, error in points if update > first)


def read_lines(path: Path, last_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a file, or only those at its end."""
    with suppress(FileNotFoundError), opened(path) as file:
        if last_bytes is not None:
            file.seek(max(0, path.stat().st_size - last_bytes))
        yield from parse_lines(file.read())


def parse_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Plain data, one per line."""
    for line in content.splitlines():
        # Lines may be torn: the last while it is being written, any where a disk was full.
        with suppress(ValueError):
            yield parse_json(line)


def read_lengths(run: Path) -> dict[int, Score]:
    """The scores that a run has so far, by length."""
    path = run / LENGTHS_FILE
    if not path.exists():
        return {}
    with as_written("a run's lengths.json", path, "delete it"):
        plain = parse_json(read_summed(run, LENGTHS_FILE))
        return {int(length): from_plain(Score, score) for length, score in plain.items()}


def score_lengths(run: Path, lengths: Sequence[int]) -> None:
    """Score a run's best weights on test episodes of these lengths."""
    loaded, device, scores = load_run(run), choose_device(), read_lengths(run)
    assert isinstance(loaded.data, TaskData), "checked before the run"
    model = placed(loaded.model, device)
    for length in lengths:
        data = loaded.data.with_length(length)
        scores[length] = score_split(model, data, "test", recipe=loaded.recipe, device=device)
        plain = {str(one): scores[one].to_plain() for one in sorted(scores)}
        RunFolder(run).write({LENGTHS_FILE: plain})


def _number(written: float | None) -> float:
    """A number of the metrics, which write null for one that is not finite."""
    return math.nan if written is None else float(written)


if __name__ == "__main__":
    watch_input()
    score_lengths(Path(sys.argv[1]), [int(length) for length in sys.argv[2:]])
