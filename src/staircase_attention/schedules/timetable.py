"""What a timetable is made of: cells, gathered into steps.

Every model of the family walks the same grid, whose columns are chunks and whose levels are
passes. A schedule says in which steps the grid is walked and what each step can see; nothing
here computes anything, and nothing here knows of tensors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Order = Literal["window", "chunk"]
"""How the grid is walked: `window` takes as many chunks a step as it can (training), `chunk`
sends each chunk through all its passes as soon as it is there (streaming)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One trip of a chunk, or of the part of it that has arrived, through the core."""

    chunk: int
    """i: the number of the chunk, counted from the start of the stream."""
    pass_number: int
    """n: which of the chunk's passes this is; the first is 1."""
    tokens: range
    """Positions in the stream of the tokens that are queries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One row of a timetable: cells that go through the core together.

    The queries are neighbours in time, and so are the keys they see: first the `frozen` ones, then
    what the step's `bank` holds, then the queries' own. A bank collects the keys and values that
    the queries of one step have in common, so that a step can be taken in several goes, or
    continued by tokens that arrive later.
    """

    index: int
    """When the step happens, in a walk by windows."""
    bank: int
    """Which bank the step reads and extends."""
    layers: range
    """The layers of the core that the queries go through."""
    cells: tuple[Cell, ...]
    """The queries, oldest chunk first."""
    frozen: range
    """Positions whose cached keys and values the queries see; empty where nothing is cached."""
    retained: int | None
    """How many of the latest tokens in the bank are needed after this step; None: all of them."""
    forget_before: int
    """Cached tokens before this position are needed no more after this step."""

    @property
    def tokens(self) -> range:
        """Positions of all queries of the step."""
        return range(self.cells[0].tokens.start, self.cells[-1].tokens.stop)


@dataclass(slots=True)
class Ledger:
    """The number of tokens that each bank and the cache hold, without holding them.

    It follows a timetable by the steps' own bookkeeping, and so tells what any model of the family
    costs and carries before one is built.
    """

    banks: dict[tuple[int, int], int]
    """Tokens held for each (bank, layer)."""
    cached: range
    """Positions of the tokens in the cache."""

    @classmethod
    def empty(cls) -> "Ledger":
        """The ledger of a stream that has not begun."""
        return cls(banks={}, cached=range(0))

    def follow(
        self, steps: Iterable[Step], *, freeze_after: int | None
    ) -> Iterator[tuple[Step, int, int]]:
        """Each step with the numbers of its queries and of the keys that came before them."""
        for step in steps:
            held = self.banks.get((step.bank, step.layers.start), 0)
            yield step, len(step.tokens), len(step.frozen) + held
            self._extend(step, held + len(step.tokens))
            for cell in step.cells:
                if freeze_after is not None and cell.pass_number == max(freeze_after, 1):
                    self.cached = range(self.cached.start, cell.tokens.stop)
            self.cached = range(max(self.cached.start, step.forget_before), self.cached.stop)

    def _extend(self, step: Step, held: int) -> None:
        kept = held if step.retained is None else min(held, step.retained)
        for layer in step.layers:
            if kept:
                self.banks[step.bank, layer] = kept
            else:
                self.banks.pop((step.bank, layer), None)


def pieces(tokens: range, chunk_size: int) -> Iterator[tuple[int, range]]:
    """Cut a run of tokens at the chunk boundaries: the number of each chunk and its tokens.

    >>> list(pieces(range(3, 9), chunk_size=4))
    [(0, range(3, 4)), (1, range(4, 8)), (2, range(8, 9))]
    """
    for chunk in range(tokens.start // chunk_size, -(-tokens.stop // chunk_size)):
        start, stop = chunk * chunk_size, (chunk + 1) * chunk_size
        yield chunk, range(max(start, tokens.start), min(stop, tokens.stop))
