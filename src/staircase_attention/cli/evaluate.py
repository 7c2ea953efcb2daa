"""`staircase eval`: the score of a trained model, in total and by place."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from staircase_attention.checks import check_choice, input_error
from staircase_attention.cli.arguments import AsJson, CheckpointName, TrainedRun, TrustCode

if TYPE_CHECKING:
    from staircase_attention.evaluation import Place
    from staircase_attention.training import LoadedRun
    from staircase_attention.training.dataset import CorpusData, SplitName, TaskData

# A score as plain data.
Facts = dict[str, Any]
MEASURES = {
    "error": "error {:.2%}",
    "loss": "loss {:.4f}",
    "bits": "bits per token {:.4f}",
    "bits_per_byte": "bits per byte {:.4f}",
    "perplexity": "perplexity {:.4f}",
    "byte_perplexity": "byte perplexity {:.4f}",
}
# How the parts of a score are labelled.
PLACES: "dict[Place, str]" = {
    "episode": "episode of its lane from",
    "position": "position in the episode from",
}


def evaluate(
    run: TrainedRun,
    *,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    length: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Evaluate at this episode length instead; may be repeated."),
    ] = None,
    by_episode: Annotated[
        bool,
        typer.Option("--by-episode", help="Also score by the number of the episode in its lane."),
    ] = False,
    by_position: Annotated[
        bool,
        typer.Option("--by-position", help="Also score by position in the episode or document."),
    ] = False,
    past: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Also score with this many tokens in the state; may be repeated."
        ),
    ] = None,
    passes: Annotated[
        int | None, typer.Option(metavar="N", help="Number of passes, if other than in training.")
    ] = None,
    checkpoint: CheckpointName = "best",
    precision: Annotated[
        str | None,
        typer.Option(help="float32 or bfloat16; by default float32 on a CPU, on a GPU as trained."),
    ] = None,
    lanes: Annotated[
        int | None, typer.Option(metavar="N", help="Batch size; by default that of the run.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Score a trained model on a split of its data."""
    check_choice("--split", split, ("train", "valid", "test"))
    from staircase_attention.training import load_run
    from staircase_attention.training.dataset import TaskData

    loaded = prepared(
        load_run(run, checkpoint=checkpoint, trust_code=trust_code),
        passes=passes,
        precision=precision,
        lanes=lanes,
    )
    data, name = loaded.data, cast("SplitName", split)
    if isinstance(data, TaskData):
        check_for_task(data, name, past=past)
        asked = {"episode": by_episode, "position": by_position}
        places = [place for place in PLACES if asked[place]]
        sizes: list[int | None] = [*length] if length else [None]
        for size in sizes:
            sized = data if size is None else data.with_length(size)
            found = evaluate_task(loaded, sized, name, places)
            show(*found, as_json, split=split, length=size, update=loaded.update)
        return
    check_for_corpus(by_episode=by_episode, length=length)
    found = evaluate_corpus(loaded, data, name, by_position=by_position, past=past)
    show(*found, as_json, split=split, length=None, update=loaded.update)


def prepared(
    loaded: "LoadedRun", *, passes: int | None, precision: str | None, lanes: int | None
) -> "LoadedRun":
    """The run on its device, with the settings to evaluate it with."""
    from staircase_attention import engine
    from staircase_attention.models import SequenceModel
    from staircase_attention.training.processes import choose_device

    model, device = loaded.model, choose_device()
    if passes is not None:
        schedule: Any = getattr(model, "schedule", None)
        if not isinstance(model, SequenceModel) or not hasattr(schedule, "num_passes"):
            kind = getattr(schedule, "name", loaded.recipe.model.kind)
            raise input_error("--passes is for schedules with num_passes", kind, "leave it out")
        model = model.with_schedule(replace(schedule, num_passes=passes))
    model = model.to(device)
    if device.type == "cuda":
        engine.accelerate(model)
    overrides: dict[str, Any] = {}
    # Many CPUs are slow at bfloat16, and none needs it.
    if precision is not None or device.type != "cuda":
        overrides["training.precision"] = precision or "float32"
    if lanes is not None:
        overrides["training.evaluation_lanes"] = lanes
    return replace(loaded, model=model, recipe=loaded.recipe.override(overrides))


def check_for_task(data: "TaskData", split: "SplitName", *, past: list[int] | None) -> None:
    """Refuse what only a corpus has, and a split without end."""
    if past:
        raise input_error(
            "--past is for language models", "a run on a task", "use --length or --by-position"
        )
    if split == "train" and data.task.split_sizes.train is None:
        raise input_error(
            "--split must be finite",
            f"train of {data.task.name}, whose training episodes are endless",
            "use valid or test",
        )


