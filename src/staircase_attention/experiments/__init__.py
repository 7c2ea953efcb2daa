"""Which runs exist: recipes, the paper's numbers as data, comparisons and their reports."""

from typing import TYPE_CHECKING

from staircase_attention.experiments.catalog import find_recipe, recipes
from staircase_attention.experiments.paper import paper_summary, paper_tables, paper_training
from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
    from staircase_attention.experiments.comparisons import compare, reproduce, variations
    from staircase_attention.experiments.experiment import TABLES, table_rows

__all__ = [
    "TABLES",
    "compare",
    "find_recipe",
    "paper_summary",
    "paper_tables",
    "paper_training",
    "recipes",
    "reproduce",
    "table_rows",
    "variations",
]
# Recipes can be listed without PyTorch.
__getattr__ = lazy_names(
    __name__,
    {
        "comparisons": ["compare", "reproduce", "variations"],
        "experiment": ["TABLES", "table_rows"],
    },
)
