"""An experiment: rows of recipes that are run with several seeds, and what their runs show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from staircase_attention.checks import check_choice
from staircase_attention.experiments.catalog import WORDS_TABLES, recipes
from staircase_attention.experiments.paper import (
    PaperResult,
    Spread,
    paper_tables,
)
from staircase_attention.experiments.results import (
    BITS,
    ERROR,
    PERPLEXITY,
    Measure,
    RunRecord,
)
from staircase_attention.schedules import PaperRow
from staircase_attention.training import RunResult
from staircase_attention.training.recipe import FamilyModel, Recipe, TaskChoice

Split = Literal["valid", "test"]
# Validation error in percent at which a task counts as solved, where times are compared.
SOLVED = 1.0
# The tables that can be run: their titles, and the paper's tables that have numbers for them.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "random-walk": ("Random Walk: our runs and the paper's", ("random-walk",)),
    "algorithm": ("Algorithm: our runs and the paper's", ("algorithm",)),
    "random-walk-fast": ("Random Walk: our own settings, and the paper's runs", ("random-walk",)),
    "algorithm-fast": ("Algorithm: our own settings, and the paper's runs", ("algorithm",)),
    "enwik8": ("Enwik8: our runs and the paper's", ("enwik8",)),
    "enwik8-fast": ("Enwik8: our own settings, and the paper's runs", ("enwik8",)),
    "words": ("Words: our runs, and the paper's on Reddit", WORDS_TABLES),
    "words-episodic": ("Episodes: our runs, and the paper's on Reddit", ("reddit-episodic",)),
    "permutations": ("Permutations of five elements: the models of the Random Walk table", ()),
    "permutations-fast": ("Permutations of five elements with our own settings", ()),
}
# The paper's names of the schedules.
MODEL_NAMES = {
    "staircase": "Staircase",
    "cached-staircase": "Cached Staircase",
    "global-cached-staircase": "Global Cached Staircase",
    "ladder": "Ladder",
    "transformer-xl": "Transformer-XL",
    "universal-transformer": "Universal Transformer",
    "parallel-loop": "Parallel Loop",
    "feedback-transformer": "Feedback Transformer",
    "memory-network": "Memory Network",
}


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

    @property
    def words(self) -> PaperRow:
        """Recurrent steps, step size and forward size: as printed, where the paper has the row."""
        return table_words(self.recipe) if self.paper is None else self.paper.words

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
        scores = result.valid if split == "valid" else result.test
        assert scores is not None, "only results with scores are summarised"
        return self.measure.of(scores)

    def score(self, split: Split) -> Spread | None:
        """Mean and deviation over the seeds; None where nothing was run."""
        return Spread.over([self.value(result, split) for result in self.results])

    @property
    def train_error(self) -> Spread | None:
        """Mean and deviation over the seeds of the error at the end of training."""
        return Spread.over([run.train for run in self.scored if run.train is not None])

    @property
    def best(self) -> RunResult | None:
        """The seed with the lowest validation score, by which the paper chose; then by loss."""
        return min(
            self.results,
            key=lambda one: (self.value(one, "valid"), (one.valid or {})["loss"]),
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
    def lengths(self) -> list[int]:
        """Other episode lengths for which there are scores."""
        return sorted({length for run in self.runs for length in run.lengths})

    def length_error(self, length: int) -> Spread | None:
        """Mean and deviation over seeds of the test error at a length."""
        return Spread.over([run.lengths[length] for run in self.runs if length in run.lengths])

    @property
    def is_shortened(self) -> bool:
        """Whether some run had fewer updates or tokens than it should have."""
        if self.budget is None:
            return False
        num_updates, num_tokens = self.budget
        return any(
            one.num_updates < num_updates or one.num_tokens < num_tokens for one in self.results
        )


def unit(rows: Sequence[Row]) -> str:
    """What the scores of some rows are: the units of tasks and corpora."""
    return " and ".join(dict.fromkeys(row.measure.unit for row in rows))


def table_rows(table: str) -> tuple[Row, ...]:
    """The rows of a table, those of the paper first, then an LSTM."""
    check_choice("a table to reproduce", table, TABLES)
    # Of a row that is in several tables, the first one counts.
    tables = [paper_tables()[name].rows for name in reversed(TABLES[table][1])]
    printed = {name: row for rows in tables for name, row in rows.items()}
    # Tasks have the models of this table. By its recipe alone, a Global Cached Staircase would be
    # called a Cached one, as it has a window.
    named = {**paper_tables()["random-walk"].rows, **printed}
    models = {name: row.model for name, row in named.items()}
    rows = []
    for full_name, recipe in recipes().items():
        group, name = full_name.split("/", 1)
        if group == table:
            config = recipe.training
            num_tokens = config.num_updates * config.num_lanes * config.segment_length
            row = Row(
                name=name,
                label=name,
                model=models.get(name, model_name(recipe)),
                recipe=recipe,
                budget=(config.num_updates, num_tokens),
                paper=printed.get(name),
            )
            rows.append(row)
    return tuple(rows)


def model_name(recipe: Recipe) -> str:
    """The paper's name of a recipe's model."""
    if not isinstance(recipe.model, FamilyModel):
        return "LSTM"
    name = recipe.model.schedule.name
    return MODEL_NAMES.get(name, name)


def table_words(recipe: Recipe) -> PaperRow:
    """The recipe in the terms of the paper's tables, which have none for an LSTM."""
    if isinstance(recipe.model, FamilyModel):
        return recipe.model.schedule.paper_row
    return PaperRow(recurrent_steps=None, step_size=None, forward_size=None)
