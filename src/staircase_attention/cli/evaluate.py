"""`staircase eval`: how good a trained model is, at its own length and at others."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from staircase_attention.cli.arguments import TrainedRun
from staircase_attention.evaluation import (
    Mean,
    Place,
    Reading,
    Score,
    bits,
    loss_by_past,
    loss_by_position,
    score_by_place,
)
from staircase_attention.evaluation.language import check_pasts
from staircase_attention.training import LoadedRun, load_run
from staircase_attention.training.build import choose_device, precision_of
from staircase_attention.training.dataset import CorpusData, SplitName, TaskData
from staircase_attention.training.trainer import score_split

SPLITS = get_args(SplitName)
FACTS = ("bits_per_byte", "perplexity", "byte_perplexity")
"""What is said of text besides its loss."""
PLACES: dict[Place, str] = {
    "episode": "episode of its lane from",
    "position": "position in the episode from",
}
"""By what a score on a task can be taken apart, and how the parts are called."""


def evaluate(
    run: TrainedRun,
    *,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    length: Annotated[
        list[int] | None,
        typer.Option(help="Episode length other than the training's; may be given repeatedly."),
    ] = None,
    by_episode: Annotated[
        bool,
        typer.Option("--by-episode", help="Error by the number of the episode in its lane."),
    ] = False,
    by_position: Annotated[
        bool,
        typer.Option("--by-position", help="Score by position in the episode or the document."),
    ] = False,
    past: Annotated[
        list[int] | None,
        typer.Option(help="Loss when the state holds so many tokens; may be given repeatedly."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="`best` on the validation data, `latest`, or an update.")
    ] = "best",
    precision: Annotated[
        str | None,
        typer.Option(help="float32 or bfloat16; float32 on a CPU, the run's own on a GPU."),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(help="Lanes into which the split is dealt; the run's own by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a trained model on a split of its data."""
    if split not in SPLITS:
        raise ValueError(f"--split must be one of {', '.join(SPLITS)}, got {split!r}; choose one")
    loaded = in_precision(load_run(run, checkpoint=checkpoint), precision)
    if lanes is not None:
        if lanes < 1:
            raise ValueError(
                f"--lanes must be at least 1, got {lanes}; leave it out for the run's own"
            )
        loaded = changed(loaded, {"training.evaluation_lanes": lanes})
    name = cast(SplitName, split)
    if isinstance(loaded.data, TaskData):
        check_unused(past)
        check_end(loaded.data, name)
        wanted = {"episode": by_episode, "position": by_position}
        places = [place for place in PLACES if wanted[place]]
        for size in [*length] if length else [None]:
            evaluate_task(loaded, loaded.data, name, as_json, length=size, places=places)
        return
    check_for_corpus(run, loaded.data, by_episode=by_episode, length=length, past=past)
    evaluate_corpus(loaded, loaded.data, name, as_json, by_position=by_position, past=past)


def evaluate_task(
    loaded: LoadedRun,
    data: TaskData,
    split: SplitName,
    as_json: bool,
    *,
    length: int | None,
    places: Sequence[Place],
) -> None:
    """Score a model on episodes of one length, or of the training's, and take the score apart."""
    data = data if length is None else data.with_length(length)
    parts = scores_by(places, loaded, data, split) if places else {}
    whole = next(iter(parts.values()), None)
    found = Score.together(whole.values()).to_plain() if whole else score(loaded, data, split)
    show(found, split, as_json, length=length, update=loaded.update)
    for place, scores in parts.items():
        show_scores(PLACES[place], scores, {"split": split, "length": length}, as_json)


def in_precision(loaded: LoadedRun, precision: str | None) -> LoadedRun:
    """The run as it is to be scored: many CPUs are slow at bfloat16, and none needs it."""
    if precision is None and choose_device().type == "cuda":
        return loaded
    return changed(loaded, {"training.precision": precision or "float32"})


def changed(loaded: LoadedRun, overrides: Mapping[str, Any]) -> LoadedRun:
    """The run with other settings, each named by its path."""
    return dataclasses.replace(loaded, recipe=loaded.recipe.override(overrides))


def check_for_corpus(
    run: Path,
    data: CorpusData,
    *,
    by_episode: bool,
    length: list[int] | None,
    past: list[int] | None,
) -> None:
    """Refuse what only tasks have, and a past where there is none."""
    if by_episode:
        raise ValueError(
            f"--by-episode is for tasks with episodes, got it for {run}, which learnt from a "
            "corpus; use --by-position to see where in a document it errs"
        )
    if length:
        raise ValueError(
            f"--length is for tasks with episodes, got it for {run}, which learnt from a corpus; "
            "use --past to see what more context is worth"
        )
    if past and not data.carries_state:
        raise ValueError(
            f"--past is for corpora of form stream, got it for {run}, of form episodic, which has "
            "no past; use --by-position to see where in a document it errs"
        )


