"""`staircase compare`: recipes side by side, with settings varied, in one report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staircase_attention.checks import input_error
from staircase_attention.cli.arguments import Lengths, Quiet
from staircase_attention.cli.assignments import parse_assignments, parse_variations
from staircase_attention.cli.reproduce import Jobs, Processes, show_report

if TYPE_CHECKING:
    from staircase_attention.training.recipe import Recipe


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [PATH=VALUE]...",
            help="some of `staircase recipes` or JSON files, and settings to change in all of them",
        ),
    ],
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V1,V2,...",
            help="Vary a setting; if repeated, every combination is run.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per row, with seeds 0, 1, ...")] = 1,
    jobs: Jobs = 1,
    processes: Processes = 1,
    output: Annotated[Path, typer.Option(help="Folder of runs and report.")] = Path(
        "results/comparison"
    ),
    title: Annotated[str, typer.Option(help="Title of the report.")] = "A comparison",
    length: Lengths = None,
    quiet: Quiet = False,
) -> int:
    """Train recipes side by side, or resume them, and write a report."""
    from staircase_attention.experiments.comparisons import compare as compare_recipes

    report = compare_recipes(
        chosen_recipes(words, vary or []),
        folder=output,
        seeds=seeds,
        jobs=jobs,
        processes=processes,
        title=title,
        lengths=length or (),
        progress=not quiet,
    )
    return show_report(report)


def chosen_recipes(words: Sequence[str], vary: Sequence[str]) -> "list[Recipe]":
    """The named recipes, with the given settings and every combination of the varied ones."""
    from staircase_attention.experiments.catalog import find_recipe
    from staircase_attention.experiments.comparisons import variations

    settings = parse_assignments(word for word in words if "=" in word)
    varied = parse_variations(vary)
    if "seed" in settings:
        raise input_error("rows are run with the seeds 0, 1, ...", "seed=...", "use --seeds")
    for path in settings:
        for other in varied:
            if f"{path}.".startswith(f"{other}."):
                rule = "a setting is either given or varied"
                received = f"{path} given and {other} varied"
                raise input_error(rule, received, "leave one of them out")
    named = [find_recipe(word).override(settings) for word in words if "=" not in word]
    return [variation for recipe in named for variation in variations(recipe, varied)]
