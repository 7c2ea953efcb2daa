"""Batches of a split whose rows are contiguous streams, straight from mapped memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import check_fields, check_integer, input_error
from staircase_attention.data.corpus import TokenSplit


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPosition:
    """The position of all lanes: all that is needed to resume exactly there."""

    update: int
    """Batches given so far."""
    offset: int
    """Tokens that each lane has given so far."""
    num_lanes: int
    """The number of lanes, which determines where they start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLanes:
    """Training batches: the split is a ring, on which L lanes start at equal distances.

    After the last token of the split comes the first. When every lane has reached the start of
    the next one, an epoch is over: every token has been given once. Each lane then continues into
    what was the next one's part, without a break in its stream.

        position = lanes.first_position()
        batch, position = lanes.batch(position)
    """

    split: TokenSplit
    num_lanes: int
    """Rows of the batch, over all processes."""
    segment_length: int
    """Tokens of a lane in one batch."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.split.num_tokens < self.num_lanes:
            rule = f"a split must have at least one token for each of {self.num_lanes} lanes"
            raise input_error(rule, self.split.num_tokens, "use fewer lanes, or more text")

    def first_position(self) -> TokenPosition:
        """Every lane at its start."""
        return TokenPosition(update=0, offset=0, num_lanes=self.num_lanes)

    def batch(self, position: TokenPosition) -> tuple[Batch, TokenPosition]:
        """The batch at a position, and the position after it."""
        if position.num_lanes != self.num_lanes:
            rule = f"a position must have {self.num_lanes} lanes, as its TokenLanes have"
            remedy = "resume with the num_lanes that the position was saved with"
            raise input_error(rule, position.num_lanes, remedy)
        starts = lane_starts(self.split.num_tokens, self.num_lanes) + position.offset
        # One token more: the target of the last input.
        rows = self.split.rows(starts, self.segment_length + 1)
        inputs, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        offset = position.offset + self.segment_length
        after = replace(position, update=position.update + 1, offset=offset)
        return Batch(inputs=inputs, targets=targets), after


def lane_starts(num_tokens: int, num_lanes: int) -> NDArray[np.int64]:
    """Where lanes start, at distances that differ by at most one.

    >>> lane_starts(10, 4).tolist()
    [0, 2, 5, 7]
    """
    return np.arange(num_lanes, dtype=np.int64) * num_tokens // num_lanes


def evaluation_batches(
    split: TokenSplit, *, num_lanes: int, segment_length: int, num_tokens: int | None = None
) -> Iterator[Batch]:
    """Every token of a split predicted exactly once, in lanes that continue across batches.

    With `num_tokens`, only the first tokens of the split are used. A lane predicts its own part,
    given the token before that part and then all of the part; the end of a lane is padding. An
    end symbol precedes the very first token; without one, that token is not predicted. There are
    at most as many lanes as tokens, and segments are no longer than the longest lane.
    """
    check_integer("num_lanes", num_lanes, minimum=1, example=512)
    check_integer("segment_length", segment_length, minimum=1, example=256)
    first_target = 0 if split.end_symbol is not None else 1
    num_targets = split.num_tokens - first_target
    if num_tokens is not None:
        check_integer("num_tokens", num_tokens, minimum=1, example=16_384)
        num_targets = min(num_tokens, num_targets)
    # Both [lanes]: the first target of each lane, and the one after its last.
    starts = first_target + lane_starts(num_targets, min(num_lanes, max(1, num_targets)))
    ends = np.append(starts[1:], first_target + num_targets)
    longest = int((ends - starts).max())
    segment_length = min(segment_length, max(1, longest))
    for offset in range(0, longest, segment_length):
        targets = starts + offset
        # [lanes, segment_length + 1]: the token before each lane's targets, then the targets.
        rows = split.rows(targets - 1, segment_length + 1).astype(np.int64)
        if split.end_symbol is not None:
            rows[targets == 0, 0] = split.end_symbol
        is_padding = targets[:, None] + np.arange(segment_length) >= ends[:, None]
        yield Batch(
            inputs=np.where(is_padding, 0, rows[:, :-1]),
            targets=np.where(is_padding, IGNORED, rows[:, 1:]),
        )
