"""`staircase demo`: what recurrence buys, in minutes on two cores."""

from pathlib import Path
from typing import Annotated

import typer

RECIPES = ("parity/staircase", "parity/transformer-xl")
INTRODUCTION = """\
Parity: at each of 24 steps a bit comes in, and the answer is whether the ones so far are odd.
A Staircase and a Transformer-XL of the same size get the same updates on the same data.
"""


def demo(
    *,
    seeds: Annotated[int, typer.Option(help="Runs per model, with seeds 0, 1, ...")] = 1,
    output: Annotated[Path, typer.Option(help="Folder of runs and report.")] = Path("demo"),
) -> int:
    """Train a Staircase and a Transformer-XL on a small state-tracking task, and compare them."""
    from rich.console import Console

    from staircase_attention.cli.reproduce import show_report
    from staircase_attention.drawing import picture, render_terminal
    from staircase_attention.experiments.catalog import find_recipe
    from staircase_attention.experiments.comparisons import compare
    from staircase_attention.training.recipe import FamilyModel

    console = Console()
    chosen = [find_recipe(name) for name in RECIPES]
    console.print(INTRODUCTION)
    for recipe in chosen:
        assert isinstance(recipe.model, FamilyModel)
        console.print(render_terminal(picture(recipe.model.schedule, num_tokens=10)))
        console.print()
    # These models are too small for two threads to help.
    report = compare(
        chosen, folder=output, seeds=seeds, title="Parity over 24 steps", threads=1, progress=True
    )
    status = show_report(report)
    typer.echo(f"learning curves: {output / 'learning-curves.png'}")
    typer.echo(f"Remove {output} to train again.")
    return status
