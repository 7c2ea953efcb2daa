"""Packed runs: what is needed to use a trained model, in few bytes, and those that come with us.

A packed run is a run folder with one file of weights in place of the checkpoints. It can be moved
anywhere and is loaded like any run; it cannot be trained further.
"""

import os
import shutil
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from staircase_attention.files import checksum, read_json, write_json, write_whole
from staircase_attention.training.run import read_result
from staircase_attention.training.run_folder import RunFolder

PRETRAINED = "pretrained:"
"""Before the name of a run that comes with the package."""

Numbers = Literal["bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What there is to know of a packed run's weights."""

    update: int
    """The update after which the weights were as they are."""
    checksum: str
    """SHA-256 of the file of weights."""


def pack_weights(
    place: RunFolder,
    weights: dict[str, Tensor],
    target: str | os.PathLike[str],
    *,
    update: int,
    numbers: Numbers,
) -> Path:
    """Write a run's recipe, result, environment, tokeniser and these weights of it; whole or not.

    The target must not be there yet.
    """
    path = Path(target)
    if path.exists():
        raise ValueError(f"a packed run needs a new folder, got {path}, which exists; name another")
    dtype = getattr(torch, numbers)
    rounded = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    content = save(rounded)
    kept = _notes(place, update)
    scratch = RunFolder(path.with_name(f".{path.name}.partial"))
    shutil.rmtree(scratch.path, ignore_errors=True)
    try:
        scratch.path.mkdir(parents=True)
        for name, note in kept.items():
            write_whole(scratch.path / name, note)
        if place.tokeniser.is_dir():
            shutil.copytree(place.tokeniser, scratch.tokeniser)
        write_whole(scratch.weights, content)
        packing = Packing(update=update, checksum=checksum(content))
        write_json(scratch.packing, asdict(packing))
        scratch.path.rename(path)
    except OSError as error:
        shutil.rmtree(scratch.path, ignore_errors=True)
        raise ValueError(
            f"a packed run needs a folder that can be written, got {path} ({error.strerror}); "
            "name another"
        ) from error
    return path


def _notes(place: RunFolder, update: int) -> dict[str, bytes]:
    """What is known of a run; its result only if that is of these weights."""
    notes = [place.config, place.environment]
    if place.is_finished and read_result(place).best_update == update:
        notes.append(place.result)
    return {note.name: note.read_bytes() for note in notes if note.exists()}


def read_packed(place: RunFolder) -> tuple[int, dict[str, Tensor]]:
    """The update and the weights of a packed run."""
    try:
        packing = Packing(**read_json(place.packing))
        content = place.weights.read_bytes()
        if checksum(content) != packing.checksum:
            raise ValueError("its checksum differs")
        return packing.update, load(content)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise ValueError(
            f"a packed run must be as it was written, got {place.path} ({error}); pack it again"
        ) from error


def pretrained_names() -> list[str]:
    """The runs that come with the package.

    >>> "parity-staircase" in pretrained_names()
    True
    """
    return sorted(entry.name for entry in _pretrained_folder().iterdir() if entry.is_dir())


def run_path(run: str | os.PathLike[str]) -> Path:
    """The folder of a run; one that comes with the package is called pretrained:NAME."""
    text = os.fspath(run)
    if not text.startswith(PRETRAINED):
        return Path(text)
    name = text.removeprefix(PRETRAINED)
    if name not in pretrained_names():
        known = ", ".join(f"{PRETRAINED}{one}" for one in pretrained_names())
        raise ValueError(f"a pretrained run is one of {known}, got {text!r}; choose one of these")
    return _pretrained_folder() / name


def _pretrained_folder() -> Path:
    return Path(str(files("staircase_attention") / "pretrained"))
