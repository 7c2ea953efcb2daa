"""`staircase reproduce`: rows of the paper's tables, run again and compared with its numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staircase_attention.cli.arguments import Lengths, Quiet
from staircase_attention.cli.assignments import parse_assignments

if TYPE_CHECKING:
    from staircase_attention.experiments.report import Report

Jobs = Annotated[int, typer.Option(help="Runs at a time, each a process of its own.")]
Processes = Annotated[int, typer.Option(help="Processes (GPUs) per run, started by torchrun.")]


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="random-walk, algorithm or permutations, also with -fast"
        ),
    ],
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
    seeds: Annotated[int, typer.Option(help="Runs per row, with seeds 0, 1, ...")] = 10,
    updates: Annotated[
        int | None, typer.Option(help="Updates per run; the paper's number by default.")
    ] = None,
    jobs: Jobs = 1,
    processes: Processes = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of runs and report; results/TABLE by default.")
    ] = None,
    length: Lengths = None,
    quiet: Quiet = False,
) -> int:
    """Run rows of a table of the paper, or resume them, and write a report."""
    from staircase_attention.experiments.comparisons import reproduce as reproduce_table

    report = reproduce_table(
        table,
        folder=output or Path("results") / table,
        rows=None if rows is None else [row.strip() for row in rows.split(",")],
        seeds=seeds,
        updates=updates,
        jobs=jobs,
        processes=processes,
        overrides=parse_assignments(overrides or []),
        lengths=length or (),
        progress=not quiet,
    )
    return show_report(report)


def show_report(report: "Report") -> int:
    """Print a report for the screen; runs that failed or diverged make it a failure."""
    from rich.console import Console

    from staircase_attention.experiments.report import screen_table, troubles

    console = Console()
    console.print(screen_table(report))
    for line in troubles(report.rows):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    typer.echo(f"wrote {report.experiment.folder / 'report.md'}")
    return 1 if report.failures else 0
