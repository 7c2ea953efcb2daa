"""Which runs exist: recipes, the paper's numbers as data, comparisons and their reports.

What trains and reports is imported when it is first used: recipes are listed without PyTorch.
"""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from staircase_attention.experiments import comparisons, report

    return getattr(comparisons if name in ("compare", "reproduce") else report, name)
