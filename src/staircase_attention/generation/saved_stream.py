"""Streams on disk. A loaded stream continues token for token as the original would. No pickle.

One safetensors file: the state, the pending and the recent tokens as tensors, everything else as
JSON in its header. The weights are not in it, but a fingerprint of them is.
"""

import hashlib
import json
import os
from collections import deque
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.files import check_can_write, write_whole
from staircase_attention.generation.sampling import SamplingConfig
from staircase_attention.generation.stepper import Model, accelerate, device_of
from staircase_attention.generation.stream import GenerationStatus, NewToken, Plan, TokenStream
from staircase_attention.generation.text import Decode, StopStrings, TextStream, TextTail
from staircase_attention.models import put_together, take_apart
from staircase_attention.models.sequence_model import describe

# The metadata key that marks a file as a stream.
HEADER = "staircase_attention.stream"
# Increased when the layout changes.
VERSION = 1
# Prefix of the state's tensors.
STATE = "state."
# How many numbers of each weight go into a fingerprint.
FINGERPRINT_NUMBERS = 4096

PathLike = str | os.PathLike[str]


def save_stream(stream: TokenStream | TextStream, path: PathLike) -> None:
    """Write a stream in its present state, whole or not at all; the stream itself can continue."""
    target = Path(path)
    check_can_write(target, "a stream")
    tokens = stream.tokens if isinstance(stream, TextStream) else stream
    plan, status = tokens.plan, tokens.status
    state, state_tensors = take_apart(status.state)
    header = {
        "version": VERSION,
        "model": identity(tokens.model),
        "weights": fingerprint(tokens.model),
        "sampling": plan.sampling.to_dict(),
        "max_tokens": plan.max_tokens,
        "stop_tokens": plan.stop_tokens,
        "rows": status.rows,
        "num_made": status.num_made,
        "waiting": [astuple(token) for token in status.waiting],
        # As pairs: the keys of a JSON object would become strings.
        "finished": list(status.finished.items()),
        "state": state,
        "text": _plain_text(stream) if isinstance(stream, TextStream) else None,
    }
    tensors = {f"{STATE}{name}": tensor for name, tensor in state_tensors.items()}
    tensors |= {"pending": status.pending, "recent": status.recent}
    write_whole(target, save(tensors, metadata={HEADER: json.dumps(header)}))


def load_stream(path: PathLike, model: Model) -> TokenStream:
    """Read a token stream that `save_stream` wrote, to continue with the same model."""
    header, tensors = _read(path)
    if header["text"] is not None:
        raise input_error(
            "load_stream reads token streams", f"{path} with a text stream", "use load_text_stream"
        )
    return _token_stream(header, tensors, model, path)


def load_text_stream(path: PathLike, model: Model, *, decode: Decode) -> TextStream:
    """Read a text stream that `save_stream` wrote; functions are not saved, so pass `decode`."""
    header, tensors = _read(path)
    text = header["text"]
    if text is None:
        raise input_error(
            "load_text_stream reads text streams", f"{path} with a token stream", "use load_stream"
        )
    stops = StopStrings(tuple(text["stop_strings"]))
    tails = {
        row: TextTail(stops, held=bytes.fromhex(held), partial=bytes.fromhex(partial))
        for row, held, partial in text["tails"]
    }
    tokens = _token_stream(header, tensors, model, path)
    return TextStream(tokens, decode=decode, stops=stops, tails=tails)


def identity(model: Model) -> dict[str, Any]:
    """A model's shape as plain data."""
    return {
        **model.signature,
        "vocab_size": model.vocab_size,
        "output_size": model.output_size,
    }


def fingerprint(model: Model) -> str:
    """A checksum that differs between models of the same shape with different weights.

    It covers every weight's name, dtype and shape, and up to 4,096 of its numbers at equal
    distances: the same on every machine, and fast for any model size.
    """
    digest = hashlib.sha256()
    # Sorted, so that the order in which modules were made does not matter.
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        numbers = weight.detach().flatten()
        # Rounded up, and at least 1 where a tensor is empty.
        stride = -(-numbers.numel() // FINGERPRINT_NUMBERS) or 1
        digest.update(numbers[::stride].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain_text(stream: TextStream) -> dict[str, Any]:
    tails = [[row, tail.held.hex(), tail.partial.hex()] for row, tail in stream.tails.items()]
    return {"stop_strings": stream.stops.strings, "tails": tails}


def _token_stream(
    header: dict[str, Any], tensors: dict[str, Tensor], model: Model, path: PathLike
) -> TokenStream:
    _check_model(header, model, path)
    accelerate(model)
    state = {
        name.removeprefix(STATE): tensor
        for name, tensor in tensors.items()
        if name.startswith(STATE)
    }
    plan = Plan(
        sampling=SamplingConfig(**header["sampling"]),
        max_tokens=header["max_tokens"],
        stop_tokens=tuple(header["stop_tokens"]),
    )
    waiting = [
        NewToken(row=row, token=token, logprob=logprob, finish=finish)
        for row, token, logprob, finish in header["waiting"]
    ]
    status = GenerationStatus(
        rows=tuple(header["rows"]),
        state=put_together(header["state"], state).to(device_of(model)),
        pending=tensors["pending"],
        recent=tensors["recent"],
        num_made=header["num_made"],
        waiting=deque(waiting),
        finished=dict(header["finished"]),
    )
    return TokenStream(model, plan, status)


def _check_model(header: dict[str, Any], model: Model, path: PathLike) -> None:
    saved = describe(header["model"])
    if header["model"] != identity(model):
        raise input_error(
            "a stream continues only with its own model",
            f"{path} of {saved} for {describe(identity(model))}",
            "load that model",
        )
    # With other weights the state would be valid and the continuation nonsense.
    if header["weights"] != fingerprint(model):
        raise input_error(
            "a stream continues only with its own weights",
            f"{path} of {saved} with other weights or another dtype",
            "load the checkpoint it was made with",
        )


def _read(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    rule = "a stream is read from a file that save_stream wrote"
    if not Path(path).exists():
        raise FileNotFoundError(f"{rule}, got {path}, which does not exist; check the path")
    if not Path(path).is_file():
        raise input_error(rule, f"{path}, which is not a file", "check the path")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise input_error(
            rule, f"{path}, not a whole safetensors file ({error})", "save the stream again"
        ) from error
    header: dict[str, Any] = json.loads(text) if text else {}
    if header.get("version") != VERSION:
        found = f"version {header['version']}" if header else "no stream in it"
        raise input_error(
            f"{rule}, of version {VERSION}", f"{path} with {found}", "save the stream again"
        )
    return header, tensors
