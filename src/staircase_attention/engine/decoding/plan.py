"""From the timetable to numbers that kernels read: what each step of a token sees, and where.

The timetable is asked for one run of tokens at a time: one chunk, or many where a step takes any
number of tokens. A `DecodingPlan` holds a row of integers for every step of the run. The row is the
same for all tokens of the run; what changes from token to token follows from the position, which
lies on the device. So the same launches, and the same captured graph, serve any schedule whose
state is bounded.

Keys and values lie in two kinds of memory. Each open bank has a *region* of the same size, a ring:
the token at position p lies at place p modulo its capacity. Passes that lag are one batch with the
first: their regions are those behind its region. Cached tokens have *slots*: a run that
is cached gets neighbouring ones, which are free again when the timetable drops its tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from staircase_attention.models.state import Stream
from staircase_attention.schedules import CARRIED, Depth, Ledger, Schedule, Step

# Numbers of a row before its segments: first row of the bank's region, and shift; 0, and shift of
# the cache.
#
# A token at position p is written to place p + shift.
HEADER = 4
# A ring of neighbours in time lies in at most two pieces.
BANK_SEGMENTS = 2


class FormStep(NamedTuple):
    """What the launches of one step of a token depend on."""

    layers: range
    cached: str | None
    """What it leaves in the cache."""
    span: int | None = None
    """How many of the latest keys a token sees, itself included; None: all."""
    pass_number: int = 1
    """After the first, it sees again what entered the recurrence."""
    lags: bool = False
    """Whether it is taken along with the first pass, as rows of the same launches."""


# All steps of a token: what a graph depends on.
Form = tuple[FormStep, ...]


class Segment(NamedTuple):
    """Tokens that are neighbours both in the stream and in memory."""

    position: int
    """Of the first token."""
    place: int
    """Where the first token lies."""
    length: int


class Sizes(NamedTuple):
    """How much room a decoder needs."""

    num_steps: int = 1
    num_regions: int = 1
    capacity: int = 1
    """Tokens in a region."""
    num_slots: int = 0
    """Cached tokens."""
    num_frozen: int = 0
    """Segments in which the cached tokens lie that one step sees."""
    num_keys: int = 1
    """Keys that a token sees, itself included."""
    reach: int = 1
    """Distances between a token and the keys it sees, 0 included."""
    num_passes: int = 1
    """Passes of a token that are taken at once: the first, and those that lag."""
    num_carried: int = 2
    """Latest tokens that lagged passes may begin with; with two, one can be taken back."""

    def __or__(self, other: "Sizes") -> "Sizes":
        """Room for both."""
        return Sizes(*map(max, self, other))


@dataclass(slots=True)
class Layout:
    """Where the tokens lie that a stream remembers; kept by following the timetable."""

    banks: dict[tuple[int, int], int]
    """Tokens held for each (bank, layer): those before the present position."""
    regions: dict[int, int]
    """The region of each bank, the same in all layers."""
    cached: list[Segment]
    """By position."""

    @classmethod
    def of(cls, stream: Stream) -> "Layout":
        """The layout of a stream whose regions and slots are taken in order."""
        banks = {key: held.num_tokens for key, held in stream.banks.items()}
        open_banks = {bank for bank, layer in banks if layer != CARRIED}
        regions = {bank: number for number, bank in enumerate(sorted(open_banks))}
        cached, place = [], 0
        for part in stream.cached:
            cached.append(Segment(part.start, place, len(part)))
            place += len(part)
        return cls(banks, regions, cached)

    def copy(self) -> "Layout":
        """A copy that can be changed independently."""
        return Layout(dict(self.banks), dict(self.regions), self.cached)

    def free_slots(self, length: int) -> int:
        """The lowest place from which on this many slots are free."""
        place = 0
        for segment in sorted(self.cached, key=lambda one: one.place):
            if segment.place - place >= length:
                break
            place = segment.place + segment.length
        return place

    def follow(
        self, steps: Iterable[Step], *, place: int, attends_self: bool
    ) -> Iterator[tuple[Step, range, list[Segment]]]:
        """Each step with the tokens its bank holds and the segments of frozen tokens it sees.

        `place` is where a cached run lies. Regions are free again only at the end: all steps of
        one token come before the first step of the next.
        """
        ledger = Ledger(banks=self.banks, attends_self=attends_self)
        for step in steps:
            (cell,) = step.cells
            tokens = cell.tokens
            assert not step.frozen or step.frozen[-1].stop <= tokens.start
            if attends_self and step.bank not in self.regions:
                used = set(self.regions.values())
                self.regions[step.bank] = next(n for n in range(len(used) + 1) if n not in used)
            # The caller gets the cache as it is before the step: a token never sees its own slot.
            yield step, ledger.held_by(step), within(self.cached, step.frozen)
            ledger.extend_bank(step)
            new = [Segment(tokens.start, place, len(tokens))] if cell.cached else []
            self.cached = within(joined([*self.cached, *new]), step.kept)
        open_banks = {bank for bank, _ in self.banks}
        self.regions = {bank: at for bank, at in self.regions.items() if bank in open_banks}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingPlan:
    """A run of tokens: what its steps see, and the layout before and after it."""

    run: range
    place: int
    """Where the run's first token lies in the cache, if the run is cached."""
    before: Layout
    after: Layout
    form: Form
    seen: tuple[tuple[int, range, list[Segment]], ...]
    """For each step: the region of its bank, the positions it holds, and the frozen segments."""
    attends_self: bool
    span: int | None
    """Of these, how many of the latest a token sees, itself included; None: all."""

    @property
    def sizes(self) -> Sizes:
        """The room that this run needs."""
        regions, banks, frozen = zip(*self.seen, strict=True)
        slots = [one.place + one.length for one in self.before.cached]
        if any(step.cached for step in self.form):
            slots.append(self.place + len(self.run))
        counts = [len(held) + sum(one.length for one in many) for _, held, many in self.seen]
        oldest = [held.start for held in banks] + [one.position for many in frozen for one in many]
        capacity = len(self.run) + max(map(len, banks))
        num_keys = len(self.run) + max(counts)
        reach = self.run.stop - min(oldest)
        if self.span is not None:
            capacity, num_keys, reach = (min(one, self.span) for one in (capacity, num_keys, reach))
        return Sizes(
            num_steps=len(self.seen),
            num_regions=1 + max(regions),
            capacity=capacity,
            num_slots=max(slots, default=0),
            num_frozen=max(map(len, frozen)),
            num_keys=num_keys,
            reach=reach,
            num_passes=1 + sum(step.lags for step in self.form),
        )

    def rows(self, sizes: Sizes, num_rows: int) -> list[list[int]]:
        """For each step its header and, for every segment, three integers.

        Keys are numbered from the oldest one. Key k of a segment lies at place k + (second integer)
        and belongs to position k + (third integer); the first integer is the number of keys up to
        the end of the segment, or 0 where there is no such segment. The last segment holds the keys
        that are in no other one: the bank's latest, up to the present token.
        """
        # A run lies in one turn of the ring: its token at position p has place p - wrap.
        wrap = self.run.start // sizes.capacity * sizes.capacity
        return [
            [
                *(region * num_rows, -wrap, 0, self.place - self.run.start),
                *(0,) * (3 * (sizes.num_frozen - len(frozen))),
                *numbered([*frozen, *(self._bank(held, wrap, sizes.capacity))]),
            ]
            for region, held, frozen in self.seen
        ]

    def _bank(self, held: range, wrap: int, capacity: int) -> list[Segment]:
        """The tokens of a bank before and from the position at which its ring wraps."""
        if not self.attends_self:
            return []
        # Older tokens lie one turn back: at the end of the ring, before those of this turn.
        latest = max(held.start, wrap)
        return [
            Segment(held.start, held.start - wrap + capacity, latest - held.start),
            Segment(latest, latest - wrap, held.stop - latest),
        ]


