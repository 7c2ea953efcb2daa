"""`staircase eval` and `inspect`: the score of a trained model, and its guesses pass by pass."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from staircase_attention import data as corpora
from staircase_attention import training
from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.cli import arguments
from staircase_attention.display import Display, choose_display, counted, print_table
from staircase_attention.files import check_can_write

if TYPE_CHECKING:
    from staircase_attention.training.dataset import Dataset, SplitName

# A score as plain data.
Facts = dict[str, Any]
# Tokens of --text in one lane, at least.
TEXT_LANE_TOKENS = 1024


def evaluate(
    run: arguments.TrainedRun,
    *,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Score on this corpus instead; same tokeniser."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Score on this text instead; may be repeated."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Score only the first N tokens of the split.")
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Evaluate at this episode length instead; may be repeated."),
    ] = None,
    by_position: Annotated[
        bool,
        typer.Option("--by-position", help="Also score by position in the episode or document."),
    ] = False,
    passes: arguments.Passes = None,
    exit_rule: arguments.ExitRule = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the loss against --passes.")
    ] = None,
    checkpoint: arguments.CheckpointName = "best",
    precision: Annotated[
        str | None,
        typer.Option(help="float32 or bfloat16; by default float32 on a CPU, on a GPU as trained."),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Batch size; by default the run's, less for a short text."),
    ] = None,
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Score a trained model on its data, or on other text."""
    check_choice("--split", split, ("train", "valid", "test"))
    if text and corpus:
        raise input_error("a model is scored on one text", "--corpus and --text", "leave one out")
    if text and split != "test":
        raise input_error("--text has no splits", f"--split {split}", "leave it out")
    depths: list[int | None] = [*arguments.parse_passes(passes)] or [None]
    if figure is not None:
        if passes is None:
            raise input_error("--figure draws scores by --passes", "none", "add --passes 1,2,4,8")
        check_can_write(figure, "--figure", (".png",))
    if lanes is not None:
        check_integer("--lanes", lanes, minimum=1, example=16)
    from staircase_attention.experiments.page import loss_by_position
    from staircase_attention.generation.stepper import placed

    shown = choose_display(has_bar=False)
    with ExitStack() as stack:
        if text:
            corpus, split = corpus_of(run, text, stack, shown, as_json=as_json), "train"
        loaded = training.load_run(run, checkpoint=checkpoint, trust_code=trust_code, corpus=corpus)
        data: Any = loaded.data
        place = training.choose_device(device)
        if text and lanes is None:
            # A lane starts without context, so a short text has one.
            total = data.extent("train", tokens)["num_tokens"]
            lanes = max(1, min(loaded.recipe.training.evaluation_lanes, total // TEXT_LANE_TOKENS))
        overrides: dict[str, Any] = {} if lanes is None else {"training.evaluation_lanes": lanes}
        # Many CPUs are slow at bfloat16, and none needs it.
        if precision is not None or place.type != "cuda":
            overrides["training.precision"] = precision or "float32"
        recipe, name = loaded.recipe.override(overrides), cast("SplitName", split)
        check_kind(data, split, length=length, tokens=tokens)
        curves: dict[str, dict[int, float]] = {}
        measure = "loss" if isinstance(data, training.TaskData) else "bits_per_byte"
        # All of them first: a depth that the weights do not allow is refused before any work.
        models = {depth: arguments.with_passes(loaded.model, depth) for depth in depths}
        sizes: list[int | None] = [*length] if length else [None]
        for size, depth in product(sizes, depths):
            sized = data if size is None else data.with_length(size)
            # Each with exits of its own, which count from zero.
            model = placed(arguments.with_exit(models[depth], exit_rule), place)
            one = replace(loaded, recipe=recipe, model=model, data=sized)
            whole = scored(one, name, tokens, shown)
            of: Facts = {"split": "text" if text else split, "length": size}
            if depth is not None:
                of["passes"] = depth
            parts = loss_by_position(one, name, tokens) if by_position else ("", {})
            show(of, whole, *parts, as_json)
            label = of["split"] if size is None else f"length {size:,}"
            curves.setdefault(label, {})[depth or 0] = whole[measure]
        if figure is not None:
            from staircase_attention.experiments.figures import Curve, lines_figure, save

            lines = {label: Curve(points) for label, points in curves.items()}
            labels = {"xlabel": "passes", "ylabel": measure.replace("_", " ")}
            save(lines_figure(lines, title=loaded.recipe.name, is_log=True, **labels), figure)
            typer.echo(f"wrote {figure}", err=as_json)
    if not as_json:
        # For two people to compare; with --json the scores have it.
        facts = "  ".join(f"{name} {checksum}" for name, checksum in loaded.checksums.items())
        typer.echo(f"checksum: {facts}" + ("" if loaded.is_verified else "  (no checksums.json)"))


def corpus_of(
    run: Path, text: list[Path], stack: ExitStack, shown: Display, *, as_json: bool
) -> Path:
    """A corpus of these files, all in the split train, in a folder that the stack deletes."""
    from staircase_attention.training.loading import run_tokeniser

    folder = Path(stack.enter_context(TemporaryDirectory())) / "corpus"
    nothing, own = corpora.HeldOut(valid=0.0, test=0.0), run_tokeniser(run)
    made = corpora.prepare_text(text, folder, tokeniser=own, held_out=nothing, progress=shown)
    for line in made.manifest.preparation.skipped_lines():
        typer.echo(line, err=as_json)
    return folder


def scored(
    loaded: "training.LoadedRun", split: "SplitName", tokens: int | None, shown: Display
) -> Facts:
    """A model's score on a split, after what tells the weights apart."""
    from staircase_attention.models import ExitBackend
    from staircase_attention.training.trainer import score_split

    model, data = cast("Any", loaded.model), loaded.data
    options: Facts = {"recipe": loaded.recipe, "device": model.output.weight.device}
    score = score_split(model, data, split, num_tokens=tokens, display=shown, **options)
    facts: Facts = {"update": loaded.update, "checksums": loaded.checksums}
    if loaded.average_of:
        facts["average_of"] = loaded.average_of
    facts |= {"is_verified": loaded.is_verified} | score.to_plain()
    facts |= data.facts(split, score, tokens) | data.extent(split, tokens)
    if isinstance(exits := getattr(model, "backend", None), ExitBackend):
        facts["mean_passes"] = exits.num_passes / exits.num_tokens
    return facts


def check_kind(
    data: "Dataset", split: str, *, length: list[int] | None, tokens: int | None
) -> None:
    """Refuse what only a task or only a corpus has, a split without end, and a score of nothing."""
    if isinstance(data, training.TaskData):
        if tokens is not None:
            raise input_error("--tokens is for language models", "a run on a task", "leave it out")
        if split == "train" and data.task.split_sizes.train is None:
            received = f"train of {data.task.name}, whose training episodes are endless"
            raise input_error("--split must be finite", received, "use valid or test")
        return
    if length:
        raise input_error("--length is for tasks with episodes", "a corpus", "leave it out")
    if tokens is not None:
        # The first token of an episode is not predicted.
        check_integer("--tokens", tokens, minimum=2 - data.carries_state, example=1_000_000)


def show(of: Facts, whole: Facts, label: str, parts: Mapping[int, Facts], as_json: bool) -> None:
    """Print a score and what it is of, then its parts, one per line."""
    if as_json:
        typer.echo(json.dumps(of | whole))
        for number, facts in parts.items():
            typer.echo(json.dumps(of | {f"{label} from".replace(" ", "_"): number} | facts))
        return
    from staircase_attention.evaluation import measures, title

    at = "" if of["length"] is None else f" at length {of['length']:,}"
    if "passes" in of:
        at += f" in {of['passes']} pass{'' if of['passes'] == 1 else 'es'}"
    weights = f"weights of update {whole['update']:,}"
    if "average_of" in whole:
        weights = f"mean of the weights of {len(whole['average_of'])} runs"
    answers = f"({counted(whole['num_answers'], 'answers')}, {weights})"
    typer.echo(f"{title(of['split'], whole)}{at}: {measures(whole)}  {answers}")
    for number, facts in parts.items():
        [unit] = [name for name in facts if name.startswith("num_")]
        count = counted(facts[unit], unit.removeprefix("num_"))
        typer.echo(f"{label} from {number:,}: {measures(facts)}  ({count})")


def inspect(
    run: arguments.TrainedRun,
    *,
    text: Annotated[str | None, typer.Option(help="Text that a language model reads.")] = None,
    episode: Annotated[
        int | None, typer.Option(metavar="N", help="Test episode that it reads, counted from 0.")
    ] = None,
    passes: arguments.NumPasses = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a figure.")] = None,
    checkpoint: arguments.CheckpointName = "best",
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Show a model's prediction after each pass, token by token."""
    if (text is None) == (episode is None):
        found = "neither" if text is None else "both"
        raise input_error("a model reads --text or --episode", found, "give one of them")
    if figure is not None:
        check_can_write(figure, "--figure", (".png",))
    from staircase_attention.experiments.figures import save
    from staircase_attention.experiments.page import read_episode, read_text
    from staircase_attention.inspect import lens_figure, lens_table

    load = training.load_run if text is None else training.load_language_model
    loaded: Any = load(run, checkpoint=checkpoint, trust_code=trust_code)
    model = arguments.with_passes(loaded.model, passes).to(training.choose_device(device))
    loaded = replace(loaded, model=model)
    places = read_episode(loaded, episode or 0) if text is None else read_text(loaded, text)
    if figure is not None:
        save(lens_figure(places, title=loaded.recipe.name), figure)
    if as_json:
        typer.echo("\n".join(json.dumps(place._asdict()) for place in places))
    else:
        print_table(lens_table(places))
    if figure is not None:
        typer.echo(f"wrote {figure}", err=as_json)
