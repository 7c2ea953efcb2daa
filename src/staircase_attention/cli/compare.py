"""`staircase compare`: recipes side by side, with settings varied, in one report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import Lengths
from staircase_attention.cli.assignments import parse_assignments, parse_variations
from staircase_attention.cli.reproduce import show_report
from staircase_attention.experiments import compare as compare_recipes
from staircase_attention.experiments import find_recipe, variations
from staircase_attention.training import Recipe, choose_display


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [PATH=VALUE]...",
            help="some of `staircase recipes`, and settings to change in all of them",
        ),
    ],
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V1,V2,...",
            help="A setting to vary; given again, every combination is run.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs a row, with seeds 0, 1, ...")] = 1,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder of runs and report.")] = Path(
        "results/comparison"
    ),
    title: Annotated[str, typer.Option(help="Heads the report.")] = "A comparison",
    length: Lengths = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> int:
    """Train recipes side by side, or go on with them, and write the report."""
    report = compare_recipes(
        chosen_recipes(words, vary or []),
        folder=output,
        seeds=seeds,
        jobs=jobs,
        title=title,
        lengths=length or (),
        progress=choose_display(quiet=quiet),
    )
    return show_report(report)


def chosen_recipes(words: Sequence[str], vary: Sequence[str]) -> list[Recipe]:
    """The recipes that are named, with the settings that are given and every one that varies."""
    settings = parse_assignments(word for word in words if "=" in word)
    varied = parse_variations(vary)
    if "seed" in settings:
        raise ValueError("rows are run with the seeds 0, 1, ..., got seed=...; use --seeds")
    for path in settings:
        for other in varied:
            if f"{path}.".startswith(f"{other}."):
                raise ValueError(
                    f"a setting is given or varied, got {path} given and {other} varied; "
                    "leave one of them out"
                )
    named = [find_recipe(word).override(settings) for word in words if "=" not in word]
    return [variation for recipe in named for variation in variations(recipe, varied)]
