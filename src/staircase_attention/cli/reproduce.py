"""`staircase reproduce`: rows of the paper's tables, run again and set beside its numbers."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import Lengths
from staircase_attention.cli.assignments import parse_assignments
from staircase_attention.experiments import TABLES, Report
from staircase_attention.experiments import reproduce as reproduce_table
from staircase_attention.training import choose_display


def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"one of {', '.join(TABLES)}")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH=VALUE]...", help="settings to change in every row, as in `train`"
        ),
    ] = None,
    *,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas; all by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs a row, with seeds 0, 1, ...")] = 10,
    updates: Annotated[
        int | None, typer.Option(help="Updates a run; the paper's number by default.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of runs and report; results/TABLE by default.")
    ] = None,
    length: Lengths = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> int:
    """Run rows of a table of the paper, or go on with them, and write the report."""
    folder = output or Path("results") / table
    report = reproduce_table(
        table,
        folder=folder,
        rows=None if rows is None else [row.strip() for row in rows.split(",")],
        seeds=seeds,
        updates=updates,
        jobs=jobs,
        overrides=parse_assignments(overrides or []),
        lengths=length or (),
        progress=choose_display(quiet=quiet),
    )
    return show_report(report)


def show_report(report: Report) -> int:
    """Print a report; runs that did not end well are a failure."""
    page = report.experiment.folder / "report.md"
    typer.echo(page.read_text())
    typer.echo(f"wrote {page}")
    return 1 if report.failures else 0
