"""`staircase demo`: what recurrence buys, trained before your eyes on two cores."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from staircase_attention.drawing import picture, render_terminal
from staircase_attention.experiments import Report, compare, find_recipe
from staircase_attention.schedules import Schedule
from staircase_attention.training import FamilyModel, choose_display

RECIPES = ("parity/staircase", "parity/transformer-xl")
INTRODUCTION = """\
Parity: at each of 24 steps a bit comes in, and the answer is whether the ones so far are odd.
A Staircase and a Transformer-XL of the same size get the same updates on the same data.
"""


def demo(
    *,
    seeds: Annotated[int, typer.Option(help="Runs a model, with seeds 0, 1, ...")] = 1,
    output: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("demo"),
) -> None:
    """Train a Staircase and a Transformer-XL on a small state-tracking task, and compare them."""
    console = Console()
    chosen = [find_recipe(name) for name in RECIPES]
    console.print(INTRODUCTION)
    for recipe in chosen:
        assert isinstance(recipe.model, FamilyModel)
        draw(console, recipe.model.schedule)
    # These models are too small for two threads to help.
    torch.set_num_threads(1)
    report = compare(
        chosen,
        folder=output,
        seeds=seeds,
        title="Parity over 24 steps",
        progress=choose_display(every_seconds=5.0),
    )
    console.print(results(report))
    typer.echo(f"report: {output / 'report.md'}, picture: {output / 'learning-curves.png'}")
    typer.echo(f"Remove {output} to train again.")


def draw(console: Console, schedule: Schedule) -> None:
    """Show what a model computes when."""
    console.print(render_terminal(picture(schedule, num_tokens=10)))
    console.print()


def results(report: Report) -> Table:
    """The table at the end."""
    table = Table(title=report.experiment.title)
    for heading in ("model", "parameters", "updates", "seconds a run", "test error"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in report.rows:
        spread = row.error("test")
        assert spread is not None
        deviation = "" if spread.deviation is None else f" ± {spread.deviation:.2f}"
        seconds = [result.wall_seconds for result in row.results]
        table.add_row(
            row.row.model,
            f"{row.num_parameters[0]:,}",
            f"{row.num_updates[0]:,}",
            f"{sum(seconds) / len(seconds):.0f}",
            f"{spread.mean:.2f}{deviation} %",
        )
    return table
