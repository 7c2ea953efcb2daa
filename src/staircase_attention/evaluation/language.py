"""Where in a text a language model loses: by position in the document, and by the past it kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from staircase_attention.evaluation.doublings import doubling
from staircase_attention.evaluation.evaluate import autocast


class Tokens(Protocol):
    """A text as numbers: what a split of a corpus offers."""

    @property
    def num_tokens(self) -> int:
        """How many there are."""

    @property
    def document_starts(self) -> NDArray[Any]:
        """Index of every document's first token."""

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Those from `start` to `stop` - 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a text is read: by whom, in what pieces, and how much of it."""

    model: nn.Module
    split: Tokens
    num_lanes: int
    segment_length: int
    num_tokens: int
    """Tokens that are read, the first of the split."""
    device: torch.device
    precision: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean loss, in nats, and of how many tokens."""

    loss: float
    num_tokens: int


def bits(loss: float) -> float:
    """Nats as bits."""
    return loss / math.log(2)


def loss_by_position(reading: Reading) -> dict[int, Mean]:
    """Mean loss of the tokens at distances 1, 2-3, 4-7, ... from their document's first.

    The key is the lower bound of each range; a document's first token, which nothing but the
    document before it announces, is under 0.
    """
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)
    sums: dict[int, list[float]] = {}
    for indices, losses in token_losses(reading):
        document = np.searchsorted(starts, indices, side="right") - 1
        position = indices - starts[np.maximum(document, 0)]
        buckets = doubling(position)
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            total = sums.setdefault(bucket, [0.0, 0])
            total[0] += float(losses[here].sum())
            total[1] += int(here.sum())
    return {
        bucket: Mean(loss=total / count, num_tokens=int(count))
        for bucket, (total, count) in sorted(sums.items())
    }


@torch.no_grad()
def loss_by_past(reading: Reading, pasts: Sequence[int]) -> dict[int, Mean]:
    """Mean loss of the same tokens when the state holds only so many tokens before each segment.

    Segments that have less than the largest past before them are left out for all.
    """
    segments = [indices for indices in _segments(reading) if int(indices.min()) >= max(pasts)]
    return {past: _with_past(reading, segments, past) for past in pasts}


def _with_past(reading: Reading, segments: Sequence[NDArray[np.int64]], past: int) -> Mean:
    total, count = 0.0, 0
    for indices in segments:
        state = None
        if past:
            before = indices[:, :1] + np.arange(-past, 0)[None, :]
            _, state = _run(reading, _take(reading.split, before), None)
        losses, _ = _score(reading, indices, state)
        total += float(losses.sum())
        count += losses.size
    return Mean(loss=total / max(1, count), num_tokens=count)


@torch.no_grad()
def token_losses(reading: Reading) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Every target's index in the split and its loss, state carried along every lane."""
    state = None
    for indices in _segments(reading):
        losses, state = _score(reading, indices, state)
        yield (indices + 1).ravel(), losses.ravel()


def _segments(reading: Reading) -> Iterator[NDArray[np.int64]]:
    """The indices of the inputs, (lanes, segment), lanes being contiguous parts of the text."""
    usable = min(reading.num_tokens, reading.split.num_tokens - 1)
    lane_length = usable // reading.num_lanes
    firsts = np.arange(reading.num_lanes, dtype=np.int64)[:, None] * lane_length
    for start in range(0, lane_length, reading.segment_length):
        stop = min(start + reading.segment_length, lane_length)
        yield firsts + np.arange(start, stop, dtype=np.int64)[None, :]


def _score(
    reading: Reading,
    indices: NDArray[np.int64],
    state: Any,  # noqa: ANN401
) -> tuple[NDArray[np.float64], Any]:
    logits, state = _run(reading, _take(reading.split, indices), state)
    targets = torch.from_numpy(_take(reading.split, indices + 1)).to(reading.device)
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="none"
    )
    return losses.double().cpu().numpy().reshape(indices.shape), state


def _run(reading: Reading, tokens: NDArray[np.int64], state: Any) -> Any:  # noqa: ANN401
    inputs = torch.from_numpy(tokens).to(reading.device)
    with autocast(reading.device, reading.precision):
        return reading.model(inputs, state)


def _take(split: Tokens, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens at some rows of consecutive indices."""
    rows = [split.tokens(int(row[0]), int(row[-1]) + 1) for row in indices]
    return np.stack(rows).astype(np.int64)
