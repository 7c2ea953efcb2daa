"""The paper's numbers, as data: what its tables print, where they print it, and their slips."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from staircase_attention.checks import check_choice
from staircase_attention.files import read_json
from staircase_attention.layers.config import CoreConfig
from staircase_attention.plain import from_plain
from staircase_attention.schedules import PaperRow
from staircase_attention.training.recipe import TrainingConfig

Unit = Literal["error %", "perplexity", "bits per character"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over runs and its standard deviation."""

    mean: float
    deviation: float | None = None
    """Standard deviation over the runs; None where there is only one."""

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread | None":
        """Mean and sample standard deviation (divided by n - 1) of some runs; None of none."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), deviation=deviation)

    def __str__(self) -> str:
        return self.shown(1)

    def shown(self, digits: int) -> str:
        """As text, with this many decimals: 0.12 ± 0.05, or 0.12 of one seed."""
        deviation = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{deviation}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperResult:
    """A row of one of the paper's tables; None where the table has no such number."""

    table: str
    name: str
    """What the row is called here: its model and what tells it from the other rows."""
    model: str
    """What the paper calls the model."""
    words: PaperRow
    """Recurrent steps, step size and forward size, as printed."""
    num_updates: int
    """Updates for which the paper trained it."""
    num_seeds: int
    """Runs from which the numbers come."""
    valid: Spread | None = None
    test: Spread | None = None
    num_parameters_millions: int | None = None
    batch_milliseconds: int | None = None
    """Time of a training batch on the authors' machines."""
    layer_pattern: str | None = None
    num_layers: int | None = None
    """Layers that a token goes through, repetitions counted."""

    @property
    def identifier(self) -> str:
        """Table and row, as random-walk/ladder-8."""
        return f"{self.table}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperTable:
    """One of the paper's tables."""

    name: str
    label: str
    """The table's label in the paper's source."""
    caption: str
    unit: Unit
    """Of all its results; corrected where the heading is a slip."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know, slips included."""
    rows: Mapping[str, PaperResult]
    """By name, in the order of the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperTraining:
    """How the paper trained all models on a task."""

    task: str
    core: CoreConfig
    """Of every model."""
    training: TrainingConfig
    """Batches, and the optimiser: Adam, constant after the warm-up."""
    num_seeds: int
    notes: tuple[str, ...]
    """Exceptions and slips."""


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """The tables with one result per row, by name.

    >>> print(paper_tables()["random-walk"].rows["ladder-8"].test)
    3.2 ± 1.6
    """
    tables = {}
    for data in _data()["tables"]:
        shared = {"table": data["name"]}
        shared |= {key: data.pop(key) for key in ("num_updates", "num_seeds")}
        rows, notes = {}, tuple(data.pop("notes"))
        for row in data.pop("rows"):
            sizes = ("recurrent_steps", "step_size", "forward_size")
            words = PaperRow(**{size: row.pop(size) for size in sizes})
            row |= {split: Spread(*row[split]) for split in ("valid", "test") if split in row}
            rows[row["name"]] = PaperResult(**{**shared, **row}, words=words)
        tables[data["name"]] = PaperTable(**data, notes=notes, rows=rows)
    return tables


@cache
def paper_summary() -> tuple[dict[str, Any], ...]:
    """The table of the best result of each model: task, model, value, unit, split and settings.

    For Random Walk and Algorithm it is the test error of the seed that was best on validation data.
    `row` is the row of a detail table whose settings were best, as random-walk/ladder-8, or None.
    """
    return tuple(_data()["summary"]["entries"])


@cache
def paper_training(task: str) -> PaperTraining:
    """The appendix's hyperparameters for a task.

    >>> paper_training("random-walk").training.num_lanes
    512
    """
    tasks = {data["task"]: data for data in _data()["training"]["tasks"]}
    check_choice("a task of the paper", task, tasks)
    return from_plain(PaperTraining, tasks[task])


def _data() -> dict[str, Any]:
    return dict(read_json(Path(__file__).with_name("paper_tables.json")))
