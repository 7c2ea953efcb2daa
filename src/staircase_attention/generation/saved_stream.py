"""Streams on disk. A loaded stream continues token for token as the original would. No pickle.

One safetensors file: the state and the pending tokens as tensors, everything else as JSON in its
header. The weights are not in it, but a fingerprint of them is.
"""

import hashlib
import os
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.files import as_written, check_can_write
from staircase_attention.generation.sampling import SamplingConfig
from staircase_attention.generation.stepper import Model, Stepper, accelerate, device_of
from staircase_attention.generation.stream import Decode, NewToken, TokenStream
from staircase_attention.models import put_together, take_apart
from staircase_attention.models.exits import ExitBackend
from staircase_attention.models.sequence_model import describe
from staircase_attention.models.state_file import read_sealed, write_sealed
from staircase_attention.plain import convert, from_plain

# The metadata key that marks a file as a stream.
HEADER = "staircase_attention.stream"
# Increased when the layout changes; earlier versions are read, too. Since 3, files have checksums.
VERSION = 3
# Prefix of the state's tensors.
STATE = "state."
# How many numbers of each weight go into a fingerprint.
FINGERPRINT_NUMBERS = 4096

PathLike = str | os.PathLike[str]


def save_stream(stream: TokenStream, path: PathLike) -> None:
    """Write a stream in its present state, whole or not at all; the stream itself can continue."""
    target = Path(path)
    check_can_write(target, "a stream")
    state, tensors = take_apart(stream.stepper.state)
    model = stream.stepper.model
    header = {
        "version": VERSION,
        "model": identity(model),
        "weights": fingerprint(model),
        "sampling": asdict(stream.sampling),
        "max_tokens": stream.max_tokens,
        "stop_tokens": stream.stop_tokens,
        "rows": stream.rows,
        "recent": stream.recent,
        "num_made": stream.num_made,
        "waiting": [asdict(token) for token in stream.waiting],
        # As pairs: the keys of a JSON object would become strings.
        "finished": list(stream.finished.items()),
        "state": state,
        "text": None
        if stream.decode is None
        else {
            "stop_strings": stream.stop_strings,
            "held": [(row, held.hex()) for row, held in stream.held.items()],
        },
    }
    tensors = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
    tensors["pending"] = stream.pending
    write_sealed(target, HEADER, header, tensors)


def load_stream(path: PathLike, model: Model, *, decode: Decode | None = None) -> TokenStream:
    """Read a stream that `save_stream` wrote, to continue with the same model.

    Functions are not saved, so a stream of text needs its `decode`.
    """
    header, tensors = read_sealed(Path(path), HEADER, "a stream", VERSION)
    own = identity(model)
    with as_written("a stream", path, "save the stream again"):
        if header["version"] == 1:
            _update(header, tensors)
        text = header["text"] or {"stop_strings": (), "held": ()}
        is_own = (header["model"], header["weights"]) == (own, fingerprint(model))
        described = describe(header["model"])
        restored = put_together(header["state"], tensors, STATE)
    # With other weights the state would be valid and the continuation nonsense.
    if not is_own:
        is_same_shape = header["model"] == own
        other = "with other weights or another dtype" if is_same_shape else f"for {describe(own)}"
        rule = "a stream continues only with its own model and weights"
        received = f"{path} of {described} {other}"
        remedy = "load the checkpoint it was made with, with the same passes and exits"
        raise input_error(rule, received, remedy)
    if header["text"] is not None and decode is None:
        raise input_error("a stream of text continues with its decode", "none", "pass decode")
    accelerate(model)
    with as_written("a stream", path, "save the stream again"):
        stream = TokenStream(
            stepper=Stepper(model, restored.to(device_of(model))),
            rows=convert(tuple[int, ...], header["rows"], "rows"),
            recent=convert(list[list[int]], header["recent"], "recent"),
            sampling=from_plain(SamplingConfig, header["sampling"], "sampling"),
            max_tokens=header["max_tokens"],
            stop_tokens=convert(tuple[int, ...], header["stop_tokens"], "stop_tokens"),
            decode=decode,
            stop_strings=convert(tuple[str, ...], text["stop_strings"], "stop_strings"),
            held={row: bytes.fromhex(held) for row, held in text["held"]},
            num_made=convert(int, header["num_made"], "num_made"),
            waiting=deque(from_plain(NewToken, token) for token in header["waiting"]),
            finished=dict(header["finished"]),
        )
        num_rows = {len(stream.rows), len(stream.recent), restored.batch_size}
        seen = {token for row in stream.recent for token in row}
        is_whole = len(num_rows) == 1 and torch.equal(stream.pending, tensors["pending"])
        if not is_whole or stream.num_made < 0 or not seen <= {*range(model.vocab_size)}:
            raise ValueError("its rows and tokens do not fit each other")
    if header["version"] == 1 and header["text"] is not None and decode is not None:
        # In version 1 a token got its text when it was asked for.
        for place, one in enumerate(stream.waiting):
            text, why = stream.shown(one.row, one.token, decode([one.token]))
            stream.waiting[place] = replace(one, text=text, finish=why)
    return stream


def identity(model: Model) -> dict[str, Any]:
    """A model's shape as plain data, and its exits, which change what it says."""
    backend = getattr(model, "backend", None)
    sizes = {"vocab_size": model.vocab_size, "output_size": model.output_size}
    exits = {backend.rule: float(backend.threshold)} if isinstance(backend, ExitBackend) else {}
    return model.signature | sizes | exits


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


def _update(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give a header of version 1 the parts that version 2 has."""
    # -1 stood where a row had no token yet, and without a penalty there were none.
    both = zip(tensors["recent"].tolist(), tensors["pending"].tolist(), strict=True)
    header["recent"] = [[one for one in row if one >= 0] or [last] for row, last in both]
    names = ("row", "token", "logprob", "finish")
    header["waiting"] = [dict(zip(names, token, strict=True)) for token in header["waiting"]]
    if (text := header["text"]) is not None:
        # The bytes of an incomplete character came before those that may start a stop string.
        text["held"] = [(row, partial + held) for row, held, partial in text["tails"]]
