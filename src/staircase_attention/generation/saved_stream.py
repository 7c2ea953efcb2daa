"""Streams on disk, to be gone on with elsewhere, token for token the same. No pickle.

One safetensors file: the state, the pending and the recent tokens as tensors, and all else as JSON
in its header. Weights are not in it, but a fingerprint of them is.
"""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from staircase_attention.files import check_folder_of, write_whole
from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.drive import Model, device_of, fingerprint, identity
from staircase_attention.generation.stop import StopStrings, TextTail
from staircase_attention.generation.stream import NewToken, Plan, Progress, TokenStream
from staircase_attention.generation.text import Decode, TextStream
from staircase_attention.models import put_together, take_apart
from staircase_attention.models.sequence_model import describe

HEADER = "staircase_attention.stream"
"""The metadata key that marks a file as a stream."""
VERSION = 1
"""Counted up when the layout changes."""
STATE = "state."
"""Prefix of the state's tensors."""

PathLike = str | os.PathLike[str]


def save_stream(stream: TokenStream | TextStream, path: PathLike) -> None:
    """Write a stream as it stands, whole or not at all; it can go on all the same."""
    target = Path(path)
    check_folder_of(target, "a stream")
    tokens = stream.tokens if isinstance(stream, TextStream) else stream
    header, tensors = _take_apart(tokens)
    if isinstance(stream, TextStream):
        header["text"] = _plain_text(stream)
    write_whole(target, save(tensors, metadata={HEADER: json.dumps(header)}))


def load_stream(path: PathLike, model: Model) -> TokenStream:
    """Read a stream of tokens that `save_stream` wrote, to go on with the model it belongs to."""
    header, tensors = _read(path)
    if header["text"] is not None:
        raise ValueError(
            f"load_stream reads streams of tokens, got {os.fspath(path)} with a stream of text; "
            "use load_text_stream"
        )
    return _put_together(header, tensors, model, path)


def load_text_stream(path: PathLike, model: Model, *, decode: Decode) -> TextStream:
    """Read a stream of text that `save_stream` wrote; functions are not saved, so give `decode`."""
    header, tensors = _read(path)
    plain = header["text"]
    if plain is None:
        raise ValueError(
            f"load_text_stream reads streams of text, got {os.fspath(path)} with a stream of "
            "tokens; use load_stream"
        )
    stops = StopStrings(tuple(plain["stop_strings"]))
    tails = {
        row: TextTail(stops, held=bytes.fromhex(held), partial=bytes.fromhex(partial))
        for row, held, partial in plain["tails"]
    }
    tokens = _put_together(header, tensors, model, path)
    return TextStream(tokens, decode=decode, stops=stops, tails=tails)


def _take_apart(stream: TokenStream) -> tuple[dict[str, Any], dict[str, Tensor]]:
    plan, progress = stream.plan, stream.progress
    state, state_tensors = take_apart(progress.state)
    header = {
        "version": VERSION,
        "model": identity(stream.model),
        "weights": fingerprint(stream.model),
        "sampling": plan.sampling.to_dict(),
        "max_tokens": plan.max_tokens,
        "stop_tokens": plan.stop_tokens,
        "rows": progress.rows,
        "num_made": progress.num_made,
        "waiting": [_plain_token(token) for token in progress.waiting],
        "finished": list(progress.finished.items()),
        "state": state,
        "text": None,
    }
    tensors = {f"{STATE}{name}": tensor for name, tensor in state_tensors.items()}
    return header, tensors | {"pending": progress.pending, "recent": progress.recent}


def _put_together(
    header: dict[str, Any], tensors: dict[str, Tensor], model: Model, path: PathLike
) -> TokenStream:
    _check_model(header, model, path)
    parts = {
        name.removeprefix(STATE): tensor
        for name, tensor in tensors.items()
        if name.startswith(STATE)
    }
    plan = Plan(
        sampling=SamplingConfig(**header["sampling"]),
        max_tokens=header["max_tokens"],
        stop_tokens=tuple(header["stop_tokens"]),
    )
    progress = Progress(
        rows=tuple(header["rows"]),
        state=put_together(header["state"], parts).to(device_of(model)),
        pending=tensors["pending"],
        recent=tensors["recent"],
        num_made=header["num_made"],
        waiting=deque(_token(plain) for plain in header["waiting"]),
        finished=dict(header["finished"]),
    )
    return TokenStream(model, plan, progress)


def _plain_text(stream: TextStream) -> dict[str, Any]:
    tails = [[row, tail.held.hex(), tail.partial.hex()] for row, tail in stream.tails.items()]
    return {"stop_strings": stream.stops.strings, "tails": tails}


def _plain_token(token: NewToken) -> list[Any]:
    return [token.row, token.token, token.logprob, token.finish]


def _token(plain: list[Any]) -> NewToken:
    row, token, logprob, finish = plain
    return NewToken(row=row, token=token, logprob=logprob, finish=finish)


def _check_model(header: dict[str, Any], model: Model, path: PathLike) -> None:
    if header["model"] != identity(model):
        raise ValueError(
            f"a stream goes on with the model it began with; got {os.fspath(path)} of "
            f"{describe(header['model'])} for {describe(identity(model))}; load that model"
        )
    if header["weights"] != fingerprint(model):
        raise ValueError(
            f"a stream goes on with the weights it began with; got {os.fspath(path)} of "
            f"{describe(header['model'])} with other weights or another dtype; "
            "load the checkpoint it was made with"
        )


def _read(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        is_there = Path(path).exists()
        kind, received = (ValueError, "no file") if is_there else (FileNotFoundError, "not there")
        raise kind(
            f"a stream is read from the file it was saved to, got {os.fspath(path)}, which is "
            f"{received}; give a file that save_stream wrote"
        )
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"a stream file is a whole safetensors file, got {os.fspath(path)} ({error}); "
            "save the stream again"
        ) from error
    header: dict[str, Any] = json.loads(text) if text else {}
    if header.get("version") != VERSION:
        found = f"version {header['version']}" if header else "no stream in it"
        raise ValueError(
            f"a stream file holds a stream of version {VERSION}, got {os.fspath(path)} with "
            f"{found}; give a file that save_stream of this version wrote"
        )
    return header, tensors