def check_for_corpus(*, by_episode: bool, length: list[int] | None) -> None:
    """Refuse what only a task has."""
    if by_episode:
        raise input_error(
            "--by-episode is for tasks with episodes", "a run on a corpus", "use --by-position"
        )
    if length:
        raise input_error("--length is for tasks with episodes", "a run on a corpus", "use --past")


def evaluate_task(
    loaded: "LoadedRun",
    data: "TaskData",
    split: "SplitName",
    places: "Sequence[Place]",
) -> tuple[Facts, dict[str, dict[int, Facts]]]:
    """A model's score on the episodes of a split, in total and by place."""
    from staircase_attention.evaluation import Score, score_by_place

    if not places:
        return score(loaded, data, split), {}
    settings = reading_settings(loaded)
    found = score_by_place(loaded.model, data.episodes(split), places, **settings)
    # Every kind of place counts every answer once, so any of them gives the whole.
    whole = Score.together(found[places[0]].values()).to_plain()
    parts = {
        PLACES[place]: {number: part.to_plain() for number, part in found[place].items()}
        for place in places
    }
    return whole, parts


def evaluate_corpus(
    loaded: "LoadedRun",
    data: "CorpusData",
    split: "SplitName",
    *,
    by_position: bool,
    past: list[int] | None,
) -> tuple[Facts, dict[str, dict[int, Facts]]]:
    """A model's score on a split of a corpus, in total, by position and by past."""
    from staircase_attention.evaluation import Reading, bits, loss_by_past, loss_by_position

    settings = reading_settings(loaded)
    lanes, length = settings.pop("num_lanes"), settings.pop("segment_length")
    reading = Reading(
        model=loaded.model,
        split=data.corpus.split(split),
        deal=partial(data.deal, num_lanes=lanes, segment_length=length),
        carries_state=data.carries_state,
        **settings,
    )
    # First, because it refuses pasts that the text does not have.
    by_past = loss_by_past(reading, past) if past else {}
    found = {
        "position in the document from": loss_by_position(reading) if by_position else {},
        "tokens of past in the state": by_past,
    }
    parts = {
        label: {
            number: {"loss": part.loss, "bits": bits(part.loss), "num_tokens": part.num_answers}
            for number, part in scores.items()
        }
        for label, scores in found.items()
    }
    return score(loaded, data, split), parts


def score(loaded: "LoadedRun", data: "TaskData | CorpusData", split: "SplitName") -> Facts:
    """The score on one split, with bits and perplexity of text."""
    from staircase_attention.training.trainer import score_split

    device = loaded.model.output.weight.device
    found = score_split(loaded.model, data, split, recipe=loaded.recipe, device=device)
    return found.to_plain() | data.facts(split, found)


def reading_settings(loaded: "LoadedRun") -> dict[str, Any]:
    """How the run's recipe evaluates."""
    from staircase_attention.training.learner import precision_of

    return {
        "num_lanes": loaded.recipe.training.evaluation_lanes,
        "segment_length": loaded.recipe.training.segment_length,
        "device": loaded.model.output.weight.device,
        "precision": precision_of(loaded.recipe),
    }


def show(
    whole: Facts,
    parts: Mapping[str, Mapping[int, Facts]],
    as_json: bool,
    *,
    split: str,
    length: int | None,
    update: int,
) -> None:
    """Print a score, and its parts, one per line."""
    of = {"split": split, "length": length}
    if as_json:
        typer.echo(json.dumps(of | {"update": update} | whole))
    else:
        at = "" if length is None else f" at length {length:,}"
        typer.echo(
            f"{split}{at}: {measures(whole)}  "
            f"({whole['num_answers']:,} answers, weights of update {update:,})"
        )
    for label, facts_by_number in parts.items():
        for number, facts in facts_by_number.items():
            if as_json:
                typer.echo(json.dumps(of | {label.replace(" ", "_"): number} | facts))
            else:
                [count] = [name for name in facts if name.startswith("num_")]
                unit = count.removeprefix("num_")
                typer.echo(f"{label} {number:,}: {measures(facts)}  ({facts[count]:,} {unit})")


def measures(facts: Facts) -> str:
    """The measures of a score in words.

    >>> measures({"loss": 0.5, "error": 0.25, "num_answers": 8})
    'error 25.00%  loss 0.5000'
    """
    return "  ".join(words.format(facts[name]) for name, words in MEASURES.items() if name in facts)
