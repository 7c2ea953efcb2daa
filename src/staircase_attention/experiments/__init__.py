"""Which runs exist: recipes, the paper's numbers as data, and runs set beside them."""

from staircase_attention.experiments.compare import compare
from staircase_attention.experiments.paper import (
    PaperResult,
    PaperTable,
    PaperTraining,
    SummaryEntry,
    find_paper_row,
    paper_summary,
    paper_tables,
    paper_training,
)
from staircase_attention.experiments.recipes import find_recipe, recipes
from staircase_attention.experiments.report import Report, collect, write_report
from staircase_attention.experiments.reproduce import reproduce
from staircase_attention.experiments.rows import TABLES, Row, paper_rows, table_rows
from staircase_attention.experiments.spread import Spread
from staircase_attention.experiments.variations import variations

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
