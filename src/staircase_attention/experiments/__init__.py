"""Which runs exist: recipes, the paper's numbers as data, comparisons and their reports.

Names are imported when they are first used: recipes can be listed without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staircase_attention.experiments.catalog import (
        TABLES,
        Row,
        find_recipe,
        paper_rows,
        recipes,
        table_rows,
    )
    from staircase_attention.experiments.comparisons import compare, reproduce
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
    from staircase_attention.experiments.report import Report, collect, write_report
    from staircase_attention.experiments.grid import variations

_MODULES = {
    "catalog": ("TABLES", "Row", "find_recipe", "paper_rows", "recipes", "table_rows"),
    "comparisons": ("compare", "reproduce"),
    "paper": (
        "PaperResult",
        "PaperTable",
        "PaperTraining",
        "Spread",
        "SummaryEntry",
        "find_paper_row",
        "paper_summary",
        "paper_tables",
        "paper_training",
    ),
    "report": ("Report", "collect", "write_report"),
    "grid": ("variations",),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
