"""What a timetable is made of: cells, gathered into steps.

Every model of the family computes the same grid, whose columns are chunks and whose rows are
passes. A schedule defines the steps in which the grid is computed and what each step can see;
nothing here computes anything, and nothing here knows of tensors.

Sets of positions are tuples of ranges: ascending, disjoint, none of them empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# How the grid is walked: `window` takes as many chunks per step as it can (training), `chunk`
# sends each chunk through all its passes as soon as it has arrived (streaming).
Order = Literal["window", "chunk"]
# The layer under which a bank of a lagged step holds one hidden vector.
CARRIED = -1
# What a pass leaves in the cache: the tokens as they went in, or as they came out.
Cached = Literal["input", "output"]


class Depth(NamedTuple):
    """How many layers a core has; layers are numbered in this order."""

    num_layers: int
    """L: those that recur."""
    num_prelude: int = 0
    """Those that a token goes through once, before it enters the recurrence,"""
    num_coda: int = 0
    """and after it has left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One pass of a chunk, or of the part of it that has arrived, through the core."""

    chunk: int
    """i: the number of the chunk, counted from the start of the stream."""
    pass_number: int
    """n: which of the chunk's passes this is; the first is 1."""
    tokens: range
    """Positions in the stream of the tokens that are queries."""
    cached: Cached | None = None
    """What this pass leaves in the cache. Cells are cached in the order of their positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One row of a timetable: cells that go through the core together.

    The queries are neighbours in time. They see, each up to its own position, the `frozen` keys
    first, then what the step's `bank` holds, then their own. A bank collects the keys and values
    that the queries of one step have in common, so that the step can be computed in several parts,
    or extended by tokens that arrive later. What a bank holds ends where the queries begin.
    """

    index: int
    """When the step happens, in a walk by windows."""
    bank: int
    """Which bank the step reads and extends."""
    layers: range
    """The layers of the core that the queries go through."""
    cells: tuple[Cell, ...]
    """The queries, oldest chunk first."""
    frozen: tuple[range, ...] = ()
    """Positions whose cached keys and values the queries see; there may be gaps between them."""
    retained: int | None
    """How many of the latest tokens in the bank are needed after this step; None: all of them."""
    kept: tuple[range, ...] = ()
    """Cached positions that later steps may see: all others are dropped after this step."""
    span: int | None = None
    """Outside of the recurrence: how many of the latest positions a query sees, its own included.

    None: a step of the recurrence, where the schedule decides it.
    """

    lags: bool = False
    """Whether pass n of a token enters with pass n-1 of the token before it, and with the token.

    So it does not wait for the token's own pass n-1. The bank holds, under the layer `CARRIED`,
    pass n-1 of the latest token.
    """

    @property
    def tokens(self) -> range:
        """Positions of all queries of the step."""
        return range(self.cells[0].tokens.start, self.cells[-1].tokens.stop)


@dataclass(slots=True)
class Ledger:
    """The tokens that each bank and the cache hold, by number and position only.

    It follows a timetable by the steps' own bookkeeping, and so gives the cost of any model and
    the size of its state before one is built.
    """

    banks: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of tokens held for each (bank, layer)."""
    cached: tuple[range, ...] = ()
    """Positions of the tokens in the cache."""
    attends_self: bool = True
    """Whether tokens see themselves in the recurrence; where they do not, no bank holds them."""

    def follow(self, steps: Iterable[Step]) -> Iterator[tuple[Step, range]]:
        """Each step with the positions that its bank holds before it."""
        for step in steps:
            seen = overlap(step.frozen, self.cached)
            assert num_positions(seen) == num_positions(step.frozen), "frozen but not cached"
            yield step, self.held_by(step)
            self.extend_bank(step)
            new = (cell.tokens for cell in step.cells if cell.cached)
            self.cached = overlap(joined((*self.cached, *new)), step.kept)

    def held_by(self, step: Step) -> range:
        """The positions that the bank of a step holds before it."""
        # All layers of a step hold the same tokens, so one of them is enough.
        num_held = self.banks.get((step.bank, step.layers.start), 0)
        return range(step.tokens.start - num_held, step.tokens.start)

    def extend_bank(self, step: Step) -> None:
        """Add the queries of a step to its bank, and drop what no later step needs."""
        num_kept = len(self.held_by(step)) + len(step.tokens)
        if step.retained is not None:
            num_kept = min(num_kept, step.retained)
        for layer in step.layers:
            if num_kept and (self.attends_self or step.span is not None):
                self.banks[step.bank, layer] = num_kept
            else:
                self.banks.pop((step.bank, layer), None)
        if step.lags:
            self.banks[step.bank, CARRIED] = 1


def pieces(tokens: range, chunk_size: int) -> Iterator[tuple[int, range]]:
    """Cut a run of tokens at the chunk boundaries: the number of each chunk and its tokens.

    >>> list(pieces(range(3, 9), chunk_size=4))
    [(0, range(3, 4)), (1, range(4, 8)), (2, range(8, 9))]
    """
    for chunk in range(tokens.start // chunk_size, -(-tokens.stop // chunk_size)):
        start, stop = chunk * chunk_size, (chunk + 1) * chunk_size
        yield chunk, range(max(start, tokens.start), min(stop, tokens.stop))


def joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Ascending, disjoint ranges with neighbours made one and empty ones left out.

    >>> joined([range(0, 2), range(2, 4), range(5, 5), range(6, 7)])
    (range(0, 4), range(6, 7))
    """
    found: list[range] = []
    for part in ranges:
        if found and part and found[-1].stop == part.start:
            found[-1] = range(found[-1].start, part.stop)
        elif part:
            assert not found or found[-1].stop < part.start, "positions must ascend"
            found.append(part)
    return tuple(found)


def overlap(one: Iterable[range], other: tuple[range, ...]) -> tuple[range, ...]:
    """The positions that are in both.

    >>> overlap([range(0, 4), range(6, 9)], (range(2, 7),))
    (range(2, 4), range(6, 7))
    """
    return joined(
        range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
        for mine in one
        for theirs in other
    )


def num_positions(ranges: Iterable[range]) -> int:
    """How many positions there are in all.

    >>> num_positions([range(0, 2), range(5, 9)])
    6
    """
    return sum(len(part) for part in ranges)
