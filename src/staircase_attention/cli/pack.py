"""`staircase pack`: a trained model to keep and to give away, without what only training needs."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from staircase_attention.cli.arguments import TrainedRun
from staircase_attention.training import pack as pack_run
from staircase_attention.training.loading import Numbers

NUMBERS = get_args(Numbers)


def pack(
    run: TrainedRun,
    folder: Annotated[Path, typer.Argument(help="the folder to be")],
    *,
    checkpoint: Annotated[str, typer.Option(help="`best`, `latest`, or an update.")] = "best",
    numbers: Annotated[str, typer.Option(help=" or ".join(NUMBERS))] = NUMBERS[0],
) -> None:
    """Write a run's recipe, result and weights to a small folder that `eval` and others read."""
    if numbers not in NUMBERS:
        known = " or ".join(NUMBERS)
        raise ValueError(f"--numbers must be {known}, got {numbers!r}; choose one of them")
    written = pack_run(run, folder, checkpoint=checkpoint, numbers=cast(Numbers, numbers))
    num_bytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    typer.echo(f"wrote {written}, {num_bytes / 1e6:.2f} MB")