class Planner:
    """Asks a schedule's timetable for runs of tokens."""

    def __init__(self, schedule: Schedule, depth: Depth) -> None:
        self.schedule = schedule
        self.depth = depth
        self.attends_self = schedule.attends_self
        # One step that takes two chunks at once treats all tokens alike.
        two = range(2 * schedule.chunk_length)
        steps = self._steps(two)
        caches = any(cell.cached for step in steps for cell in step.cells)
        self.is_chunked = caches or any(step.cells[0].tokens != two for step in steps)
        """Whether tokens of different chunks take different steps."""

    @property
    def span(self) -> int | None:
        """A limit on the keys of a bank that the kernels apply at every token."""
        return None if self.is_chunked else self.schedule.attention_span

    def plan(self, layout: Layout, position: int, capacity: int | None = None) -> DecodingPlan:
        """The run that begins at a position.

        It does not pass a multiple of `capacity`, where the rings wrap. Where a span limits what a
        token sees of the cache, the oldest visible position moves, and the run is a single token.
        """
        schedule, oldest = self.schedule, 0
        lengths = [schedule.chunk_length] if self.is_chunked else [schedule.default_max_distance]
        if capacity is not None:
            lengths = [*lengths, capacity] if self.is_chunked else [capacity]
        stop = min(position + length - position % length for length in lengths)
        if self.is_chunked and schedule.attention_span is not None:
            stop, oldest = position + 1, max(0, position - schedule.attention_span + 1)
        steps = self._steps(range(position, stop))
        place = layout.free_slots(stop - position)
        after = layout.copy()
        visible = range(oldest, position)
        seen = tuple(
            (
                after.regions.get(step.bank, 0),
                held if step.span else range(max(held.start, oldest), held.stop),
                within(frozen, [visible]),
            )
            for step, held, frozen in after.follow(
                steps, place=place, attends_self=self.attends_self
            )
        )
        assert all(seen[n][0] == seen[n - 1][0] + 1 for n, step in enumerate(steps) if step.lags)
        return DecodingPlan(
            run=range(position, stop),
            place=place,
            before=layout,
            after=after,
            form=tuple(
                FormStep(
                    layers=step.layers,
                    cached=step.cells[0].cached,
                    span=step.span or self.span,
                    pass_number=step.cells[0].pass_number,
                    lags=step.lags,
                )
                for step in steps
            ),
            seen=seen,
            attends_self=self.attends_self,
            span=self.span,
        )

    def layout_at(self, plan: DecodingPlan, position: int) -> Layout:
        """The layout in the middle of a run."""
        layout = plan.before.copy()
        if position > plan.run.start:
            steps = self._steps(range(plan.run.start, position))
            for _ in layout.follow(steps, place=plan.place, attends_self=self.attends_self):
                pass
        return layout

    def _steps(self, tokens: range) -> list[Step]:
        phases = self.schedule.phases(tokens, depth=self.depth, order="window")
        return list(chain.from_iterable(phases))


