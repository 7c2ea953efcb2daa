"""`staircase train` and `staircase resume`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staircase_attention.checks import input_error
from staircase_attention.cli.arguments import Quiet, RunArgument, TrustCode, complete_recipes
from staircase_attention.cli.assignments import parse_assignments

if TYPE_CHECKING:
    from staircase_attention.training import RunResult


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="one of `staircase recipes`, or a JSON file of one",
            autocompletion=complete_recipes,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH=VALUE",
            help="settings to change, as training.num_updates=1000 model.schedule.num_passes=2",
        ),
    ] = None,
    *,
    init: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Start from the weights of this run."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Run folder; by default a new one under runs/.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Train a model by a recipe, in a new run folder."""
    from staircase_attention.experiments import find_recipe

    chosen = find_recipe(recipe).override(parse_assignments(overrides or []))
    from staircase_attention.training import choose_display, default_folder
    from staircase_attention.training import train as train_recipe
    from staircase_attention.training.learner import check_recipe

    if output is None and "WORLD_SIZE" in os.environ:
        raise input_error(
            "processes that train together need the same folder", "none", "name it with --output"
        )
    if output is None:
        # Before a folder is numbered.
        check_recipe(chosen)
        output = default_folder(chosen)
    result = train_recipe(chosen, output, init=init, progress=choose_display(quiet=quiet))
    return show(result, output)


def resume(
    run: RunArgument,
    *,
    updates: Annotated[
        int | None,
        typer.Option(metavar="N", help="Total number of updates; also continues a finished run."),
    ] = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> int:
    """Resume a run that was stopped, or continue a finished one."""
    from staircase_attention.training import choose_display
    from staircase_attention.training import resume as resume_run

    result = resume_run(
        run, num_updates=updates, trust_code=trust_code, progress=choose_display(quiet=quiet)
    )
    return show(result, run)


def show(result: "RunResult", folder: Path) -> int:
    """Print the result of a run; a run that diverged is a failure."""
    from staircase_attention.training import is_first_process

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
