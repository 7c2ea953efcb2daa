"""Batches whose rows are contiguous streams: each continues where the previous one ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import check_fields, check_integer, input_error
from staircase_attention.tasks.splits import EpisodeSource
from staircase_attention.tasks.task import Episodes, ragged_range


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Training episodes are cut to a few tokens at first, then to twice as many, until whole.

    The end of an episode cannot be learnt before its beginning. The first stage may last longer
    than the others: it has to learn the rule that the later ones only apply more often.

    >>> growth = Growth(first_tokens=32, double_every=500, num_doublings=2)
    >>> [growth.longest(update) for update in (0, 499, 500, 999, 1000)]
    [32, 32, 64, 64, None]
    >>> growth = Growth(first_tokens=4, first_updates=900, double_every=300, num_doublings=2)
    >>> [growth.longest(update) for update in (0, 899, 900, 1199, 1200)]
    [4, 4, 8, 8, None]
    """

    first_tokens: int | None = field(default=None, metadata={"minimum": 2, "maximum": 2**30})
    """Tokens of an episode in the first stage; None: episodes are always whole."""
    first_updates: int | None = None
    """Updates in the first stage; None: `double_every`."""
    double_every: int = 500
    """Updates in each later stage."""
    num_doublings: int = field(default=4, metadata={"maximum": 32})
    """Number of doublings; after the last one, episodes are whole."""

    def __post_init__(self) -> None:
        check_fields(self, "training.growth.")

    def longest(self, update: int) -> int | None:
        """Tokens of an episode in an update, counted from 0; None: all."""
        held = self.double_every if self.first_updates is None else self.first_updates
        doublings = max(0, 1 + (update - held) // self.double_every)
        if self.first_tokens is None or doublings >= self.num_doublings:
            return None
        return self.first_tokens << doublings

    def grows_at(self, update: int) -> bool:
        """Whether episodes are longer than in the previous update."""
        return update > 0 and self.longest(update) != self.longest(update - 1)

    def in_proportion(self, num_updates: int, whole: int) -> "Growth":
        """Scale the stages from a run of `whole` updates to one of `num_updates`.

        >>> Growth(first_tokens=8, first_updates=90, double_every=60).in_proportion(100, 300)
        Growth(first_tokens=8, first_updates=30, double_every=20, num_doublings=4)
        """
        if self.first_tokens is None:
            return self
        first = self.first_updates
        return replace(
            self,
            first_updates=None if first is None else max(1, first * num_updates // whole),
            double_every=max(1, self.double_every * num_updates // whole),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The position of every lane: all that has to be saved to resume."""

    update: int
    """Batches so far."""
    episodes: tuple[int, ...]
    """For each lane, the number of its current episode in the source."""
    offsets: tuple[int, ...]
    """For each lane, the tokens of that episode that are used already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Training batches: lane l of L reads episodes l, l + L, l + 2L, ... of a source.

    Episodes are whole, or cut to the length that `growth` allows in the update.

    An episode that does not end in a segment continues in the next segment of the lane. A batch
    depends on the source and the position alone, so that any batch can be computed again.

        position = lanes.first_position()
        batch, position = lanes.batch(position)

    With several processes, each uses `batch.rows(lanes_of_process(...))` of the same batch. All
    have the same position, so that any number of processes can resume a checkpoint.
    """

    source: EpisodeSource
    num_lanes: int
    """Rows of the batch, over all processes."""
    segment_length: int
    """Tokens of a lane in one batch."""
    growth: Growth = field(default_factory=Growth)
    closing_symbol: int | None = None
    """Replaces the last token of an episode that is cut; None: nothing does."""

    def __post_init__(self) -> None:
        check_fields(self)

    def first_position(self) -> Position:
        """Every lane at the first token of its first episode."""
        first = tuple(range(self.num_lanes))
        return Position(update=0, episodes=first, offsets=(0,) * self.num_lanes)

    def batch(self, position: Position) -> tuple[Batch, Position]:
        """The batch at a position, and the position after it."""
        if not len(position.episodes) == len(position.offsets) == self.num_lanes:
            rule = f"a position must have {self.num_lanes} lanes, as its Lanes have"
            remedy = "resume with the num_lanes that the position was saved with"
            raise input_error(rule, len(position.episodes), remedy)
        # All [lanes]: episode and offset within it, and tokens of the segment that are filled.
        number, offset = np.array(position.episodes), np.array(position.offsets)
        filled = np.zeros(self.num_lanes, dtype=np.int64)
        shape = (self.num_lanes, self.segment_length)
        # All rows of the batch, one after another.
        inputs, targets = np.empty((2, self.num_lanes * self.segment_length), dtype=np.int64)
        row_starts = np.arange(self.num_lanes) * self.segment_length
        longest = self.growth.longest(position.update)
        while np.any(filled < self.segment_length):
            # All lanes are looked up in every round, so that a source knows which episodes to hold.
            store, indices = self.source.find(number)
            whole = store.lengths[indices]
            length = whole if longest is None else np.minimum(whole, longest)
            left = length - offset
            # Only another growth can leave a lane beyond the end of its episode.
            if left.min() < 1:
                rule = f"a position must lie within episodes of {length.max()} tokens at most"
                remedy = "resume with the growth of the first run"
                raise input_error(rule, f"{offset.max()} tokens", remedy)
            count = np.minimum(left, self.segment_length - filled)
            read = ragged_range(store.starts[indices] + offset, count)
            written = ragged_range(row_starts + filled, count)
            inputs[written], targets[written] = store.inputs[read], store.targets[read]
            is_over = count == left
            filled += count
            if self.closing_symbol is not None:
                # The last token of a cut episode becomes the symbol that closes a whole one.
                places = (row_starts + filled - 1)[is_over & (length < whole)]
                inputs[places], targets[places] = self.closing_symbol, IGNORED
            number += self.num_lanes * is_over
            offset = np.where(is_over, 0, offset + count)
        after = Position(
            update=position.update + 1,
            episodes=tuple(number.tolist()),
            offsets=tuple(offset.tolist()),
        )
        return Batch(inputs=inputs.reshape(shape), targets=targets.reshape(shape)), after

    def restarted(self, position: Position) -> Position:
        """Every lane at the first token of an episode: the next one, if it is inside one."""
        pairs = zip(position.episodes, position.offsets, strict=True)
        return replace(
            position,
            episodes=tuple(number + self.num_lanes * (offset > 0) for number, offset in pairs),
            offsets=(0,) * self.num_lanes,
        )


def evaluation_batches(
    episodes: Episodes, *, num_lanes: int, segment_length: int
) -> Iterator[Batch]:
    """Every token of the episodes exactly once, in lanes that continue from batch to batch.

    Lane l of L reads episodes l, l + L, l + 2L, ...; the end of a lane is padding. There are at
    most as many lanes as episodes, and segments are no longer than the longest lane.
    """
    check_integer("num_lanes", num_lanes, minimum=1, example=256)
    check_integer("segment_length", segment_length, minimum=1, example=128)
    num_lanes = min(num_lanes, len(episodes))
    lanes = [episodes.take(np.arange(lane, len(episodes), num_lanes)) for lane in range(num_lanes)]
    longest = max(lane.num_tokens for lane in lanes)
    segment_length = min(segment_length, longest)
    # [lanes, tokens], to the end of the last segment.
    shape = (num_lanes, -(-longest // segment_length) * segment_length)
    inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    for row, lane in enumerate(lanes):
        inputs[row, : lane.num_tokens], targets[row, : lane.num_tokens] = lane.inputs, lane.targets
    for start in range(0, longest, segment_length):
        here = slice(start, start + segment_length)
        yield Batch(inputs=inputs[:, here], targets=targets[:, here])


def lanes_of_process(process: int, num_processes: int, num_lanes: int) -> range:
    """The lanes of one process; if they cannot be shared equally, the first ones have one more.

    >>> [lanes_of_process(process, 3, 32) for process in range(3)]
    [range(0, 11), range(11, 22), range(22, 32)]
    """
    assert 0 <= process < num_processes
    if num_lanes < num_processes:
        rule = f"num_lanes must be at least the {num_processes} processes"
        raise input_error(rule, num_lanes, f"use for example num_lanes={num_processes}")
    share, rest = divmod(num_lanes, num_processes)
    first = process * share + min(process, rest)
    return range(first, first + share + (process < rest))
