"""Models that are recurrent in time: chunks move forward and get deeper with every step."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from staircase_attention.checks import input_error
from staircase_attention.schedules.schedule import PaperRow, Schedule
from staircase_attention.schedules.timetable import Cached, Cell, Order, Step, joined, pieces

# The Global Cached model's step size in the paper's tables: its window outgrows any table.
GLOBAL_MAX_DISTANCE = 512


@dataclass(frozen=True, slots=True)
class Stairs:
    """Chunks that climb: at step s the window holds the chunks s-N+1 to s.

    A chunk that entered at step i makes its pass n at step i+n-1, for as many passes as it is a
    query; for the rest of its stay in the window it is seen as it was frozen. So all queries of a
    step see the same keys, each up to itself.
    """

    chunk_size: int
    """C"""
    num_window_chunks: int | None
    """N; None for a window that grows with the stream."""
    num_passes: int
    """M: a chunk is frozen after this many passes; 0 freezes it as it came in."""

    @property
    def num_query_passes(self) -> int:
        """Passes a chunk makes: M, but at least the one that gives its output."""
        return max(self.num_passes, 1)

    @property
    def caches(self) -> bool:
        """Whether a chunk stays in the window after its last pass."""
        return self.num_window_chunks != self.num_query_passes

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps that take `tokens` up the stairs, in either order."""
        arrived = dict(pieces(tokens, self.chunk_size))
        walk = self._by_window if order == "window" else self._by_chunk
        for index, cells, oldest in walk(arrived, tokens.stop // self.chunk_size):
            stop = cells[-1].tokens.stop
            full = stop == (index + 1) * self.chunk_size
            # Chunks of the window that have made their last pass before this step,
            first, past = self._window_start(index), index - self.num_query_passes + 1
            # and what has arrived of the window of the oldest step that is still to come.
            kept = joined([range(self._window_start(oldest), stop)]) if self.caches else ()
            yield Step(
                index=index,
                bank=index,
                layers=range(num_layers),
                cells=cells,
                frozen=joined([range(first, max(0, past) * self.chunk_size)]),
                # Once its newest chunk is full, nothing will join this step any more.
                retained=0 if full else None,
                kept=kept,
            )

    def _by_window(
        self, arrived: dict[int, range], unfinished: int
    ) -> Iterator[tuple[int, tuple[Cell, ...], int]]:
        """Step by step: its index, its cells, and the oldest step that is still to come."""
        if not arrived:
            return
        first, last = min(arrived), max(arrived)
        for index in range(first, last + self.num_query_passes):
            chunks = range(max(first, index - self.num_query_passes + 1), min(index, last) + 1)
            cells = (self._cell(chunk, index - chunk + 1, arrived[chunk]) for chunk in chunks)
            # The steps of an unfinished chunk are taken again when more of its tokens arrive.
            yield index, tuple(cells), min(index + 1, unfinished)

    def _by_chunk(
        self, arrived: dict[int, range], unfinished: int
    ) -> Iterator[tuple[int, tuple[Cell, ...], int]]:
        """The same cells, one at a time: all passes of a chunk before the next chunk's first."""
        for chunk, tokens in arrived.items():
            for pass_number in range(1, self.num_query_passes + 1):
                cell = self._cell(chunk, pass_number, tokens)
                # Until its last pass, a chunk may still see what its first step sees.
                done = pass_number == self.num_query_passes and chunk < unfinished
                yield chunk + pass_number - 1, (cell,), chunk + 1 if done else chunk

    def _window_start(self, index: int) -> int:
        if self.num_window_chunks is None:
            return 0
        return max(0, index - self.num_window_chunks + 1) * self.chunk_size

    def _cell(self, chunk: int, pass_number: int, tokens: range) -> Cell:
        cached: Cached | None = None
        if self.caches and pass_number == self.num_query_passes:
            # M = 0 caches a chunk as it came in, even though it makes one pass.
            cached = "output" if self.num_passes else "input"
        return Cell(chunk=chunk, pass_number=pass_number, tokens=tokens, cached=cached)


class StairSchedule(Schedule):
    """A schedule that climbs stairs: a subclass gives only their shape."""

    __slots__ = ()

    @property
    @abstractmethod
    def stairs(self) -> Stairs:
        """C, N and M of this schedule."""

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps by which `tokens` get their outputs."""
        return self.stairs.steps(tokens, num_layers=num_layers, order=order)

    @property
    def default_max_distance(self) -> int:
        """The whole window, if it has an end."""
        stairs = self.stairs
        if stairs.num_window_chunks is None:
            return max(GLOBAL_MAX_DISTANCE, stairs.chunk_size * stairs.num_query_passes)
        return stairs.chunk_size * stairs.num_window_chunks

    @property
    def paper_row(self) -> PaperRow:
        """M recurrent steps of NC tokens, C of them new."""
        stairs = self.stairs
        chunks = stairs.num_window_chunks
        return PaperRow(
            recurrent_steps=stairs.num_passes,
            step_size=None if chunks is None else stairs.chunk_size * chunks,
            forward_size=stairs.chunk_size,
        )

    @property
    def chunk_length(self) -> int:
        """C."""
        return self.stairs.chunk_size

    @property
    def is_state_bounded(self) -> bool:
        """Whether the window has an end."""
        return self.stairs.num_window_chunks is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Staircase(StairSchedule):
    """The paper's Eq. 3: at each step the window's N chunks go through the core together.

    A chunk leaves after N passes. Early windows are shorter, as nothing precedes the stream,
    and the last N-1 steps admit nothing new, so that every token gets an output.
    """

    name: ClassVar[str] = "staircase"

    chunk_size: int
    """C: tokens that enter at each step."""
    num_passes: int
    """N: passes of a chunk, and chunks in the window."""

    @property
    def stairs(self) -> Stairs:
        """Every chunk in the window is a query."""
        return Stairs(self.chunk_size, self.num_passes, self.num_passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedStaircase(StairSchedule):
    """A Staircase whose chunks are frozen after M passes and stay visible for N-M more steps.

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
    num_passes: int = field(metadata={"minimum": 0})
    """M: passes through the core before a chunk is cached."""

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        if self.num_passes > self.num_window_chunks:
            rule = "num_passes (M) must be at most num_window_chunks (N)"
            received = f"M = {self.num_passes} with N = {self.num_window_chunks}"
            raise input_error(rule, received, "lower num_passes or widen the window")

    @property
    def stairs(self) -> Stairs:
        """The window of N chunks, of which the last M are queries."""
        return Stairs(self.chunk_size, self.num_window_chunks, self.num_passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalCachedStaircase(StairSchedule):
    """A Cached Staircase whose window grows: every earlier chunk stays available.

    Its state grows with the stream. Distances past the relative table are clipped to its last row,
    so set the core's `max_distance` for streams that are longer than the default.
    """

    name: ClassVar[str] = "global-cached-staircase"

    chunk_size: int
    """C: tokens that enter at each step."""
    num_passes: int = field(metadata={"minimum": 0})
    """M: passes through the core before a chunk is cached."""

    @property
    def stairs(self) -> Stairs:
        """A window without end."""
        return Stairs(self.chunk_size, None, self.num_passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackTransformer(StairSchedule):
    """Fan et al. 2020: one token at a time, every layer attending to one memory per token.

    With `memory="top"`, `attend_self` and separate keys and values it is the Cached Staircase with
    C = 1, N = S + 1 and M = 1. Where there is nothing to attend to, attention gives zero.
    """

    name: ClassVar[str] = "feedback-transformer"

    span: int
    """S: number of earlier tokens in view."""
    share_keys_values: bool = True
    """One norm and one pair of projections turn memories into keys and values for all layers."""
    memory: Literal["mix", "top"] = "mix"
    """A learned mixture of the embedding and all layers' outputs, or the last layer's output."""
    attend_self: bool = False
    """Whether a token also attends to itself, at its own layer."""

    @property
    def stairs(self) -> Stairs:
        """One new token, and S that have passed once."""
        return Stairs(1, self.span + 1, 1)

    @property
    def paper_row(self) -> PaperRow:
        """One recurrent step; the tables give the span as step size."""
        return PaperRow(recurrent_steps=1, step_size=self.span, forward_size=1)

    @property
    def attends_self(self) -> bool:
        """The option."""
        return self.attend_self

    @property
    def mixes_layers(self) -> bool:
        """Whether memories are mixtures."""
        return self.memory == "mix"

    @property
    def shares_keys_values(self) -> bool:
        """The option."""
        return self.share_keys_values


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNetwork(StairSchedule):
    """End-to-end memory networks as the paper places them: earlier tokens are embeddings only.

    The Global Cached Staircase with C = 1 and M = 0, over the S latest positions.
    """

    name: ClassVar[str] = "memory-network"

    span: int
    """S: latest positions that a token sees, itself included."""

    @property
    def stairs(self) -> Stairs:
        """One new token, and S-1 as they came in."""
        return Stairs(1, self.span, 0)
