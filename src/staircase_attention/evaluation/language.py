"""Where in a text a language model loses: by position in the document, and by the past it kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from staircase_attention.batches import IGNORED
from staircase_attention.evaluation.doublings import doubling
from staircase_attention.evaluation.evaluate import autocast
from staircase_attention.generation.drive import answering


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
    carries_state: bool = True
    """Whether lanes go on from segment to segment; else each segment is a text, or part of one."""
    end_symbol: int | None = None
    """What comes before the first token of a stream; None: that one token is not foretold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean loss, in nats, and of how many tokens."""

    loss: float
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Which tokens are foretold at once: some consecutive ones in every row."""

    firsts: NDArray[np.int64]
    """Index of the first of each row."""
    counts: NDArray[np.int64]
    """How many there are in each row."""


def bits(loss: float) -> float:
    """Nats as bits."""
    return loss / math.log(2)


def loss_by_position(reading: Reading) -> dict[int, Mean]:
    """Mean loss of the tokens at distances 1, 2-3, 4-7, ... from their document's first.

    The key is the lower bound of each range; a document's first token, which nothing but the
    document before it announces, is under 0. All tokens are counted once, as `evaluate` counts
    them, so that the means are parts of the whole.
    """
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)
    sums: dict[int, list[float]] = {}
    state = None
    with answering(reading.model):
        for segment in _segments(reading):
            before = state if reading.carries_state else None
            indices, losses, state = _score(reading, segment, before)
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


def loss_by_past(reading: Reading, pasts: Sequence[int]) -> dict[int, Mean]:
    """Mean loss of the same tokens when the state holds only so many tokens before each segment.

    Segments that have less than the largest past before them are left out for all.
    """
    check_pasts(reading, pasts)
    segments = [segment for segment in _segments(reading) if _past_of(segment) >= max(pasts)]
    with answering(reading.model):
        return {past: _with_past(reading, segments, past) for past in pasts}


def check_pasts(reading: Reading, pasts: Sequence[int]) -> None:
    """Refuse pasts that no loss can be given for; nothing is scored for it."""
    if not reading.carries_state:
        raise ValueError(
            "Reading.carries_state must be True for losses by past, got False; use loss_by_position"
        )
    if not pasts or min(pasts) < 0:
        received = min(pasts) if pasts else "none"
        raise ValueError(
            f"a past must be a number of tokens of at least 0, got {received}; use 0 for no past"
        )
    longest = max(map(_past_of, _segments(reading)), default=-1)
    if longest < max(pasts):
        raise ValueError(
            f"a past must be at most what comes before the last segment of every lane, "
            f"{max(longest, 0)} tokens, got {max(pasts)}; use a smaller past, or fewer lanes"
        )


def _past_of(segment: Segment) -> int:
    """How many tokens that the model reads come before it, in every row."""
    return int(np.maximum(segment.firsts - 1, 0).min())


def _with_past(reading: Reading, segments: Sequence[Segment], past: int) -> Mean:
    total, count = 0.0, 0
    for segment in segments:
        state = None
        if past:
            begins = (segment.firsts - 1 - past).tolist()
            before = [reading.split.tokens(begin, begin + past) for begin in begins]
            _, state = _run(reading, np.stack(before).astype(np.int64), None)
        _, losses, _ = _score(reading, segment, state)
        total += float(losses.sum())
        count += losses.size
    return Mean(loss=total / count, num_tokens=count)


def _segments(reading: Reading) -> Iterator[Segment]:
    """What is foretold, segment after segment."""
    segments = _stream(reading) if reading.carries_state else _episodes(reading)
    return (segment for segment in segments if segment.counts.any())


def _stream(reading: Reading) -> Iterator[Segment]:
    """Rows are lanes, which are contiguous parts of the text."""
    first = 0 if reading.end_symbol is not None else 1
    num_targets = min(reading.num_tokens, reading.split.num_tokens - first)
    lanes = np.arange(reading.num_lanes + 1, dtype=np.int64)
    bounds = first + lanes * num_targets // reading.num_lanes
    begins, lengths = bounds[:-1], np.diff(bounds)
    for offset in range(0, int(lengths.max()), reading.segment_length):
        counts = np.clip(lengths - offset, 0, reading.segment_length)
        yield Segment(firsts=begins + offset, counts=counts)


def _episodes(reading: Reading) -> Iterator[Segment]:
    """Rows are documents, or pieces of longer ones, all but the first token of each."""
    stop = min(reading.num_tokens, reading.split.num_tokens)
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)
    bounds = [*starts[starts < stop].tolist(), stop]
    pieces = [range(begin, end, reading.segment_length) for begin, end in pairwise(bounds)]
    begins = np.fromiter(chain.from_iterable(pieces), dtype=np.int64)
    lengths = np.diff(np.append(begins, stop))
    for number in range(0, len(begins), reading.num_lanes):
        here = slice(number, number + reading.num_lanes)
        yield Segment(firsts=begins[here] + 1, counts=lengths[here] - 1)


def _score(
    reading: Reading,
    segment: Segment,
    state: Any,  # noqa: ANN401
) -> tuple[NDArray[np.int64], NDArray[np.float64], Any]:
    """The indices of the tokens that are foretold, their losses, and the state after them."""
    inputs, targets = _take(reading, segment)
    logits, state = _run(reading, inputs, state)
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1),
        torch.from_numpy(targets).to(reading.device).flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    asked = targets != IGNORED
    indices = segment.firsts[:, None] + np.arange(targets.shape[1])
    return indices[asked], losses.double().cpu().numpy().reshape(targets.shape)[asked], state


def _run(reading: Reading, tokens: NDArray[np.int64], state: Any) -> Any:  # noqa: ANN401
    inputs = torch.from_numpy(tokens).to(reading.device)
    with autocast(reading.device, reading.precision):
        return reading.model(inputs, state)


def _take(reading: Reading, segment: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets, (rows, most tokens of a row); short rows are filled up."""
    shape = len(segment.firsts), int(segment.counts.max())
    inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    rows = zip(segment.firsts.tolist(), segment.counts.tolist(), strict=True)
    for row, (first, count) in enumerate(rows):
        tokens = reading.split.tokens(max(first - 1, 0), first + count)
        if first == 0 and reading.end_symbol is not None:
            tokens = np.append(reading.end_symbol, tokens)
        inputs[row, :count], targets[row, :count] = tokens[:-1], tokens[1:]
    return inputs, targets
