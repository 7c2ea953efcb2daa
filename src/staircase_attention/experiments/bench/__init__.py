"""How fast it is here: updates, decoding and memory, beside what the machine itself can do."""

from staircase_attention.experiments.bench.report import BenchReport, BenchRow, Failure
from staircase_attention.experiments.bench.runner import Wanted, run_bench
from staircase_attention.experiments.bench.sets import SETS, find_subjects
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.experiments.bench.table import machine_words, tables

__all__ = [
    "SETS",
    "BenchReport",
    "BenchRow",
    "Failure",
    "Subject",
    "Wanted",
    "find_subjects",
    "machine_words",
    "run_bench",
    "tables",
]
