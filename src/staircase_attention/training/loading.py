"""A trained model from a run folder, and packed runs.

A packed run is a run folder with one file of weights in place of checkpoints: all that is needed to
use a model. It can be moved anywhere and is loaded like any run; it cannot be trained further.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from staircase_attention import files
from staircase_attention.checks import InputError, check_choice, input_error
from staircase_attention.data import Corpus, Tokeniser, load_tokeniser
from staircase_attention.layers import Block
from staircase_attention.models.sequence_model import without_weights
from staircase_attention.plain import convert
from staircase_attention.references import load_reference
from staircase_attention.training.checkpoint import MANIFEST, WEIGHTS, CheckpointName
from staircase_attention.training.dataset import CorpusData, Dataset, build_dataset
from staircase_attention.training.learner import Model, NumSymbols, build_model
from staircase_attention.training.recipe import CorpusChoice, FamilyModel, LSTMModel, Recipe
from staircase_attention.training.run_folder import RunFolder

# Prefix of the names of runs that come with the package.
PRETRAINED = "pretrained:"
PRETRAINED_FOLDER = Path(__file__).parents[1] / "pretrained"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run's recipe and data, and its model with trained weights."""

    recipe: Recipe
    data: Dataset
    model: Model
    update: int
    """The update after which the weights were taken."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """What two people compare who scored it: of the run (config.json, tokeniser, weights), and of
    its corpus (the manifest, which has those of all its files)."""
    is_verified: bool = False
    """Whether the folder had checksums, which were verified."""
    average_of: Sequence[str] = ()
    """The checksums of the weights of several runs, if these are their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedWeights:
    """The weights of a checkpoint or of a packed run."""

    update: int
    tensors: dict[str, Tensor]
    checksum: str
    """Of their file."""
    average_of: Sequence[str] = ()
    """The checksums of those whose mean they are."""

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each."""
        return {name: list(tensor.shape) for name, tensor in self.tensors.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A trained language model with its tokeniser."""

    recipe: Recipe
    model: Model
    tokeniser: Tokeniser
    update: int
    """The update after which the weights were taken."""

    def encode(self, text: str) -> list[int]:
        """Text as tokens. Typed bytes that are not UTF-8 come as surrogates, and are refused."""
        try:
            [tokens] = self.tokeniser.encode_batch([text.encode()])
        except UnicodeEncodeError as error:
            wrong, remedy = text[error.start : error.end], "type it in UTF-8, or leave that out"
            raise input_error("text must be Unicode", repr(wrong), remedy) from None
        return [int(token) for token in tokens]

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Tokens as the bytes of a text."""
        return self.tokeniser.decode(np.asarray(tokens, dtype=np.uint32))


def load_run(
    folder: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    trust_code: bool = False,
    corpus: str | os.PathLike[str] | None = None,
) -> LoadedRun:
    """The model of a run, with its recipe and data.

    Args:
        folder: a run folder, a packed run, or pretrained:NAME, a run that comes with the package.
        checkpoint: `best` on the validation data, `latest`, or a number of updates.
        trust_code: execute code that the run names even if this user never trained with it.
        corpus: a corpus of the same tokeniser in place of the one that it was trained on.
    """
    run_folder = RunFolder(run_path(folder))
    recipe = run_folder.recipe(trust_code=trust_code)
    if corpus is not None:
        check_tokeniser(run_folder, corpus, "prepare the same text with that, or use --text")
        recipe = recipe.override({"task.folder": os.fspath(corpus)})
    elif isinstance(recipe.task, CorpusChoice) and not Path(recipe.task.folder).exists():
        received = f"{run_folder.path}, whose {recipe.task.folder} is not here"
        remedy = "use --text, or for eval --corpus (in Python, corpus=)"
        raise input_error("a language model is scored on a corpus", received, remedy)
    data = build_dataset(recipe)
    saved, model = _load_model(run_folder, recipe, data, checkpoint)
    config = files.checksum(files.read_file(run_folder.config))
    parts = [config, *run_folder.check_tokeniser(), saved.checksum]
    checksums = {"run": files.checksum("\n".join(parts).encode())}
    if isinstance(data, CorpusData):
        checksums["corpus"] = data.corpus.checksum
    return LoadedRun(
        recipe=recipe,
        data=data,
        model=model,
        update=saved.update,
        checksums=checksums,
        is_verified=files.read_sums(run_folder.path) is not None,
        average_of=saved.average_of,
    )


def load_language_model(
    folder: str | os.PathLike[str], *, checkpoint: str | int = "best", trust_code: bool = False
) -> LanguageModel:
    """The model of a run that was trained on text; its corpus is not needed."""
    run_folder = RunFolder(run_path(folder))
    recipe = run_folder.recipe(trust_code=trust_code)
    tokeniser = run_tokeniser(folder)
    symbols = NumSymbols(num_inputs=tokeniser.vocab_size, num_outputs=tokeniser.vocab_size)
    saved, model = _load_model(run_folder, recipe, symbols, checkpoint)
    return LanguageModel(recipe=recipe, model=model, tokeniser=tokeniser, update=saved.update)


def run_tokeniser(folder: str | os.PathLike[str]) -> Tokeniser:
    """The tokeniser of a run that was trained on text."""
    run_folder = RunFolder(run_path(folder))
    run_folder.read_config()
    run_folder.check_tokeniser()
    if not run_folder.tokeniser.is_dir():
        rule = "a language model's run holds a tokeniser"
        received = f"{run_folder.path} without one"
        raise input_error(rule, received, "name a run that was trained on a corpus")
    return load_tokeniser(run_folder.tokeniser)


def check_tokeniser(run_folder: RunFolder, corpus: str | os.PathLike[str], remedy: str) -> None:
    """Refuse a corpus whose tokens mean something else to the run's model."""
    own, other = run_tokeniser(run_folder.path), Corpus.open(Path(corpus)).manifest.tokeniser
    recorded = {f"{run_folder.tokeniser.name}/{key} {one}" for key, one in other.files.items()}
    if {*run_folder.check_tokeniser()} != recorded:
        expected, found = (f"{one.name} of {one.vocab_size}" for one in (own, other))
        rule = f"a corpus must have the tokeniser of the run, {expected} symbols"
        found = f"another {found}" if found == expected else found
        raise input_error(rule, f"{corpus} with {found}", remedy)