def check_unused(past: list[int] | None) -> None:
    """Refuse what only a corpus can answer."""
    if past:
        raise ValueError(
            "--past is for models of text, got a run on a task; use --length to see how it fares "
            "on longer episodes, or --by-position to see where in them it errs"
        )


def check_end(data: TaskData, split: SplitName) -> None:
    """Refuse to score what never ends."""
    if split == "train" and data.task.split_sizes.train is None:
        raise ValueError(
            f"--split must be one that ends, got train of {data.task.name}, whose training "
            "episodes are endless; use valid or test"
        )


def score(loaded: LoadedRun, data: TaskData | CorpusData, split: SplitName) -> dict[str, Any]:
    """The score on one split, with all that it means."""
    device = choose_device()
    found = score_split(loaded.model.to(device), data, split, recipe=loaded.recipe, device=device)
    return found.to_plain() | data.facts(split, found)


def scores_by(
    places: Sequence[Place], loaded: LoadedRun, data: TaskData, split: SplitName
) -> dict[Place, dict[int, Score]]:
    """The score on one split, taken apart."""
    config, device = loaded.recipe.training, choose_device()
    return score_by_place(
        loaded.model.to(device),
        data.episodes(split),
        places,
        num_lanes=config.evaluation_lanes,
        segment_length=config.segment_length,
        device=device,
        precision=precision_of(loaded.recipe),
    )


def evaluate_corpus(
    loaded: LoadedRun,
    data: CorpusData,
    split: SplitName,
    as_json: bool,
    *,
    by_position: bool,
    past: list[int] | None,
) -> None:
    """Score a model on a split of a corpus, and see where it errs."""
    reading = reading_of(loaded, data, split)
    if past:
        # Before the score, which takes long.
        check_pasts(reading, past)
    show(score(loaded, data, split), split, as_json, update=loaded.update)
    if by_position:
        show_means("position in the document from", loss_by_position(reading), as_json)
    if past:
        show_means("tokens of past in the state", loss_by_past(reading, past), as_json)


def reading_of(loaded: LoadedRun, data: CorpusData, split: SplitName) -> Reading:
    """How a text is read where losses are looked at one by one."""
    config, tokens = loaded.recipe.training, data.corpus.split(split)
    return Reading(
        model=loaded.model,
        split=tokens,
        num_lanes=config.evaluation_lanes,
        segment_length=config.segment_length,
        num_tokens=config.evaluation_tokens or tokens.num_tokens,
        device=choose_device(),
        precision=precision_of(loaded.recipe),
        carries_state=data.carries_state,
        end_symbol=tokens.end_symbol,
    )


def show(
    found: dict[str, Any], split: str, as_json: bool, *, update: int, length: int | None = None
) -> None:
    """Print a score."""
    if as_json:
        typer.echo(json.dumps({"split": split, "length": length, "update": update} | found))
        return
    at = "" if length is None else f" at length {length:,}"
    extra = "".join(
        f"  {name.replace('_', ' ')} {found[name]:.4f}" for name in FACTS if name in found
    )
    typer.echo(
        f"{split}{at}: error {100 * found['error']:.2f}%  loss {found['loss']:.4f}{extra}  "
        f"({found['num_answers']:,} answers, weights of update {update:,})"
    )


def show_scores(
    what: str, scores: Mapping[int, Score], of: Mapping[str, Any], as_json: bool
) -> None:
    """Print the parts of a score, one a line."""
    for first, found in scores.items():
        if as_json:
            typer.echo(json.dumps({**of, key(what): first, **found.to_plain()}))
        else:
            typer.echo(
                f"{what} {first:,}: error {100 * found.error:.2f}%  "
                f"loss {found.loss:.4f}  ({found.num_answers:,} answers)"
            )


def show_means(what: str, means: Mapping[int, Mean], as_json: bool) -> None:
    """Print mean losses, one a line."""
    for number, mean in means.items():
        facts = {"loss": mean.loss, "bits": bits(mean.loss), "num_tokens": mean.num_tokens}
        if as_json:
            typer.echo(json.dumps({key(what): number} | facts))
        else:
            typer.echo(
                f"{what} {number:,}: loss {mean.loss:.4f}  bits a token {bits(mean.loss):.4f}  "
                f"({mean.num_tokens:,} tokens)"
            )


def key(what: str) -> str:
    """The same as a name in JSON."""
    return what.replace(" ", "_")
