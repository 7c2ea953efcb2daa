"""Where a language model loses: by position in the document, and by the past in its state."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


class Indices:
    """A split whose tokens are their own indices: its batches say which token stands where."""

    def __init__(self, split: TokenSplit) -> None:
        self.num_tokens, self.document_starts = split.num_tokens, split.document_starts
        self.end_symbol = None if split.end_symbol is None else IGNORED

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """The indices from start up to stop."""
        return np.arange(start, stop)

    def rows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The indices from each start on."""
        return (starts[:, None] + np.arange(length)) % self.num_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a text is read: by which model, and in which batches."""

    model: nn.Module
    split: TokenSplit
    deal: Callable[[Any], Iterable[Batch]]
    """The batches of a split."""
    device: torch.device
    precision: torch.dtype = torch.float32
    carries_state: bool = True
    """Whether state is carried from batch to batch; else every row is a text of its own."""

    def indices(self) -> Iterable[NDArray[np.int64]]:
        """The index of every target, batch by batch; IGNORED where there is none."""
        return (batch.targets for batch in self.deal(Indices(self.split)))


def bits(loss: float) -> float:
    """Nats as bits."""
    return loss / math.log(2)


def loss_by_position(reading: Reading) -> dict[int, Score]:
    """The scores of the tokens at distances 1, 2-3, 4-7, ... from their document's first.

    The key is the lower bound of each range. A document's first token, which is predicted from the
    document before it, is under 0. Every token is counted once, as in `evaluate`.
    """
    starts = np.asarray(reading.split.document_starts, dtype=np.int64)

    def positions(indices: NDArray[np.int64]) -> NDArray[np.int64]:
        # The number of the document that each token [rows, time] belongs to.
        documents = np.searchsorted(starts, indices, side="right") - 1
        return doubling(indices - starts[np.maximum(documents, 0)])

    answers = answered(
        reading.model,
        reading.deal(reading.split),
        device=reading.device,
        precision=reading.precision,
        carries_state=reading.carries_state,
    )
    return score_by(answers, {"position": map(positions, reading.indices())})["position"]


def loss_by_past(reading: Reading, pasts: Sequence[int]) -> dict[int, Score]:
    """The scores of the same tokens when the state holds this many tokens before each segment.

    Segments with fewer tokens before them than the largest past are left out for all.
    """
    check_pasts(reading, pasts)

    def scores(past: int) -> Iterable[Score]:
        batches = zip(reading.deal(reading.split), reading.indices(), strict=True)
        for batch, indices in batches:
            if past_of(indices) >= max(pasts):
                yield _score_after(reading, batch, indices[:, 0], past)

    with evaluating(reading.model):
        return {past: Score.together(scores(past)) for past in pasts}


def past_of(indices: NDArray[np.int64]) -> int:
    """The number of input tokens before a segment, in the row that has least."""
    firsts = indices[indices[:, 0] != IGNORED, 0]
    return int(max(firsts.min() - 1, 0))


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
    longest = max(map(past_of, reading.indices()), default=0)
    if longest < max(pasts):
        raise input_error(
            "a past must be at most the tokens before the last segment of every lane, "
            f"{longest} tokens",
            max(pasts),
            "use a smaller past, or fewer lanes",
        )


def _score_after(reading: Reading, batch: Batch, firsts: NDArray[np.int64], past: int) -> Score:
    """The score of a batch when the state of each row holds the tokens before its first target."""
    state = None
    if past:
        # The input of the first target is one token earlier, and not part of the past. Rows
        # without a target may hold anything.
        begins = np.maximum(firsts - 1 - past, 0)
        before = [reading.split.tokens(begin, begin + past) for begin in begins.tolist()]
        _, state = _run(reading, np.stack(before).astype(np.int64), None)
    logits, _ = _run(reading, batch.inputs, state)
    loss, wrong = loss_and_wrong(logits, torch.from_numpy(batch.targets).to(reading.device))
    return Score.of(loss.item(), wrong.item(), batch.num_answers)


def _run(reading: Reading, tokens: NDArray[np.int64], state: Any) -> Any:  # noqa: ANN401
    with autocast(reading.device, reading.precision):
        return reading.model(torch.from_numpy(tokens).to(reading.device), state)
