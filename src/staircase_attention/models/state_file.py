"""States on disk: safetensors for the numbers, JSON in its header for the rest. No pickle."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.files import check_can_write, write_whole
from staircase_attention.layers import KeysValues
from staircase_attention.models.lstm import LSTMState
from staircase_attention.models.state import State, Stream
from staircase_attention.schedules import joined

# The metadata key that marks a file as a state.
HEADER = "staircase_attention.state"
# Increased when the layout changes; version 1 is read, too.
VERSION = 2

# A state taken apart: plain data, and tensors by name.
Parts = tuple[dict[str, Any], dict[str, Tensor]]


def save_state(state: State | LSTMState, path: str | os.PathLike[str]) -> None:
    """Write a state to a file, whole or not at all."""
    header, tensors = take_apart(state)
    target = Path(path)
    check_can_write(target, "a state")
    write_whole(target, save(tensors, metadata={HEADER: json.dumps(header)}))


def load_state(path: str | os.PathLike[str]) -> State | LSTMState:
    """Read a state that `save_state` wrote."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"a state is read from a file, got {os.fspath(path)}, which is none; check the path"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        found = f"{os.fspath(path)} ({error})"
        rule = "a state file must be a whole safetensors file"
        raise input_error(rule, found, "save the state again") from error
    if header.get("version") not in (1, VERSION):
        rule = f"a state file must hold a state of version 1 or {VERSION}"
        found = f"{os.fspath(path)} with version {header.get('version', 'unknown')}"
        raise input_error(rule, found, "pass a file that save_state wrote")
    return put_together(header, tensors)


def take_apart(state: State | LSTMState) -> Parts:
    """A state as plain data and tensors."""
    if isinstance(state, LSTMState):
        parts = {"hidden": state.hidden, "cell": state.cell}
        return {"version": VERSION, "kind": "lstm"}, _contiguous(parts)
    tensors = {}
    for number, stream in enumerate(state.streams):
        banks = {f"bank.{bank}.{layer}": held for (bank, layer), held in stream.banks.items()}
        caches = {f"cache.{place}": held for place, held in enumerate(stream.cache)}
        for name, held in (banks | caches).items():
            tensors[f"{number}.{name}.keys"] = held.keys
            tensors[f"{number}.{name}.values"] = held.values
    header = {
        "version": VERSION,
        "kind": "family",
        "model": dict(state.model),
        "chunk_length": state.chunk_length,
        "streams": [_plain(stream) for stream in state.streams],
    }
    return header, _contiguous(tensors)


def put_together(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> State | LSTMState:
    """The inverse of `take_apart`."""
    if header["kind"] == "lstm":
        return LSTMState(hidden=tensors["hidden"], cell=tensors["cell"])
    streams = (_stream(plain, number, tensors) for number, plain in enumerate(header["streams"]))
    return State(model=header["model"], chunk_length=header["chunk_length"], streams=tuple(streams))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors writes no views.
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _plain(stream: Stream) -> dict[str, Any]:
    return {
        "rows": stream.rows,
        "position": stream.position,
        "starts": stream.starts,
        "banks": [list(key) for key in stream.banks],
        "num_caches": len(stream.cache),
        "cached": [[part.start, part.stop] for part in stream.cached],
    }


def _stream(plain: Mapping[str, Any], number: int, tensors: Mapping[str, Tensor]) -> Stream:
    def held(name: str) -> KeysValues:
        prefix = f"{number}.{name}"
        return KeysValues(tensors[f"{prefix}.keys"], tensors[f"{prefix}.values"])

    cached = plain["cached"]
    # Version 1 has a single range, written as two numbers.
    pairs = [cached] if cached and isinstance(cached[0], int) else cached
    return Stream(
        rows=tuple(plain["rows"]),
        position=plain["position"],
        starts=tuple(plain["starts"]),
        banks={(bank, layer): held(f"bank.{bank}.{layer}") for bank, layer in plain["banks"]},
        cache=tuple(held(f"cache.{place}") for place in range(plain["num_caches"])),
        cached=joined(range(*pair) for pair in pairs),
    )
