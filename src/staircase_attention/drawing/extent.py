"""How much of a timetable to draw: enough to be understood, and no more than can be looked at."""

from itertools import islice

from staircase_attention.drawing.words import counted
from staircase_attention.schedules import Ledger, Order, Schedule, num_positions

MAX_COLUMNS = 40
"""A picture has at most this many chunks, or tokens where these are the chunks."""
MAX_ROWS = 96
"""A picture has at most this many steps."""
MAX_BOXES = 1000
"""A picture has at most this many boxes: an SVG of some 700 kilobytes."""
MOST_DEFAULT_COLUMNS = 12
"""As many columns as look well in a terminal 80 wide."""
FEW_COLUMNS = 6
"""How many columns show a window that is still growing."""
STEADY_COLUMNS = 2
"""How many columns to add once the window is full, so that it is seen to move."""


def default_num_tokens(schedule: Schedule) -> int:
    """Tokens for a picture of the window filling, full, and running empty.

    >>> from staircase_attention.schedules import GlobalCachedStaircase, Staircase
    >>> default_num_tokens(Staircase(chunk_size=64, num_passes=3))
    320
    >>> default_num_tokens(GlobalCachedStaircase(chunk_size=64, num_passes=1))
    384
    """
    for num_columns in range(1, MOST_DEFAULT_COLUMNS - STEADY_COLUMNS + 1):
        if not is_still_growing(schedule, num_columns):
            return (num_columns + STEADY_COLUMNS) * schedule.chunk_length
    return FEW_COLUMNS * schedule.chunk_length


def default_num_layers(schedule: Schedule) -> int:
    """Two layers are enough to tell orders apart; some schedules drive a single one only."""
    try:
        schedule.check_core(num_layers=2)
    except ValueError:
        return 1
    return 2


def is_still_growing(schedule: Schedule, num_columns: int) -> bool:
    """Whether one column more would let some query see further back than any does so far."""
    chunk = schedule.chunk_length
    return _furthest(schedule, (num_columns + 1) * chunk) > _furthest(schedule, num_columns * chunk)


def _furthest(schedule: Schedule, num_tokens: int) -> int:
    """The most positions that a step sees, up to its last query and within the span."""
    steps = schedule.steps(range(num_tokens), num_layers=1, order="window")
    follow = Ledger().follow(islice(steps, MAX_ROWS))
    furthest = max(
        num_positions(step.frozen) + step.tokens.stop - held.start for step, held in follow
    )
    span = schedule.attention_span
    return furthest if span is None else min(furthest, span)


def check_request(schedule: Schedule, *, num_tokens: int, num_layers: int, order: Order) -> None:
    """Refuse what cannot be drawn, before any step is taken."""
    for name, value in (("num_tokens", num_tokens), ("num_layers", num_layers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{name} of a picture must be a whole number of at least 1, got {value!r}; "
                "give another, or leave it out"
            )
    if order not in ("window", "chunk"):
        raise ValueError(
            f"a picture's order must be 'window' or 'chunk', got {order!r}; choose one of these"
        )
    schedule.check_core(num_layers=num_layers)
    num_columns = -(-num_tokens // schedule.chunk_length)
    if num_columns > MAX_COLUMNS:
        raise ValueError(
            f"a picture has at most {MAX_COLUMNS} columns, got {num_columns} of "
            f"{counted(schedule.chunk_length, 'token')} each; "
            f"give num_tokens of at most {MAX_COLUMNS * schedule.chunk_length}"
        )


def check_num_rows(schedule: Schedule, num_rows: int) -> None:
    """Refuse a timetable that goes on for too long."""
    if num_rows > MAX_ROWS:
        raise ValueError(
            f"a picture has at most {MAX_ROWS} rows, got more for {schedule}; "
            "give fewer num_tokens or draw a schedule with fewer passes"
        )


def check_num_boxes(schedule: Schedule, num_boxes: int) -> None:
    """Refuse a timetable whose rows are too full."""
    if num_boxes > MAX_BOXES:
        raise ValueError(
            f"a picture has at most {MAX_BOXES} boxes, got {num_boxes} for {schedule}; "
            "give fewer num_tokens"
        )
