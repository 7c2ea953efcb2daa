"""States on disk: safetensors for the numbers, JSON in its header for the rest. No pickle."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from staircase_attention.layers import KeysValues
from staircase_attention.models.state import State, Stream

HEADER = "staircase_attention.state"
"""The metadata key that marks a file as a state."""
VERSION = 1
"""Counted up when the layout changes."""


def save_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a state to a file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for number, stream in enumerate(state.streams):
        for (bank, layer), held in stream.banks.items():
            _put(tensors, f"{number}.bank.{bank}.{layer}", held)
        for place, held in enumerate(stream.cache):
            _put(tensors, f"{number}.cache.{place}", held)
    header = {
        "version": VERSION,
        "model": dict(state.model),
        "chunk_length": state.chunk_length,
        "streams": [_plain(stream) for stream in state.streams],
    }
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        scratch = Path(folder) / target.name
        save_file(tensors, scratch, metadata={HEADER: json.dumps(header)})
        scratch.replace(target)


def load_state(path: str | os.PathLike[str]) -> State:
    """Read a state that `save_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            header = _header((file.metadata() or {}).get(HEADER), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"a state file is a whole safetensors file, got {os.fspath(path)} ({error}); "
            "save the state again"
        ) from error
    streams = (_stream(plain, number, tensors) for number, plain in enumerate(header["streams"]))
    return State(model=header["model"], chunk_length=header["chunk_length"], streams=tuple(streams))


def _header(text: str | None, path: str | os.PathLike[str]) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(text) if text else {}
    if header.get("version") != VERSION:
        found = f"version {header['version']}" if header else "no state in it"
        raise ValueError(
            f"a state file holds a state of version {VERSION}, got {os.fspath(path)} with {found}; "
            "give a file that save_state of this version wrote"
        )
    return header


def _put(tensors: dict[str, Tensor], name: str, held: KeysValues) -> None:
    tensors[f"{name}.keys"] = held.keys.detach().contiguous()
    tensors[f"{name}.values"] = held.values.detach().contiguous()


def _plain(stream: Stream) -> dict[str, Any]:
    facts = asdict(Stream(rows=stream.rows, position=stream.position, starts=stream.starts))
    return {
        "rows": facts["rows"],
        "position": facts["position"],
        "starts": facts["starts"],
        "banks": [list(key) for key in stream.banks],
        "num_caches": len(stream.cache),
        "cached": [stream.cached.start, stream.cached.stop],
    }


def _stream(plain: dict[str, Any], number: int, tensors: dict[str, Tensor]) -> Stream:
    def held(name: str) -> KeysValues:
        prefix = f"{number}.{name}"
        return KeysValues(tensors[f"{prefix}.keys"], tensors[f"{prefix}.values"])

    return Stream(
        rows=tuple(plain["rows"]),
        position=plain["position"],
        starts=tuple(plain["starts"]),
        banks={(bank, layer): held(f"bank.{bank}.{layer}") for bank, layer in plain["banks"]},
        cache=tuple(held(f"cache.{place}") for place in range(plain["num_caches"])),
        cached=range(*plain["cached"]),
    )
