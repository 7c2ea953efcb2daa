"""The paper's Figure 1 as plain data: which boxes stand in which row, for any timetable.

Time runs to the right, a column for each chunk; rows are computed from bottom to top, a row for
each step. Everything is read off the timetable's own steps, so that a schedule nobody has thought
of yet can be drawn with no change here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from staircase_attention.drawing.extent import (
    MAX_ROWS,
    check_num_boxes,
    check_num_rows,
    check_request,
    default_num_layers,
    default_num_tokens,
    is_still_growing,
)
from staircase_attention.drawing.words import caption, notes, row_label, title
from staircase_attention.schedules import Cell, Ledger, Order, Schedule, Step

Kind = Literal["query", "cached", "kept"]
"""A `query` goes through the core in this step; a `cached` chunk is seen as it was frozen; a `kept`
one was a query in an earlier go at the same step, and its keys and values are still there."""
KINDS: tuple[Kind, ...] = ("query", "cached", "kept")
"""In the order in which a legend explains them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A chunk, or a run of them, as one step has it."""

    kind: Kind
    columns: range
    """The columns it fills, counted from 0."""
    pass_number: int
    """n: the pass that a query makes; for the other kinds, the last one made, 0 for none."""
    leaves: bool = False
    """Whether the chunk leaves with its output in this step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One step: boxes that are computed in parallel, and those that they see."""

    label: str
    """What the row is called in the margin."""
    boxes: tuple[Box, ...]
    """Oldest first."""

    @property
    def outline(self) -> range:
        """The columns from the first box to the last."""
        return range(
            min(box.columns.start for box in self.boxes),
            max(box.columns.stop for box in self.boxes),
        )

    @property
    def leaving(self) -> tuple[Box, ...]:
        """The boxes that leave with their output."""
        return tuple(box for box in self.boxes if box.leaves)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A timetable, ready to be drawn."""

    title: str
    """The schedule, as one writes it on the command line."""
    caption: str
    """The schedule in the words of the paper's tables."""
    notes: tuple[str, ...]
    """What else a reader has to know, a sentence each."""
    columns: tuple[range, ...]
    """The tokens in each column."""
    rows: tuple[Row, ...]
    """In the order in which they are computed, so the first is drawn at the bottom."""
    sight: range | None
    """The columns that the very last query sees, where they are fewer than its row outlines."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """All boxes, row by row."""
        return tuple(box for row in self.rows for box in row.boxes)

    @property
    def num_passes(self) -> int:
        """The deepest pass in the picture."""
        return max(box.pass_number for box in self.boxes)


def picture(
    schedule: Schedule,
    num_tokens: int | None = None,
    *,
    num_layers: int | None = None,
    order: Order = "window",
) -> Picture:
    """Draw the timetable of a stream of `num_tokens` tokens.

    Left open, `num_tokens` is enough to show the window filling, full, and running empty, and
    `num_layers` is 2, or 1 for a schedule that drives no more. The layers show only where a step
    takes some of them.

    >>> from staircase_attention.schedules import Staircase
    >>> drawn = picture(Staircase(chunk_size=2, num_passes=2), num_tokens=4)
    >>> [[(box.columns.start, box.pass_number) for box in row.boxes] for row in drawn.rows]
    [[(0, 1)], [(0, 2), (1, 1)], [(1, 2)]]
    """
    num_tokens = default_num_tokens(schedule) if num_tokens is None else num_tokens
    num_layers = default_num_layers(schedule) if num_layers is None else num_layers
    check_request(schedule, num_tokens=num_tokens, num_layers=num_layers, order=order)
    chunk = schedule.chunk_length
    tokens = range(num_tokens)
    timetable = schedule.steps(tokens, num_layers=num_layers, order=order)
    steps = tuple(islice(timetable, MAX_ROWS + 1))
    check_num_rows(schedule, len(steps))
    columns = tuple(tokens[start : start + chunk] for start in tokens[::chunk])
    rows = tuple(
        Row(label=row_label(step, number, num_layers=num_layers, order=order), boxes=boxes)
        for number, (step, boxes) in enumerate(_boxes_of(schedule, steps), start=1)
    )
    check_num_boxes(schedule, sum(len(row.boxes) for row in rows))
    growing = is_still_growing(schedule, len(columns))
    return Picture(
        title=title(schedule, order=order),
        caption=caption(schedule),
        notes=notes(schedule, columns, is_still_growing=growing),
        columns=columns,
        rows=rows,
        sight=_sight(schedule, rows[-1].outline, steps[-1].tokens.stop),
    )


def _columns_of(tokens: range, chunk: int) -> range:
    """The columns that some tokens touch.

    >>> _columns_of(range(2, 5), chunk=2)
    range(1, 3)
    """
    return range(tokens.start // chunk, -(-tokens.stop // chunk))


def _boxes_of(
    schedule: Schedule, steps: tuple[Step, ...]
) -> Iterator[tuple[Step, tuple[Box, ...]]]:
    """Each step with its boxes: first the cached ones, then those of earlier goes, then queries."""
    chunk = schedule.chunk_length
    last_steps = {
        column: step
        for step in steps
        for cell in step.cells
        for column in _columns_of(cell.tokens, chunk)
    }
    earlier: dict[tuple[int, int], list[Cell]] = {}
    cached: dict[int, int] = {}
    for step, kept in Ledger().follow(steps):
        same_bank = earlier.setdefault((step.bank, step.layers.start), [])
        yield (
            step,
            (
                *_cached(step.frozen, chunk, cached),
                *_kept(same_bank, kept, chunk),
                *_queries(step, chunk, last_steps),
            ),
        )
        same_bank.extend(step.cells)
        for cell in step.cells:
            if cell.cached:
                cached[cell.chunk] = cell.pass_number if cell.cached == "output" else 0


def _cached(frozen: Iterable[range], chunk: int, cached: dict[int, int]) -> Iterator[Box]:
    for part in frozen:
        for column in _columns_of(part, chunk):
            columns = range(column, column + 1)
            yield Box(kind="cached", columns=columns, pass_number=cached[column])


def _kept(cells: Iterable[Cell], kept: range, chunk: int) -> Iterator[Box]:
    """The earlier queries of a step's bank, as far as the bank still holds them."""
    for cell in cells:
        tokens = range(max(cell.tokens.start, kept.start), min(cell.tokens.stop, kept.stop))
        if tokens:
            columns = _columns_of(tokens, chunk)
            yield Box(kind="kept", columns=columns, pass_number=cell.pass_number)


def _queries(step: Step, chunk: int, last_steps: dict[int, Step]) -> Iterator[Box]:
    for cell in step.cells:
        columns = _columns_of(cell.tokens, chunk)
        leaves = all(last_steps[column] is step for column in columns)
        yield Box(kind="query", columns=columns, pass_number=cell.pass_number, leaves=leaves)


def _sight(schedule: Schedule, outline: range, stop: int) -> range | None:
    span = schedule.attention_span
    if span is None:
        return None
    seen = _columns_of(range(max(0, stop - span), stop), schedule.chunk_length)
    return seen if seen.start > outline.start else None
