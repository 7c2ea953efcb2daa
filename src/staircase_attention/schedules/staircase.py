"""The Staircase and its cached kin: chunks that move forward in time and get ever deeper."""

from dataclasses import dataclass
from typing import ClassVar

from staircase_attention.schedules.checks import require_integer
from staircase_attention.schedules.stairs import Stairs, StairSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Staircase(StairSchedule):
    """The paper's Eq. 3: at each step the window's N chunks go through the core together.

    A chunk leaves after N passes. Early windows are shorter, as nothing stands before the stream,
    and the last N-1 steps admit nothing new, so that every token gets an output.
    """

    name: ClassVar[str] = "staircase"

    chunk_size: int
    """C: tokens that enter at each step."""
    num_passes: int
    """N: passes a chunk makes, and chunks in the window."""

    def __post_init__(self) -> None:
        require_integer(self, "chunk_size", at_least=1, remedy="give the tokens a step, as 64")
        require_integer(self, "num_passes", at_least=1, remedy="give the passes, as 4")

    @property
    def stairs(self) -> Stairs:
        """Every chunk in the window is a query."""
        return Stairs(
            chunk_size=self.chunk_size,
            num_window_chunks=self.num_passes,
            num_passes=self.num_passes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedStaircase(StairSchedule):
    """A Staircase whose chunks are frozen after M passes and stay visible for N-M steps more.

    A frozen chunk gives keys and values to every layer, through that layer's own norm and
    projections, and is never a query. The paper asks for M < N; here M = N is allowed, and is the
    plain Staircase. So is M = 0: then a chunk makes one pass for its own output, and later chunks
    see its embeddings.
    """

    name: ClassVar[str] = "cached-staircase"

    chunk_size: int
    """C: tokens that enter at each step."""
    num_window_chunks: int
    """N: chunks visible at once; the context is N * C tokens."""
    num_passes: int
    """M: passes through the core before a chunk is cached."""

    def __post_init__(self) -> None:
        require_integer(self, "chunk_size", at_least=1, remedy="give the tokens a step, as 64")
        require_integer(self, "num_window_chunks", at_least=1, remedy="give the window, as 4")
        require_integer(self, "num_passes", at_least=0, remedy="give the passes, as 1")
        if self.num_passes > self.num_window_chunks:
            raise ValueError(
                "CachedStaircase.num_passes (M) must be at most num_window_chunks (N), "
                f"got M = {self.num_passes} with N = {self.num_window_chunks}; "
                "lower num_passes or widen the window"
            )

    @property
    def stairs(self) -> Stairs:
        """As asked."""
        return Stairs(
            chunk_size=self.chunk_size,
            num_window_chunks=self.num_window_chunks,
            num_passes=self.num_passes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalCachedStaircase(StairSchedule):
    """A Cached Staircase whose window grows: every earlier chunk stays available.

    Its state grows with the stream. Distances past the relative table are clipped to its last row,
    so give `max_distance` in the core where streams are longer than the default.
    """

    name: ClassVar[str] = "global-cached-staircase"

    chunk_size: int
    """C: tokens that enter at each step."""
    num_passes: int
    """M: passes through the core before a chunk is cached."""

    def __post_init__(self) -> None:
        require_integer(self, "chunk_size", at_least=1, remedy="give the tokens a step, as 64")
        require_integer(self, "num_passes", at_least=0, remedy="give the passes, as 1")

    @property
    def stairs(self) -> Stairs:
        """A window without end."""
        return Stairs(
            chunk_size=self.chunk_size, num_window_chunks=None, num_passes=self.num_passes
        )

    @property
    def is_state_bounded(self) -> bool:
        """No: every chunk stays."""
        return False
