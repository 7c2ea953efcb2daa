"""`staircase train` and `staircase resume`: runs, begun and continued."""

import os
from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import RunArgument
from staircase_attention.cli.assignments import parse_assignments
from staircase_attention.experiments import find_recipe
from staircase_attention.training import (
    RunResult,
    choose_display,
    default_folder,
    is_first_process,
)
from staircase_attention.training import resume as resume_run
from staircase_attention.training import train as train_recipe
from staircase_attention.training.build import check_recipe

Quiet = Annotated[bool, typer.Option(help="Show no progress.")]


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="one of `staircase recipes`")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH=VALUE]...",
            help="settings to change, as training.num_updates=1000 model.schedule.num_passes=2",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option(help="The run folder; by default a new one under runs/.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Train a model by a recipe, in a new run folder."""
    chosen = find_recipe(recipe).override(parse_assignments(overrides or []))
    if output is None and "WORLD_SIZE" in os.environ:
        raise ValueError(
            "processes that train together must agree on a folder, got none; name it with --output"
        )
    if output is None:
        # A run that cannot be takes no number.
        check_recipe(chosen)
        output = default_folder(chosen)
    return show(train_recipe(chosen, output, progress=choose_display(quiet=quiet)), output)


def resume(run: RunArgument, *, quiet: Quiet = False) -> int:
    """Go on with a run that was stopped, exactly where it stood."""
    return show(resume_run(run, progress=choose_display(quiet=quiet)), run)


def show(result: RunResult, folder: Path) -> int:
    """Print what came of a run; a run that diverged is a failure."""
    status = 0 if result.status == "finished" else 1
    if not is_first_process():
        return status
    for name, score in (("valid", result.valid), ("test", result.test)):
        if score is not None:
            bits = (
                f"  bits per byte {score['bits_per_byte']:.4f}" if "bits_per_byte" in score else ""
            )
            typer.echo(f"{name}: error {100 * score['error']:.2f}%  loss {score['loss']:.4f}{bits}")
    typer.echo(
        f"{result.status} after {result.num_updates:,} updates, {result.num_tokens:,} tokens, "
        f"{result.wall_seconds:.1f} s on {result.device}; best at update {result.best_update}; "
        f"{folder}"
    )
    return status
