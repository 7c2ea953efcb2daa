"""A Cached Staircase that caches every second chunk."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from staircase_attention.schedules import CachedStaircase, Order, Step, pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class AlternateCached(CachedStaircase):
    """Odd chunks stay visible for the whole window, even ones leave after their M passes."""

    name: ClassVar[str] = "alternate-cached"

    @property
    def period(self) -> int:
        """Every second chunk is treated alike."""
        return 2 * self.chunk_size

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps of the Cached Staircase, without the even chunks in its cache."""
        for step in CachedStaircase.steps(self, tokens, num_layers=num_layers, order=order):
            cells = [cell if cell.chunk % 2 else replace(cell, cached=None) for cell in step.cells]
            yield replace(step, cells=tuple(cells), frozen=self.odd(step.frozen))

    def odd(self, positions: tuple[range, ...]) -> tuple[range, ...]:
        """Those that are in odd chunks."""
        chunks = [chunk for part in positions for chunk in pieces(part, self.chunk_size)]
        return tuple(tokens for number, tokens in chunks if number % 2)
