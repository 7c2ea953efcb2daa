"""`staircase bench`: how fast recipes run here, and what share of the peak they reach."""

from pathlib import Path
from typing import Annotated, Any

import typer

from staircase_attention.checks import input_error
from staircase_attention.cli.arguments import Quiet
from staircase_attention.cli.assignments import parse_assignments


def bench(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|PATH=VALUE",
            help="recipes, the sets `engine` and `relative`, or rows of these, as engine/reddit; "
            "and settings to change, as training.num_lanes=8",
        ),
    ],
    *,
    updates: Annotated[bool, typer.Option(help="Time updates.")] = True,
    decode: Annotated[bool, typer.Option("--decode", help="Time decoding as well.")] = False,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Rows decoded together; may be repeated. [default: 1, 64]"),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help="Updates, or tokens, to time; by default about 3 seconds of them."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON file for all numbers, as bench.json.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Time updates, decoding and memory of recipes on this machine, with random tokens."""
    from rich.console import Console

    from staircase_attention.experiments.bench import (
        describe_machine,
        failures,
        find_subjects,
        run_bench,
        tables,
    )
    from staircase_attention.files import check_can_write, write_json
    from staircase_attention.training.processes import choose_device

    if batch and not decode:
        raise input_error("--batch is the number of rows to decode", "no --decode", "add it")
    device = choose_device()
    names = [word for word in words if "=" not in word]
    overrides = parse_assignments([word for word in words if "=" in word])
    subjects = find_subjects(names, overrides=overrides, device=device)
    if output is not None:
        check_can_write(output, "--output")

    def save(report: dict[str, Any]) -> None:
        if output is not None:
            write_json(output, report)

    progress = Console(stderr=True, quiet=quiet)
    report = run_bench(
        subjects,
        device=device,
        updates=updates,
        decode=decode,
        batches=batch or (1, 64),
        repeats=repeats,
        say=lambda text: progress.print(text, highlight=False, markup=False),
        save=save,
    )
    if output is not None:
        typer.echo(f"wrote {output}", err=True)
    console = Console()
    console.print(describe_machine(report), highlight=False, markup=False)
    for table in tables(report):
        console.print(table)
    return 1 if failures(report) else 0
