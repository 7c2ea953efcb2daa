"""`staircase eval`: how good a trained model is, at its own length and at others."""

import json
from typing import Annotated, cast, get_args

import typer

from staircase_attention.cli.train import RunArgument
from staircase_attention.evaluation import Score
from staircase_attention.training import LoadedRun, load_run
from staircase_attention.training.build import choose_device
from staircase_attention.training.dataset import SplitName
from staircase_attention.training.trainer import score_split

SPLITS = get_args(SplitName)


def evaluate(
    run: RunArgument,
    *,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    length: Annotated[
        list[int] | None,
        typer.Option(help="Episode length other than the training's; may be given repeatedly."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="`best` on the validation data, `latest`, or an update.")
    ] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a trained model on a split of its task."""
    if split not in SPLITS:
        raise ValueError(f"--split must be one of {', '.join(SPLITS)}, got {split!r}; choose one")
    loaded = load_run(run, checkpoint=checkpoint)
    lengths: list[int | None] = [*length] if length else [None]
    for size in lengths:
        found = score(loaded, cast(SplitName, split), size)
        if as_json:
            facts = {"split": split, "length": size, "update": loaded.update}
            typer.echo(json.dumps(facts | found.to_plain()))
        else:
            at = "" if size is None else f" at length {size:,}"
            typer.echo(
                f"{split}{at}: error {100 * found.error:.2f}%  loss {found.loss:.4f}  "
                f"({found.num_answers:,} answers, weights of update {loaded.update:,})"
            )


def score(loaded: LoadedRun, split: SplitName, length: int | None) -> Score:
    """The score on one split, at the training's length or at another."""
    data = loaded.data if length is None else loaded.data.with_length(length)
    device = choose_device()
    return score_split(loaded.model.to(device), data, split, recipe=loaded.recipe, device=device)
