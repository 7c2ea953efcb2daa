"""Where a language model loses: by position in the document, and by the past in its state."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import input_error
from staircase_attention.data import TokenSplit
from staircase_attention.evaluation.scores import (
    Score,
    answered,
    autocast,
    doubling,
    evaluating,
    loss_and_wrong,
    score_by,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a text is read: by which model, in which pieces, and how much of it."""

    model: nn.Module
    split: TokenSplit
    num_lanes: int
    segment_length: int
    num_tokens: int
    """Tokens that are read, from the start of the split."""
    device: torch.device
    precision: torch.dtype = torch.float32
    carries_state: bool = True
    """Whether state is carried from segment to segment; else every segment is a text of its own."""
    end_symbol: int | None = None
    """The input before the first token of a stream; None: that token is not predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """The tokens that are predicted at once: consecutive ones in every row."""

    firsts: NDArray[np.int64]
    """Index of the first token of each row."""
    counts: NDArray[np.int64]
    """Number of tokens of each row."""

    @property
    def past(self) -> int:
        """The number of input tokens before the segment, in the row that has least."""
        return int(np.maximum(self.firsts - 1, 0).min())


def bits(loss: float) -> float:
    """Nats as bits."""
    return loss / math.log(2)


def loss_by_position(reading: Reading) -> dict[int, Score]:
    """The scores of the tokens at distances 1, 2-3, 4-7, ... from their document's first.

    The key is the lower bound of each range. A document's first token, which is predicted from the
    document before it, is under 0. Every token is counted once, as in `evaluate`.
    """
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)
    segments = list(_segments(reading))

    def positions(segment: Segment) -> NDArray[np.int64]:
        indices = segment.firsts[:, None] + np.arange(segment.counts.max())
        # The number of the document that each token [rows, time] belongs to.
        documents = np.searchsorted(starts, indices, side="right") - 1
        return doubling(indices - starts[np.maximum(documents, 0)])

    answers = answered(
        reading.model,
        (_batch(reading, segment) for segment in segments),
        device=reading.device,
        precision=reading.precision,
        carries_state=reading.carries_state,
    )
    return score_by(answers, {"position": map(positions, segments)})["position"]


def loss_by_past(reading: Reading, pasts: Sequence[int]) -> dict[int, Score]:
    """The scores of the same tokens when the state holds this many tokens before each segment.

    Segments with fewer tokens before them than the largest past are left out for all.
    """
    check_pasts(reading, pasts)
    segments = [segment for segment in _segments(reading) if segment.past >= max(pasts)]
    with evaluating(reading.model):
        return {
            past: Score.together(_score_after(reading, segment, past) for segment in segments)
            for past in pasts
        }


def check_pasts(reading: Reading, pasts: Sequence[int]) -> None:
    """Refuse pasts that the text does not have, before anything is computed."""
    if not reading.carries_state:
        raise input_error(
            "losses by past need a state that is carried", "an episodic text", "score by position"
        )
    if not pasts or min(pasts) < 0:
        received = min(pasts) if pasts else "none"
        raise input_error(
            "a past must be a number of tokens of at least 0", received, "use 0 for no past"
        )
    longest = max((segment.past for segment in _segments(reading)), default=0)
    if longest < max(pasts):
        raise input_error(
            "a past must be at most the tokens before the last segment of every lane, "
            f"{longest} tokens",
            max(pasts),
            "use a smaller past, or fewer lanes",
        )


def _score_after(reading: Reading, segment: Segment, past: int) -> Score:
    state = None
    if past:
        # The input of the first target is one token earlier, and not part of the past.
        begins = (segment.firsts - 1 - past).tolist()
        before = [reading.split.tokens(begin, begin + past) for begin in begins]
        _, state = _run(reading, np.stack(before).astype(np.int64), None)
    batch = _batch(reading, segment)
    logits, _ = _run(reading, batch.inputs, state)
    loss, wrong = loss_and_wrong(logits, torch.from_numpy(batch.targets).to(reading.device))
    return Score.of(loss.item(), wrong.item(), batch.num_answers)


def _run(reading: Reading, tokens: NDArray[np.int64], state: Any) -> Any:  # noqa: ANN401
    with autocast(reading.device, reading.precision):
        return reading.model(torch.from_numpy(tokens).to(reading.device), state)


def _segments(reading: Reading) -> Iterator[Segment]:
    segments = _stream(reading) if reading.carries_state else _episodes(reading)
    return (segment for segment in segments if segment.counts.any())


def _stream(reading: Reading) -> Iterator[Segment]:
    """Rows are lanes: contiguous parts of the text."""
    # Without an end symbol nothing comes before the first token to predict it from.
    first = 0 if reading.end_symbol is not None else 1
    num_targets = min(reading.num_tokens, reading.split.num_tokens - first)
    lanes = np.arange(reading.num_lanes + 1, dtype=np.int64)
    # Integer division spreads the remainder: lanes differ by one token at most.
    bounds = first + lanes * num_targets // reading.num_lanes
    begins, lengths = bounds[:-1], np.diff(bounds)
    for offset in range(0, int(lengths.max()), reading.segment_length):
        counts = np.clip(lengths - offset, 0, reading.segment_length)
        yield Segment(firsts=begins + offset, counts=counts)


def _episodes(reading: Reading) -> Iterator[Segment]:
    """Rows are documents, or pieces of longer ones, without the first token of each."""
    stop = min(reading.num_tokens, reading.split.num_tokens)
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)
    bounds = [*starts[starts < stop].tolist(), stop]
    pieces = [range(begin, end, reading.segment_length) for begin, end in pairwise(bounds)]
    begins = np.fromiter(chain.from_iterable(pieces), dtype=np.int64)
    # A piece ends where the next begins, in the same document or another.
    lengths = np.diff(np.append(begins, stop))
    for number in range(0, len(begins), reading.num_lanes):
        here = slice(number, number + reading.num_lanes)
        yield Segment(firsts=begins[here] + 1, counts=lengths[here] - 1)


def _batch(reading: Reading, segment: Segment) -> Batch:
    """Inputs and targets of a segment; short rows are padded."""
    shape = len(segment.firsts), int(segment.counts.max())
    inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    rows = zip(segment.firsts.tolist(), segment.counts.tolist(), strict=True)
    for row, (first, count) in enumerate(rows):
        tokens = reading.split.tokens(max(first - 1, 0), first + count)
        # The stream begins as if a document had ended before it.
        if first == 0 and reading.end_symbol is not None:
            tokens = np.append(reading.end_symbol, tokens)
        inputs[row, :count], targets[row, :count] = tokens[:-1], tokens[1:]
    is_padding = np.arange(shape[1]) >= segment.counts[:, None]
    return Batch(inputs=inputs, targets=targets, is_padding=is_padding)
