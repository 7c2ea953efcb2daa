"""A trained model out of a run folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from staircase_attention.data import Tokeniser, load_tokeniser
from staircase_attention.training.build import Model, build_dataset, build_model
from staircase_attention.training.checkpoint import WEIGHTS, CheckpointName, DamagedCheckpointError
from staircase_attention.training.corpus_data import CorpusData
from staircase_attention.training.dataset import TaskData
from staircase_attention.training.packed import Numbers, pack_weights, read_packed, run_path
from staircase_attention.training.progress import Progress
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run's recipe and data, and its model with trained weights."""

    recipe: Recipe
    data: TaskData | CorpusData
    model: Model
    update: int
    """The update after which the weights were as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A trained model of text, and what its tokens mean."""

    recipe: Recipe
    model: Model
    tokeniser: Tokeniser
    update: int
    """The update after which the weights were as they are."""

    def encode(self, text: str) -> list[int]:
        """Text as tokens."""
        [tokens] = self.tokeniser.encode_batch([text.encode()])
        return [int(token) for token in tokens]

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Tokens as the bytes of a text."""
        return self.tokeniser.decode(np.asarray(tokens, dtype=np.uint32))


def load_language_model(
    folder: str | os.PathLike[str], *, checkpoint: str | int = "best", trust_code: bool = False
) -> LanguageModel:
    """The model of a run that was trained on text; the corpus itself need not be there."""
    place = RunFolder(run_path(folder))
    recipe = place.recipe(trust_code=trust_code)
    if not place.tokeniser.is_dir():
        raise ValueError(
            f"a language model's run holds a tokeniser, got {place.path} without one; "
            "name a run that was trained on a corpus"
        )
    tokeniser = load_tokeniser(place.tokeniser)
    update, weights = _weights(place, checkpoint)
    symbols = NumSymbols(num_inputs=tokeniser.vocab_size, num_outputs=tokeniser.vocab_size)
    model = build_model(recipe, symbols)
    _put(weights, into=model, of=place)
    return LanguageModel(recipe=recipe, model=model.eval(), tokeniser=tokeniser, update=update)


@dataclass(frozen=True, kw_only=True, slots=True)
class NumSymbols:
    """Numbers of symbols, without the data they come from."""

    num_inputs: int
    num_outputs: int


def load_run(
    folder: str | os.PathLike[str], *, checkpoint: str | int = "best", trust_code: bool = False
) -> LoadedRun:
    """The model of a run: `best` on the validation data, `latest`, or a number of updates.

    `folder` may also be pretrained:NAME, a run that comes with the package. Code that the run names
    is executed if this user trained with it, or with `trust_code`.
    """
    place = RunFolder(run_path(folder))
    recipe = place.recipe(trust_code=trust_code)
    data = build_dataset(recipe)
    update, weights = _weights(place, checkpoint)
    model = build_model(recipe, data)
    _put(weights, into=model, of=place)
    return LoadedRun(recipe=recipe, data=data, model=model.eval(), update=update)


def _put(weights: dict[str, Tensor], *, into: Model, of: RunFolder) -> None:
    try:
        into.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise ValueError(
            f"a run's weights must fit the model of its config.json, got {of.path} where they do "
            f"not ({first}...); take both from the same run"
        ) from error


def pack(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    numbers: Numbers = "bfloat16",
) -> Path:
    """Write what is needed to use a run's model, and nothing else, to a new folder."""
    place = RunFolder(run_path(folder))
    place.plain_recipe()
    update, weights = _weights(place, checkpoint)
    return pack_weights(place, weights, target, update=update, numbers=numbers)


def _weights(place: RunFolder, wanted: str | int) -> tuple[int, dict[str, Tensor]]:
    checkpoint = str(wanted)
    if place.is_packed:
        update, weights = read_packed(place)
        if checkpoint not in ("best", str(update)):
            raise ValueError(
                f"a packed run has the weights of update {update} alone, got {checkpoint!r}; "
                "leave --checkpoint away"
            )
        return update, weights
    name = _choose(place, checkpoint)
    try:
        return name.update, place.checkpoints.read(name).tensors[WEIGHTS]
    except DamagedCheckpointError as error:
        raise ValueError(
            f"a checkpoint must be as it was written, got {error}; name another with --checkpoint"
        ) from error


def _choose(place: RunFolder, wanted: str) -> CheckpointName:
    names = place.checkpoints.names()
    if not names:
        raise ValueError(
            f"a run must have saved a checkpoint to be loaded, got {place.path} with none; "
            f"go on with it: {place.resume_command}"
        )
    if wanted == "latest":
        return names[-1]
    if wanted == "best":
        return _best(place)
    matching = [name for name in names if str(name.update) == wanted]
    if not matching:
        known = ", ".join(str(name.update) for name in names)
        raise ValueError(
            f"a checkpoint is best, latest or one of the updates {known}, got {wanted!r}; "
            "choose one of these"
        )
    return matching[-1]


def _best(place: RunFolder) -> CheckpointName:
    """The best by the latest checkpoint's own account."""
    notes = place.checkpoints.notes()
    known = [Progress.best_in(note["progress"]) for note in notes.values()]
    there = [name for name in known if name in notes]
    if not there:
        raise ValueError(
            f"the best weights are told by scores on validation data, got {place.path} without a "
            "score of a checkpoint that it has; use --checkpoint latest (in Python, "
            'checkpoint="latest")'
        )
    return there[-1]
