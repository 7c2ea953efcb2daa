"""The paper's Figure 1 as plain data: which boxes are in which row, for any timetable.

Time runs to the right, with a column for each chunk; rows are computed from bottom to top, one for
each step. Everything is read off the steps of the timetable, so a new schedule is drawn with no
change here.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.schedules import Cell, Ledger, Order, Schedule, Step

# A `query` goes through the core in this step. A `cached` chunk is seen as it was cached. A `kept`
# one was a query in an earlier part of the same step, whose keys and values are still there.
Kind = Literal["query", "cached", "kept"]
# In the order in which a legend explains them.
KINDS: tuple[Kind, ...] = ("query", "cached", "kept")
# Of any picture.
MAX_COLUMNS, MAX_ROWS = 40, 96
# By default a picture has at most this many columns, which fit into a terminal 80 wide.
DEFAULT_COLUMNS = 12
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A chunk, or a run of them, in one step."""

    kind: Kind
    columns: range
    """The columns it fills, counted from 0."""
    pass_number: int
    """n: the pass that a query makes; for the other kinds, the last one made, 0 for none."""
    leaves: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One step: boxes that are computed in parallel, and those that they see."""

    label: str
    boxes: tuple[Box, ...]
    """Oldest first."""

    @property
    def outline(self) -> range:
        """The columns from the first box to the last."""
        return range(self.boxes[0].columns.start, self.boxes[-1].columns.stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A timetable, ready to be drawn."""

    title: str
    """The schedule, as written on the command line."""
    caption: str
    """The schedule in the terms of the paper's tables."""
    notes: tuple[str, ...]
    """What else a reader has to know, one sentence each."""
    columns: tuple[range, ...]
    """The tokens in each column."""
    rows: tuple[Row, ...]
    """In the order in which they are computed, so the first is drawn at the bottom."""

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

    By default `num_tokens` is enough to show the window filling, full, and running empty, and
    `num_layers` is 2, or 1 for a schedule that drives no more. Layers are shown only where a step
    uses some of them.

    >>> from staircase_attention.schedules import Staircase
    >>> drawn = picture(Staircase(chunk_size=2, num_passes=2), num_tokens=4)
    >>> [[(box.columns.start, box.pass_number) for box in row.boxes] for row in drawn.rows]
    [[(0, 1)], [(0, 2), (1, 1)], [(1, 2)]]
    """
    chunk = schedule.chunk_length
    if num_tokens is None:
        # Until the window is full and moves by two columns; six where that would be too many.
        num_columns = -(-schedule.default_max_distance // chunk) + 2
        is_short = schedule.is_state_bounded and num_columns <= DEFAULT_COLUMNS
        num_tokens = chunk * (num_columns if is_short else 6)
    if num_layers is None:
        # Two are enough to tell orders apart; some schedules drive a single one only.
        num_layers = 1
        with suppress(ValueError):
            schedule.check_core(num_layers=2)
            num_layers = 2
    check_integer("num_tokens", num_tokens, minimum=1, example=4 * chunk)
    check_integer("num_layers", num_layers, minimum=1, example=2)
    check_choice("order", order, ("window", "chunk"))
    schedule.check_core(num_layers=num_layers)
    _check_at_most(MAX_COLUMNS, "columns", -(-num_tokens // chunk), schedule)
    tokens = range(num_tokens)
    timetable = schedule.steps(tokens, num_layers=num_layers, order=order)
    # A timetable may be endlessly long; one step too many is enough to refuse it.
    steps = tuple(islice(timetable, MAX_ROWS + 1))
    _check_at_most(MAX_ROWS, "rows", len(steps), schedule)
    columns = tuple(tokens[start : start + chunk] for start in tokens[::chunk])
    rows = []
    for number, (step, boxes) in enumerate(_boxes_of(steps, schedule), start=1):
        # In chunk order a step is computed in several parts, with parts of other steps in between.
        label = f"go {number} · " * (order == "chunk") + f"step {step.index + 1}"
        if step.layers != range(num_layers):
            label += f" · layer {counted_from_one(step.layers)}"
        rows.append(Row(label=label, boxes=boxes))
    words, options = schedule.paper_row, schedule.to_dict()
    facts = [words.recurrent_steps, words.step_size, words.forward_size]
    # The paper's tables print dashes for what a model does not have.
    shown = ["-" if fact is None else fact for fact in facts]
    # A schedule of the family has a name, a user's own a reference to its file.
    first = options.pop("name", None) or Path(options.pop("reference")).name
    title = [first, *(f"{name}={value}" for name, value in options.items())]
    return Picture(
        title=" ".join(title) + (", in chunk order" if order == "chunk" else ""),
        caption="recurrent steps {}, step size {}, forward size {}".format(*shown),
        notes=tuple(_notes(schedule, columns)),
        columns=columns,
        rows=tuple(rows),
    )


def _check_at_most(most: int, what: str, number: int, schedule: Schedule) -> None:
    if number > most:
        received = f"{number if what != 'rows' else 'more'} for {schedule}"
        remedy = "draw fewer tokens, or a schedule with fewer passes"
        raise input_error(f"a picture has at most {most} {what}", received, remedy)


def _columns_of(tokens: range, chunk: int) -> range:
    """The columns that some tokens touch.

    >>> _columns_of(range(2, 5), chunk=2)
    range(1, 3)
    """
    return range(tokens.start // chunk, -(-tokens.stop // chunk))


def _boxes_of(steps: Sequence[Step], schedule: Schedule) -> Iterator[tuple[Step, tuple[Box, ...]]]:
    """Each step with its boxes: first cached ones, then those of earlier parts, then queries."""
    chunk = schedule.chunk_length
    # Later steps replace earlier ones: a chunk leaves in the last step that computes it.
    last_steps = {
        column: step
        for step in steps
        for cell in step.cells
        for column in _columns_of(cell.tokens, chunk)
    }
    earlier: dict[tuple[int, int], list[Cell]] = {}
    cached: dict[int, int] = {}
    for step, held in Ledger(attends_self=schedule.attends_self).follow(steps):
        boxes = []
        for column in (column for part in step.frozen for column in _columns_of(part, chunk)):
            columns = range(column, column + 1)
            boxes.append(Box(kind="cached", columns=columns, pass_number=cached[column]))
        # Earlier queries of the same bank and layers, as far as the bank still holds them.
        same_bank = earlier.setdefault((step.bank, step.layers.start), [])
        for cell in same_bank:
            tokens = range(max(cell.tokens.start, held.start), min(cell.tokens.stop, held.stop))
            if tokens:
                columns = _columns_of(tokens, chunk)
                boxes.append(Box(kind="kept", columns=columns, pass_number=cell.pass_number))
        for cell in step.cells:
            columns = _columns_of(cell.tokens, chunk)
            leaves = all(last_steps[column] is step for column in columns)
            number = cell.pass_number
            boxes.append(Box(kind="query", columns=columns, pass_number=number, leaves=leaves))
            if cell.cached:
                cached[cell.chunk] = number if cell.cached == "output" else 0
        same_bank.extend(step.cells)
        yield step, tuple(boxes)


def _notes(schedule: Schedule, columns: Sequence[range]) -> Iterator[str]:
    """What the columns are and what queries see, where the boxes do not show it."""
    chunk, last, span = schedule.chunk_length, len(columns), schedule.attention_span
    yield f"Each column is {'a token' if chunk == 1 else f'a chunk of {chunk} tokens'}."
    if len(columns[-1]) < chunk:
        yield f"{name('x', last)} holds {len(columns[-1])} of {chunk} tokens."
    if span is not None:
        yield f"A token sees {span} position{'' if span == 1 else 's'}, its own the last."
    if not schedule.attends_self:
        yield "A token does not see itself."
    if getattr(schedule, "lags", False):
        yield "Pass n begins with pass n-1 of the token before, and the token."
    if not schedule.is_state_bounded or last * chunk < schedule.default_max_distance:
        yield f"The window is still growing at {name('x', last)}."


def counted_from_one(numbers: range) -> str:
    """A range as people count.

    >>> counted_from_one(range(0, 1)), counted_from_one(range(1, 4))
    ('1', '2-4')
    """
    first, last = numbers.start + 1, numbers.stop
    return str(first) if first == last else f"{first}-{last}"


def name(letter: str, number: int) -> str:
    """A letter with its subscript.

    >>> name("x", 12)
    'x₁₂'
    """
    return letter + str(number).translate(SUBSCRIPTS)


def output_names(box: Box) -> str:
    """The names of the outputs that leave with a box, as y₃ or y₁…y₈."""
    first, last = name("y", box.columns.start + 1), name("y", box.columns.stop)
    return first if first == last else f"{first}…{last}"


def meaning(kind: Kind, pass_number: int) -> str:
    """What a kind of box means, for the legend."""
    cached = f"cached after pass {pass_number}" if pass_number else "cached as embedded"
    return {
        "query": "query on its pass n",
        "cached": f"{cached}: keys and values only",
        "kept": "keys and values kept from pass n",
    }[kind]


# What the arrow means.
LEAVES = "leaves with its output"
# What the outline means.
OUTLINE = "one parallel computation; rows run from bottom to top, time to the right"

# Fill and text colour: shades of ColorBrewer's YlGnBu without its ends. Lightness falls, so that
# passes differ for any colour vision and in print; the contrast is always at least 4.5.
SCALE = (
    ("#c7e9b4", "#000000"),
    ("#94d5b9", "#000000"),
    ("#64c3bf", "#000000"),
    ("#3cb1c3", "#000000"),
    ("#2296c1", "#000000"),
    ("#2074b2", "#ffffff"),
    ("#2352a2", "#ffffff"),
    ("#253494", "#ffffff"),
)


def pass_colours(pass_number: int, num_passes: int) -> tuple[str, str]:
    """Fill and text colour of a query: light for the first pass, dark for the last.

    >>> pass_colours(1, 3), pass_colours(3, 3)
    (('#c7e9b4', '#000000'), ('#253494', '#ffffff'))
    """
    return SCALE[round((pass_number - 1) / max(num_passes - 1, 1) * (len(SCALE) - 1))]