def _load_model(
    run_folder: RunFolder, recipe: Recipe, data: Dataset | NumSymbols, checkpoint: str | int
) -> tuple[SavedWeights, Model]:
    saved = read_weights(run_folder, checkpoint)
    check_fit(recipe, data, saved.shapes, run_folder.path, "take config.json from its run")
    model = build_model(recipe, data)
    model.load_state_dict(saved.tensors)
    return saved, model.eval()


def check_fit(
    recipe: Recipe,
    data: Dataset | NumSymbols,
    found: Mapping[str, list[int]],
    run: object,
    remedy: str,
) -> None:
    """Refuse weights of these shapes for another model, before that is built."""
    model = recipe.model
    num_layers = model.num_layers if isinstance(model, LSTMModel) else sum(model.core.depth)
    rule = "a run's weights must fit the model"
    if num_layers > len(found):
        raise input_error(f"{rule} of {num_layers} layers", f"{len(found)} from {run}", remedy)
    if isinstance(model, FamilyModel) and model.core.reference is not None:
        # What is wrong with that file is not wrong with the run.
        load_reference(model.core.reference, Block)  # type: ignore[type-abstract]
    # However large the model claims to be.
    with without_weights(), files.as_written("a run's recipe", run, remedy):
        tensors = build_model(recipe, data).state_dict()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            received = f"{found.get(name)} from {run}"
            raise input_error(f"{rule}, whose {name} is {shapes.get(name)}", received, remedy)


def read_weights(run_folder: RunFolder, checkpoint: str | int, remedy: str = "") -> SavedWeights:
    """The weights of a run's checkpoint, or of a packed run; the remedy, if not --checkpoint."""
    wanted = str(checkpoint)
    if run_folder.is_packed:
        with files.as_written("a packed run", run_folder.path, "pack it again"):
            packing = files.parse_json(files.read_summed(run_folder.path, run_folder.packing.name))
            content, checksum = files.read_file(run_folder.weights, most=None), packing["checksum"]
            if files.checksum(content) != checksum:
                raise ValueError("its checksum differs")
            update = convert(int, packing["update"], "update")
            parts = [str(one) for one in packing.get("average_of", ())]
            saved = SavedWeights(
                update=update, tensors=load(content), checksum=checksum, average_of=parts
            )
        if wanted not in ("best", str(saved.update)):
            held = "a mean of weights" if parts else f"the weights of update {update}"
            rule = f"{run_folder.path}, a packed run, has {held} only"
            raise input_error(rule, repr(wanted), remedy or "leave --checkpoint out")
        return saved
    run_folder.read_config()
    checkpoints, names = run_folder.checkpoints, run_folder.checkpoints.names()
    if not names:
        rule = "a run must have saved a checkpoint to be loaded"
        received = f"{run_folder.path} with none"
        raise input_error(rule, received, f"resume it: {run_folder.resume_command}")
    known = {str(name.update): name for name in names} | {"latest": names[-1]}
    check_choice(f"a checkpoint of {run_folder.path}", wanted, ["best", *known])
    try:
        name = _best(run_folder, names, remedy) if wanted == "best" else known[wanted]
        advice = remedy or "name another with --checkpoint"
        with files.as_written("a checkpoint", checkpoints.path, advice):
            tensors = checkpoints.read(name, only=[WEIGHTS]).tensors[WEIGHTS]
            sums = files.read_json(checkpoints.path / str(name) / MANIFEST)
    except InputError:
        # A run that trains writes and prunes checkpoints meanwhile.
        if checkpoints.names() == names:
            raise
        return read_weights(run_folder, checkpoint, remedy)
    return SavedWeights(update=name.update, tensors=tensors, checksum=sums[WEIGHTS])


