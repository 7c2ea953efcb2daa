"""Times one subject after another; what fails takes nothing else with it."""

import contextlib
import datetime
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from staircase_attention.experiments.bench.decoding import decoding_model, time_decoding
from staircase_attention.experiments.bench.environment import bench_environment
from staircase_attention.experiments.bench.peaks import measure_peaks
from staircase_attention.experiments.bench.report import BenchReport, BenchRow, Failure
from staircase_attention.experiments.bench.stopwatch import Stopwatch
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.experiments.bench.updates import Say, time_updates
from staircase_attention.experiments.experiment import check_count, this_command

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is to be timed."""

    updates: bool = True
    decoding: bool = False
    num_rows: tuple[int, ...] = (1, 64)
    """Rows that are decoded together, one number after another."""
    repeats: int | None = None
    """Updates, and rounds of new tokens; None: as many as take about three seconds."""

    def __post_init__(self) -> None:
        if not (self.updates or self.decoding):
            raise ValueError(
                "a bench times updates or decoding, got neither; leave --no-updates out, "
                "or add --decode"
            )
        for number in self.num_rows:
            check_count("a batch", number)
        if self.repeats is not None:
            check_count("repeats", self.repeats)


def run_bench(
    subjects: Sequence[Subject],
    wanted: Wanted,
    *,
    device: torch.device,
    notes: Sequence[str] = (),
    say: Say = lambda text: None,
    save: Callable[[BenchReport], None] = lambda report: None,
) -> BenchReport:
    """Time all subjects.

    Args:
        subjects: one after another, in this order.
        wanted: what is timed of each.
        device: where.
        notes: what the report should say besides.
        say: is told what goes on.
        save: is given the report after every subject, so that a kill costs one at most.
    """
    for subject in subjects:
        subject.check()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    stopwatch = Stopwatch(device)
    precisions = [subject.recipe.training.precision for subject in subjects]
    say("the machine's peaks")
    report = BenchReport(
        command=this_command(),
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        environment=bench_environment(device),
        peaks=attempt(lambda: measure_peaks(stopwatch, precisions)),
        notes=list(notes),
    )
    for subject in subjects:
        row = BenchRow(subject=subject)
        report.rows.append(row)
        time_subject(row, wanted, stopwatch=stopwatch, say=say)
        report.is_complete = len(report.rows) == len(subjects)
        save(report)
    return report


def time_subject(row: BenchRow, wanted: Wanted, *, stopwatch: Stopwatch, say: Say) -> None:
    """Fill a row."""
    subject, repeats = row.subject, wanted.repeats

    def tell(text: str) -> None:
        say(f"{subject.name}: {text}")

    if wanted.updates:
        row.updates = attempt(
            lambda: time_updates(subject, stopwatch=stopwatch, repeats=repeats, say=tell)
        )
    if not wanted.decoding or subject.maker == "transformers":
        return
    model = attempt(lambda: decoding_model(subject, stopwatch.device))
    for num_rows in dict.fromkeys(wanted.num_rows):
        row.decoding[num_rows] = (
            model
            if isinstance(model, Failure)
            else attempt(
                lambda num_rows=num_rows: time_decoding(  # type: ignore[misc]
                    subject,
                    model,
                    num_rows=num_rows,
                    stopwatch=stopwatch,
                    repeats=repeats,
                    say=tell,
                )
            )
        )


def attempt(action: Callable[[], T]) -> T | Failure:
    """What an action gives, or why it gave nothing; memory is free again either way."""
    clean_up()
    try:
        return action()
    except Exception as error:
        return Failure.of(error)


def clean_up() -> None:
    """Give back the memory of what is not used any more."""
    gc.collect()
    if torch.cuda.is_available():
        # After some errors a GPU answers nothing at all; the report must be written all the same.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
