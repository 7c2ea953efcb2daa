"""`staircase bench`: how fast recipes are here, beside what the machine itself can do."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from staircase_attention.cli.assignments import parse_assignments
from staircase_attention.experiments.bench import (
    SETS,
    BenchReport,
    Wanted,
    find_subjects,
    machine_words,
    run_bench,
    tables,
)
from staircase_attention.training.build import choose_device


def bench(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|PATH=VALUE",
            help=(
                f"recipes, sets ({', '.join(SETS)}), or rows of these, as engine/reddit; "
                "and settings to change, as training.num_lanes=8"
            ),
        ),
    ],
    *,
    updates: Annotated[bool, typer.Option(help="Time updates.")] = True,
    decode: Annotated[bool, typer.Option("--decode", help="Time decoding as well.")] = False,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Rows decoded together; may be given repeatedly. [default: 1, 64]"),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help="Updates, or tokens, to time; by default about 3 seconds of them."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file for all numbers, as bench.json.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Time updates, decoding and memory of recipes on this machine, with random tokens."""
    if batch and not decode:
        raise ValueError("--batch says how many rows are decoded, got no --decode; add it")
    wanted = Wanted(
        updates=updates,
        decoding=decode,
        num_rows=tuple(batch) if batch else (1, 64),
        repeats=repeats,
    )
    device = choose_device()
    names = [word for word in words if "=" not in word]
    overrides = parse_assignments([word for word in words if "=" in word])
    subjects, notes = find_subjects(names, overrides=overrides, device=device)
    if output is not None:
        check_writable(output)

    def save(report: BenchReport) -> None:
        if output is not None:
            report.write(output)

    line = ProgressLine(quiet=quiet)
    try:
        report = run_bench(subjects, wanted, device=device, notes=notes, say=line.say, save=save)
    finally:
        line.clear()
    return show(report, output)


def show(report: BenchReport, output: Path | None) -> int:
    """Print what was found; a part that failed makes the whole a failure."""
    for note in report.notes:
        typer.echo(f"left out: {note}", err=True)
    if output is not None:
        typer.echo(f"wrote {output}", err=True)
    console = Console()
    console.print(machine_words(report), highlight=False, markup=False)
    for table in tables(report):
        console.print(table)
    return 1 if report.failures else 0


def check_writable(path: Path) -> None:
    """Refuse a place where no file can be written, before anything is timed."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(
            f"--output must be a file in a folder that can be written, got {str(path)!r}; "
            "name another, as bench.json"
        )


class ProgressLine:
    """One line that says what goes on: it is written over in a terminal, and has no thread."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Show a text in place of the one before."""
        if self._quiet:
            return
        sys.stderr.write(f"\r\x1b[2K{text}" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave nothing behind in a terminal."""
        if self._is_terminal and not self._quiet:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