def _best(run_folder: RunFolder, names: Sequence[CheckpointName], remedy: str) -> CheckpointName:
    """The best of these checkpoints by the account of the latest one that knows a best."""
    notes = run_folder.checkpoints.notes()
    for name in names:
        # Its account of the best might be the one that counts.
        if name not in notes:
            received = f"{run_folder.checkpoints.path / str(name)}, which is damaged"
            remedy = remedy or "name another with --checkpoint, or restore it"
            raise input_error("a checkpoint must be as it was written", received, remedy)
    # The latest account counts, unless the checkpoint that it names was set aside as damaged.
    known: list[CheckpointName | None] = [note["best"] for note in notes.values()]
    if known and known[-1] not in notes and run_folder.is_finished:
        # The result is then of other weights, which count as the best.
        scored = run_folder.read_result().best_update
        known += [name for name in notes if name.update == scored]
    there = [name for name in known if name in notes]
    if not there:
        received = f"{run_folder.path} without a score of a checkpoint that it has"
        remedy = remedy or 'use --checkpoint latest (in Python, checkpoint="latest")'
        raise input_error("the best weights are found by validation scores", received, remedy)
    return there[-1]


def pack(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    numbers: str = "bfloat16",
    average: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Write what is needed to use a run's model, and nothing else, to a new folder.

    That is its recipe, result, environment, tokeniser and the weights of one checkpoint; the folder
    appears whole or not at all. With `average`, other runs of the model, the weights are the mean
    of this run's and theirs, and have no result.
    """
    check_choice("numbers", numbers, ("bfloat16", "float32"))
    if isinstance(average, str | os.PathLike):
        received = repr(os.fspath(average))
        raise input_error("average must be a list of runs", received, f"use [{received}]")
    runs, path = [RunFolder(run_path(one)) for one in (folder, *average)], Path(target)
    run_folder = runs[0]
    if path.exists():
        rule = "a packed run needs a new folder"
        raise input_error(rule, f"{path}, which exists", "name another")
    # Weights of the same shapes may be of another model, or for other symbols.
    models = [(run.read_config()["recipe"]["model"], run.check_tokeniser()) for run in runs]
    saved, *others = [read_weights(run, checkpoint) for run in runs]
    for run, model, other in zip(runs[1:], models[1:], others, strict=True):
        if model != models[0] or other.shapes != saved.shapes:
            rule = f"weights to average must be of the model and symbols of {run_folder.path}"
            raise input_error(rule, run.path, "name runs of that model")
    tensors = dict(saved.tensors)
    for name, tensor in saved.tensors.items():
        if tensor.is_floating_point():
            parts = [one.tensors[name].to(torch.float32) for one in (saved, *others)]
            tensors[name] = torch.stack(parts).mean(0).to(getattr(torch, numbers))
    content = save(tensors)
    kept = [run_folder.config.name, run_folder.environment.name, *run_folder.tokeniser_files()]
    # A result belongs to the weights that were scored.
    is_scored = run_folder.is_finished and run_folder.read_result().best_update == saved.update
    if is_scored and not average:
        kept.append(run_folder.result.name)
    # A link may lead anywhere, and what it leads to would go wherever the packed run goes.
    with files.as_written("a run to pack", run_folder.path, "restore it from a copy"):
        contents = {
            name: files.read_summed(run_folder.path, name, follows_links=False)
            for name in kept
            if (run_folder.path / name).exists()
        }
    packing = {"update": saved.update, "checksum": files.checksum(content)}
    means = [one.checksum for one in (saved, *others)] if average else saved.average_of
    packing |= {"average_of": means} if means else {}
    contents[run_folder.packing.name] = files.json_bytes(packing)
    contents[run_folder.weights.name] = content

    def write(scratch: Path) -> None:
        if run_folder.tokeniser.is_dir():
            RunFolder(scratch).tokeniser.mkdir()
        files.write_json(scratch / files.CHECKSUMS, {})
        files.write_summed(scratch, contents)

    with files.writing("a packed run needs a folder that can be written", path, "name another"):
        files.save_folder(path, write)
    return path


def pretrained_names() -> list[str]:
    """The runs that come with the package."""
    return sorted(entry.name for entry in PRETRAINED_FOLDER.iterdir() if entry.is_dir())


def run_path(run: str | os.PathLike[str]) -> Path:
    """The folder of a run; one that comes with the package is called pretrained:NAME."""
    text = os.fspath(run)
    if not text.startswith(PRETRAINED):
        return Path(text)
    check_choice("a pretrained run", text, [f"{PRETRAINED}{name}" for name in pretrained_names()])
    return PRETRAINED_FOLDER / text.removeprefix(PRETRAINED)
