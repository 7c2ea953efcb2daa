"""Which runs exist: recipes, the paper's numbers as data, comparisons and their reports."""

from typing import TYPE_CHECKING

from staircase_attention.experiments.catalog import (
    TABLES,
    Row,
    find_recipe,
    paper_rows,
    recipes,
    table_rows,
)
from staircase_attention.experiments.grid import variations
from staircase_attention.experiments.paper import (
    PaperResult,
    PaperTable,
    PaperTraining,
    Spread,
    SummaryEntry,
    find_paper_row,
    paper_summary,
    paper_tables,
    paper_training,
)
from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
    from staircase_attention.experiments.comparisons import compare, reproduce
    from staircase_attention.experiments.report import Report, collect, write_report

__all__ = [
    "TABLES",
    "PaperResult",
    "PaperTable",
    "PaperTraining",
    "Report",
    "Row",
    "Spread",
    "SummaryEntry",
    "collect",
    "compare",
    "find_paper_row",
    "find_recipe",
    "paper_rows",
    "paper_summary",
    "paper_tables",
    "paper_training",
    "recipes",
    "reproduce",
    "table_rows",
    "variations",
    "write_report",
]
# Recipes can be listed without PyTorch.
__getattr__ = lazy_names(
    __name__,
    {"comparisons": ["compare", "reproduce"], "report": ["Report", "collect", "write_report"]},
)
