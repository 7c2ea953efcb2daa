"""All recipes by name, and the tables of recipes that `reproduce` runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from staircase_attention.checks import check_choice, input_error, one_line
from staircase_attention.experiments.language import language_recipes, small_language_recipes
from staircase_attention.experiments.paper import PaperResult, paper_summary, paper_tables
from staircase_attention.experiments.state_tracking import full_size_recipes, small_recipes
from staircase_attention.files import read_json
from staircase_attention.schedules import PaperRow
from staircase_attention.training.recipe import FamilyModel, Recipe

PAPER_TABLES = ("random-walk", "algorithm")
"""The paper's tables that can be run."""
SAME_TASK = {"random-walk-fast": "random-walk", "algorithm-fast": "algorithm"}
"""Tables with the task and models of one of the paper's, trained with our own settings."""
OTHER_TASK = {"permutations": "random-walk", "permutations-fast": "random-walk"}
"""Tables with the models of one of the paper's on a task for which it has no numbers."""
TABLES = (*PAPER_TABLES, *SAME_TASK, *OTHER_TASK)
"""All tables that can be run."""
MODEL_NAMES = {
    "staircase": "Staircase",
    "cached-staircase": "Cached Staircase",
    "global-cached-staircase": "Global Cached Staircase",
    "ladder": "Ladder",
    "transformer-xl": "Transformer-XL",
    "universal-transformer": "Universal Transformer",
    "feedback-transformer": "Feedback Transformer",
    "memory-network": "Memory Network",
}
"""The paper's names of the schedules."""


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes: those of the paper's size first, then the small ones."""
    everything = [
        *full_size_recipes(),
        *language_recipes(),
        *small_recipes(),
        *small_language_recipes(),
    ]
    return MappingProxyType({recipe.name: recipe for recipe in everything})


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or of a JSON file: a recipe's `to_plain`, or a run's config.json.

    >>> find_recipe("random-walk/ladder-8").training.num_updates
    50000
    """
    if name.endswith(".json"):
        return _read_recipe(Path(name))
    known = recipes()
    check_choice("a recipe", name, known)
    return known[name]


def _read_recipe(path: Path) -> Recipe:
    if path.name == "config.json":
        # A run folder's recipe may name code, which must be trusted.
        from staircase_attention.training.run_folder import RunFolder

        return RunFolder(path.parent).recipe()
    try:
        plain = read_json(path)
    except (OSError, ValueError) as error:
        raise input_error(
            "a recipe file must be JSON", f"{path} ({one_line(error)})", "check the path"
        ) from error
    return Recipe.from_plain(plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a report, and the recipe behind it."""

    name: str
    """Also the folder of its runs."""
    label: str = ""
    """What reports and figures call it; the name where empty."""
    recipe: Recipe
    """As it is run, apart from the seed."""
    full_recipe: Recipe | None = None
    """With the budget that the row should have; None where there is none to compare with."""
    paper: PaperResult | None = None
    """The paper's result; None where it has none."""
    printed_model: str | None = None
    """The paper's name of the model in this row; None where it has none."""

    @property
    def shown(self) -> str:
        """The label, or else the name."""
        return self.label or self.name

    @property
    def model(self) -> str:
        """The name of the model: as printed, where the paper has it."""
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
        """Tokens of all lanes in these updates."""
        if self.full_recipe is None:
            return None
        training = self.full_recipe.training
        return training.num_updates * training.num_lanes * training.segment_length

    @property
    def paper_best(self) -> float | None:
        """The test error of the paper's best seed, where its summary table has this row."""
        if self.paper is None:
            return None
        best = {entry.row: entry.value for entry in paper_summary()}
        return best.get(self.paper.identifier)


@cache
def paper_rows() -> Mapping[str, PaperResult]:
    """For every recipe that is a row of the paper's tables, that row.

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
    rows = []
    for full_name, recipe in recipes().items():
        group, name = full_name.split("/", 1)
        if group == table:
            like = paper_rows().get(f"{same_models}/{name}")
            row = Row(
                name=name,
                recipe=recipe,
                full_recipe=recipe,
                paper=paper_rows().get(f"{same_task}/{name}"),
                printed_model=None if like is None else like.model,
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
