"""States on disk: safetensors for the numbers, JSON in its header for the rest. No pickle."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from staircase_attention import files
from staircase_attention.checks import check_integer, input_error
from staircase_attention.layers import KeysValues
from staircase_attention.models.lstm import LSTMState
from staircase_attention.models.state import STATE_RULE, State, Stream
from staircase_attention.plain import convert
from staircase_attention.schedules import joined, num_positions

# The metadata key that marks a file as a state.
HEADER = "staircase_attention.state"
# Increased when the layout changes; earlier versions are read, too. Since 3, files have checksums.
VERSION = 3
# The metadata key of a file's own checksum.
CHECKSUM = "sha256"

# Of keys and of values: rows, heads, tokens, units.
NUM_DIMENSIONS = 4
Numbers = tuple[int, ...]

# Plain data, and tensors by name.
Parts = tuple[dict[str, Any], dict[str, Tensor]]


def save_state(state: State | LSTMState, path: str | os.PathLike[str]) -> None:
    """Write a state to a file, whole or not at all."""
    if not isinstance(state, State | LSTMState):
        raise input_error(STATE_RULE, type(state).__name__, "pass such a state")
    target = Path(path)
    files.check_can_write(target, "a state")
    write_sealed(target, HEADER, *take_apart(state))


def load_state(path: str | os.PathLike[str]) -> State | LSTMState:
    """Read a state that `save_state` wrote."""
    header, tensors = read_sealed(Path(path), HEADER, "a state", VERSION)
    with files.as_written("a state", path, "save the state again"):
        return put_together(header, tensors)


def write_sealed(
    path: Path, key: str, header: Mapping[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write plain data and tensors to one file, with a checksum of all its bytes in it."""
    metadata = {key: json.dumps(header), CHECKSUM: files.NO_SUM.decode()}
    files.write_whole(path, files.sealed(save(tensors, metadata=metadata)))


def read_sealed(path: Path, key: str, what: str, version: int) -> Parts:
    """What `write_sealed` wrote; files of earlier versions may have no checksum."""
    if not path.is_file():
        rule = f"{what} is read from a file"
        raise FileNotFoundError(f"{rule}, got {path}, which is no file; check the path")
    with files.as_written(f"{what} in a safetensors file", path, "save it again"):
        content = files.read_file(path, most=None)
        is_sealed = files.check_seal(content)
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        size = int.from_bytes(content[:8], "little")
        metadata = files.parse_json(content[8 : 8 + size]).get("__metadata__", {})
        header: dict[str, Any] = files.parse_json(metadata.get(key, "{}"))
        found = header.get("version", "unknown")
        if not is_sealed and (found == version or CHECKSUM in metadata):
            raise ValueError("its checksum is gone")
    if found not in range(1, version + 1):
        rule = f"a file must hold {what} of version 1 to {version}"
        raise input_error(rule, f"{path} with version {found}", "pass a file that was saved as one")
    return header, tensors


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
        "streams": [
            {
                "rows": stream.rows,
                "position": stream.position,
                "starts": stream.starts,
                "banks": [list(key) for key in stream.banks],
                "num_caches": len(stream.cache),
                "cached": [[part.start, part.stop] for part in stream.cached],
            }
            for stream in state.streams
        ],
    }
    return header, _contiguous(tensors)


def put_together(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = ""
) -> State | LSTMState:
    """The inverse of `take_apart`, for the tensors whose names begin with a prefix."""
    own = [name for name in tensors if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): tensors[name] for name in own}
    if header["kind"] == "lstm":
        return LSTMState(hidden=tensors["hidden"], cell=tensors["cell"])
    streams = tuple(
        _stream(plain, number, tensors) for number, plain in enumerate(header["streams"])
    )
    rows = sorted(row for stream in streams for row in stream.rows)
    model, chunk_length = convert(dict[str, Any], header["model"], "model"), header["chunk_length"]
    convert(dict[str, Any], model["schedule"], "model.schedule")
    check_integer("chunk_length", chunk_length, minimum=1, example=1)
    if rows != list(range(len(rows))):
        raise ValueError(f"its rows are {rows}, not each one once")
    if sum(len(stream.tensors) for stream in streams) != len(tensors):
        raise ValueError("it has tensors that nothing names")
    return State(model=model, chunk_length=chunk_length, streams=streams)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors writes no views.
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _stream(plain: Mapping[str, Any], number: int, tensors: Mapping[str, Tensor]) -> Stream:
    def held(name: str) -> KeysValues:
        prefix = f"{number}.{name}"
        return KeysValues(tensors[f"{prefix}.keys"], tensors[f"{prefix}.values"])

    cached = plain["cached"]
    # Version 1 has a single range, written as two numbers.
    pairs = [cached] if cached and isinstance(cached[0], int) else cached
    rows, position, starts = (
        convert(hint, plain[name], name)
        for hint, name in ((Numbers, "rows"), (int, "position"), (Numbers, "starts"))
    )
    stream = Stream(
        rows=rows,
        position=position,
        starts=starts,
        banks={(bank, layer): held(f"bank.{bank}.{layer}") for bank, layer in plain["banks"]},
        cache=tuple(held(f"cache.{place}") for place in range(plain["num_caches"])),
        cached=joined(range(*pair) for pair in pairs),
    )
    num_cached = num_positions(stream.cached)
    if (
        len(starts) != len(rows)
        or not all(0 <= start <= position for start in starts)
        or any(tensor.dim() != NUM_DIMENSIONS for tensor in stream.tensors)
        or any(tensor.shape[0] != len(rows) for tensor in stream.tensors)
        or any(held.num_tokens != num_cached for held in stream.cache)
    ):
        raise ValueError(f"rows, positions and tensors of stream {number} differ")
    return stream