@lru_cache
def measured(schedule: Schedule, depth: Depth) -> Sizes:
    """The room that a schedule needs, from a walk that fills its window twice.

    A schedule may need more later on; then a decoder makes room again.
    """
    planner = Planner(schedule, depth)
    layout, position, sizes = Layout({}, {}, []), 0, Sizes()
    while position < 2 * (schedule.default_max_distance + schedule.chunk_length):
        plan = planner.plan(layout, position)
        sizes |= plan.sizes
        layout, position = plan.after, plan.run.stop
    return sizes


def numbered(segments: Iterable[Segment]) -> list[int]:
    """Three integers for each segment, as `DecodingPlan.rows` describes them."""
    numbers, first = [], 0
    for position, place, length in segments:
        stop = first + length
        numbers += [stop if length else 0, place - first, position - first]
        first = stop
    return numbers


def within(segments: Sequence[Segment], ranges: Iterable[range]) -> list[Segment]:
    """The parts of segments that lie in ranges of positions."""
    found = []
    for part in ranges:
        for position, place, length in segments:
            start, stop = max(part.start, position), min(part.stop, position + length)
            if start < stop:
                found.append(Segment(start, place + start - position, stop - start))
    return found


def joined(segments: Iterable[Segment]) -> list[Segment]:
    """Segments with those made one that are neighbours both in the stream and in memory."""
    found: list[Segment] = []
    for segment in segments:
        last = found[-1] if found else None
        if last and (last.position + last.length, last.place + last.length) == segment[:2]:
            found[-1] = Segment(last.position, last.place, last.length + segment.length)
        else:
            found.append(segment)
    return found
