"""Where a decoder keeps what a stream remembers, and in what order a token is computed."""

from collections.abc import Iterator
from dataclasses import dataclass

from staircase_attention.models.state import Stream
from staircase_attention.schedules import Schedule, joined
from staircase_attention.schedules.ladder import RungSchedule
from staircase_attention.schedules.stairs import StairSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Rings of keys and values: one for each (layer, slot), and one a layer for cached tokens.

    A ring holds the token at position p in place p modulo its capacity. Of N stairs that are open
    at once each has a slot, which the next one takes over; a rung has its slot for good.
    """

    is_stairs: bool
    chunk: int
    """C"""
    num_passes: int
    """Passes a token makes, and slots a layer."""
    num_chunks: int
    """N: chunks in the window."""
    span: int
    """S; 0: all that a step offers."""
    attends_self: bool
    freeze_after: int | None
    capacity: int
    """Tokens in the ring of a slot."""
    num_cached: int
    """Tokens in the ring of the cache; 0 where nothing is cached."""
    trips: tuple[tuple[int, int], ...]
    """The (pass, layer) pairs that a token goes through, in order."""

    @classmethod
    def of(cls, schedule: Schedule, num_layers: int) -> "Layout | None":
        """The layout for a schedule; None where its state grows or its steps are its own."""
        span = schedule.attention_span or 0
        layers = range(num_layers)
        if isinstance(schedule, RungSchedule) and type(schedule).steps is RungSchedule.steps:
            rungs = schedule.rungs
            passes = range(1, rungs.num_passes + 1)
            by_pass = tuple((number, layer) for number in passes for layer in layers)
            by_layer = tuple((number, layer) for layer in layers for number in passes)
            return cls(
                is_stairs=False,
                chunk=1,
                num_passes=rungs.num_passes,
                num_chunks=0,
                span=rungs.span,
                attends_self=schedule.attends_self,
                freeze_after=None,
                capacity=rungs.span,
                num_cached=0,
                trips=by_pass if rungs.layer_order == "ABAB" else by_layer,
            )
        if not isinstance(schedule, StairSchedule) or (
            type(schedule).steps is not StairSchedule.steps
        ):
            return None
        stairs = schedule.stairs
        if stairs.num_window_chunks is None:
            return None
        passes = range(1, stairs.num_query_passes + 1)
        after = stairs.num_passes if stairs.caches else None
        return cls(
            is_stairs=True,
            chunk=stairs.chunk_size,
            num_passes=len(passes),
            num_chunks=stairs.num_window_chunks,
            span=span,
            attends_self=schedule.attends_self,
            freeze_after=after,
            capacity=len(passes) * stairs.chunk_size,
            num_cached=0 if after is None else stairs.num_window_chunks * stairs.chunk_size,
            trips=tuple((number, layer) for number in passes for layer in layers),
        )

    @property
    def num_visible(self) -> int:
        """The most keys that a token can see."""
        window = self.num_chunks * self.chunk if self.is_stairs else self.span
        return min(window, self.span) if self.span else window

    def banks(self, position: int) -> Iterator[tuple[int, int, range]]:
        """Each bank that is open after `position` tokens: its number, its slot, and its tokens."""
        if not self.attends_self:
            return
        if not self.is_stairs:
            held = range(max(0, position - self.span + 1), position)
            for slot in range(self.num_passes if held else 0):
                yield slot + 1, slot, held
            return
        chunk = position // self.chunk
        for bank in range(chunk, chunk + self.num_passes):
            held = range(max(0, bank - self.num_passes + 1) * self.chunk, position)
            if held:
                yield bank, bank % self.num_passes, held

    def cached(self, position: int, before: Stream) -> tuple[range, ...]:
        """Positions of the cached tokens after `position` tokens, given where a stream began."""
        if self.freeze_after is None:
            return ()
        oldest = max(0, position // self.chunk - self.num_chunks + 1) * self.chunk
        start = max(before.cached[0].start if before.cached else before.position, oldest)
        return joined([range(start, position)])
