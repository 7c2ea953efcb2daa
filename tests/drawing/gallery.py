"""What the drawing tests draw: every schedule of the family, and two that are not of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from staircase_attention.schedules import (
    CachedStaircase,
    Cell,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    Order,
    PaperRow,
    ParallelLoop,
    Schedule,
    Staircase,
    Step,
    TransformerXL,
    UniversalTransformer,
    make_schedule,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Twice(Schedule):
    """Every chunk alone, twice in a row; no schedule of the family does that."""

    name: ClassVar[str] = "twice"
    chunk_size: int

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        for start in range(tokens.start, tokens.stop, self.chunk_size):
            chunk = start // self.chunk_size
            part = range(start, min(start + self.chunk_size, tokens.stop))
            for pass_number in (1, 2):
                index = 2 * chunk + pass_number - 1
                yield Step(
                    index=index,
                    bank=index,
                    layers=range(num_layers),
                    cells=(Cell(chunk=chunk, pass_number=pass_number, tokens=part),),
                    retained=0,
                )

    @property
    def default_max_distance(self) -> int:
        return self.chunk_size

    @property
    def chunk_length(self) -> int:
        return self.chunk_size

    @property
    def paper_row(self) -> PaperRow:
        return PaperRow(recurrent_steps=2, step_size=self.chunk_size, forward_size=self.chunk_size)


EXAMPLE = Path(__file__).parents[1] / "examples" / "alternate.py"
ALTERNATE = make_schedule(
    f"{EXAMPLE}:AlternateCached", {"chunk_size": 2, "num_window_chunks": 4, "num_passes": 1}
)
"""It sees every second chunk of its cache, so that its rows have gaps."""
GALLERY: tuple[Schedule, ...] = (
    ALTERNATE,
    Staircase(chunk_size=2, num_passes=3),
    Staircase(chunk_size=1, num_passes=1),
    Staircase(chunk_size=32, num_passes=8),
    CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2),
    CachedStaircase(chunk_size=3, num_window_chunks=3, num_passes=0),
    GlobalCachedStaircase(chunk_size=2, num_passes=1),
    Ladder(num_passes=3, span=6),
    Ladder(num_passes=2, span=3, order="AABB"),
    TransformerXL(span=6),
    UniversalTransformer(num_passes=3, span=6),
    ParallelLoop(num_passes=3, span=6),
    FeedbackTransformer(span=3),
    MemoryNetwork(span=3),
    Twice(chunk_size=4),
)
ORDERS: tuple[Order, ...] = ("window", "chunk")


def name_of(value: object) -> str:
    """How a test names what it draws."""
    return value.name if isinstance(value, Schedule) else str(value)
