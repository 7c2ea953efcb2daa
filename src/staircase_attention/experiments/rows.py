"""What is run and reported: rows, each of them a recipe, some of them a row of the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from staircase_attention.checks import check_choice
from staircase_attention.experiments.naming import model_name, table_words
from staircase_attention.experiments.paper import (
    PaperResult,
    paper_summary,
    paper_tables,
)
from staircase_attention.experiments.recipes import recipes
from staircase_attention.schedules import PaperRow
from staircase_attention.training import Recipe

PAPER_TABLES = ("random-walk", "algorithm")
"""The paper's tables that can be run."""
SAME_TASK = {"random-walk-fast": "random-walk", "algorithm-fast": "algorithm"}
"""Tables with task and models of one of the paper's, trained otherwise."""
OTHER_TASK = {"permutations": "random-walk", "permutations-fast": "random-walk"}
"""Tables with the models of one of the paper's on a task for which it has no numbers."""
TABLES = (*PAPER_TABLES, *SAME_TASK, *OTHER_TASK)
"""All tables that can be run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of a report, and the recipe behind it."""

    name: str
    """Also the folder of its runs."""
    recipe: Recipe
    """As it is to be run, whatever the seed."""
    full_recipe: Recipe | None = None
    """With the budget that the row should have; None where there is no such measure."""
    paper: PaperResult | None = None
    """What the paper got; None where it did not try."""
    printed_model: str | None = None
    """What the paper calls the model of such a row; None where it has none."""

    @property
    def model(self) -> str:
        """What the model is called: as printed, where the paper has it."""
        return self.printed_model or model_name(self.recipe)

    @property
    def words(self) -> PaperRow:
        """Recurrent steps, step size and forward size: as printed, where the paper has the row."""
        return table_words(self.recipe) if self.paper is None else self.paper.words

    @property
    def full_updates(self) -> int | None:
        """Updates that the row should have."""
        return None if self.full_recipe is None else self.full_recipe.training.num_updates

    @property
    def full_tokens(self) -> int | None:
        """Tokens of all lanes over that many updates."""
        if self.full_recipe is None:
            return None
        training = self.full_recipe.training
        return training.num_updates * training.num_lanes * training.segment_length

    @property
    def paper_best(self) -> float | None:
        """The test error of the paper's best seed, where its summary shows this row's."""
        if self.paper is None:
            return None
        best = {entry.row: entry.value for entry in paper_summary()}
        return best.get(self.paper.identifier)


@cache
def paper_rows() -> Mapping[str, PaperResult]:
    """For every recipe that is a row of the paper's tables, that row.

    Such a recipe bears the row's own name, table first.

    >>> paper_rows()["random-walk/ladder-8"].words.recurrent_steps
    8
    """
    printed = [row for table in PAPER_TABLES for row in paper_tables()[table].rows.values()]
    return MappingProxyType({row.identifier: row for row in printed if row.identifier in recipes()})


def table_rows(table: str) -> tuple[Row, ...]:
    """The rows of a table, those of the paper first."""
    check_choice("a table to reproduce", table, TABLES)
    same_task = SAME_TASK.get(table, table)
    same_models = OTHER_TASK.get(table, same_task)
    named = {
        name.removeprefix(f"{table}/"): recipe
        for name, recipe in recipes().items()
        if name.startswith(f"{table}/")
    }
    rows = []
    for name, recipe in named.items():
        like = paper_rows().get(f"{same_models}/{name}")
        rows.append(
            Row(
                name=name,
                recipe=recipe,
                full_recipe=recipe,
                paper=paper_rows().get(f"{same_task}/{name}"),
                printed_model=None if like is None else like.model,
            )
        )
    return tuple(rows)
