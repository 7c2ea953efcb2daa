"""A picture as a matplotlib figure, laid out in inches. No pyplot, so no state outside it."""

import textwrap
from dataclasses import dataclass

from matplotlib.figure import Figure

from staircase_attention.drawing import shapes
from staircase_attention.drawing.legend import Legend
from staircase_attention.drawing.picture import Picture, Row
from staircase_attention.drawing.shapes import Area
from staircase_attention.drawing.words import counted_from_one, name, names

PITCH = 0.66
"""Width of a column."""
ROW_PITCH = 0.72
"""Height of a row with the gap above it, in which outputs leave."""
BOX_HEIGHT = 0.38
"""Height of a box."""
PADDING = 0.07
"""Between a box and the outline above and below it."""
MARGIN = 0.3
"""White space around everything."""
LEAST_WIDTH = 5.8
"""Width that words need, however small the picture."""
TITLE_LINE = 0.21
"""Height of a line of the title."""
CAPTION_HEIGHT = 0.3
"""Room for the caption under it."""
INPUTS_HEIGHT = 0.5
"""Room for the names of the columns."""
TOKENS_HEIGHT = 0.17
"""Room for the numbers of their tokens."""
SIGHT_HEIGHT = 0.28
"""Room for the bracket under what the last token sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where things go, in inches from the lower left corner."""

    title: tuple[str, ...]
    """In lines that fit."""
    legend: Legend
    width: float
    """Of everything."""
    height: float
    """Of everything."""
    left: float
    """Where the first column begins."""
    bottom: float
    """Where the boxes of the first row begin."""
    top: float
    """Where the words above the rows begin."""

    @classmethod
    def of(cls, picture: Picture) -> "Layout":
        """As wide as the columns or the words need, and as high as it comes to."""
        labels = max(shapes.text_width(row.label, shapes.SMALL) for row in picture.rows)
        left = MARGIN + labels + 0.1
        inner = max(LEAST_WIDTH, left - MARGIN + len(picture.columns) * PITCH)
        legend = Legend.of(picture, width=inner)
        letters = int(inner / shapes.text_width("x", shapes.LARGE, "bold"))
        title = tuple(textwrap.wrap(picture.title, letters))
        bottom = MARGIN + legend.height + INPUTS_HEIGHT
        bottom += SIGHT_HEIGHT if picture.sight is not None else 0
        bottom += TOKENS_HEIGHT if _shows_tokens(picture) else 0
        top = bottom + len(picture.rows) * ROW_PITCH
        return cls(
            title=title,
            legend=legend,
            width=inner + 2 * MARGIN,
            height=top + CAPTION_HEIGHT + len(title) * TITLE_LINE + MARGIN,
            left=left,
            bottom=bottom,
            top=top,
        )

    def area(self, row: int, columns: range) -> Area:
        """The room of a box, or of all boxes in a row."""
        left, bottom = self.left + columns.start * PITCH, self.bottom + row * ROW_PITCH
        return Area(left, bottom, len(columns) * PITCH, BOX_HEIGHT)


def draw_figure(picture: Picture) -> Figure:
    """Draw a picture: title, rows from bottom to top, inputs, legend."""
    layout = Layout.of(picture)
    figure = Figure(figsize=(layout.width, layout.height), facecolor="white")
    _draw_title(figure, layout, picture.caption)
    for number, row in enumerate(picture.rows):
        _draw_row(figure, layout, number, row, num_passes=picture.num_passes)
    _draw_inputs(figure, layout, picture)
    if picture.sight is not None:
        seen = layout.area(0, picture.sight)
        words = f"seen by {name('x', picture.sight.stop)}"
        top = MARGIN + layout.legend.height + SIGHT_HEIGHT + 0.05
        shapes.bracket(figure, seen.left, seen.left + seen.width, top, words)
    layout.legend.draw(figure, left=MARGIN, bottom=MARGIN)
    return figure


def _draw_title(figure: Figure, layout: Layout, caption: str) -> None:
    for number, line in enumerate(layout.title):
        middle = layout.height - MARGIN - (number + 0.3) * TITLE_LINE
        shapes.write(figure, MARGIN, middle, line, size=shapes.LARGE, weight="bold")
    shapes.write(figure, MARGIN, layout.top + 0.2, caption, colour=shapes.GREY)


def _draw_row(figure: Figure, layout: Layout, number: int, row: Row, *, num_passes: int) -> None:
    """The outline, the boxes in it, the name of the step and the outputs that leave."""
    whole = layout.area(number, row.outline)
    bottom, height = whole.bottom - PADDING, whole.height + 2 * PADDING
    shapes.outline(figure, whole._replace(bottom=bottom, height=height))
    shapes.write(figure, MARGIN, whole.centre[1], row.label, size=shapes.SMALL)
    for box in row.boxes:
        area = layout.area(number, box.columns)
        shapes.box(figure, box, area, num_passes=num_passes)
        if box.leaves:
            shapes.output(figure, area, names("y", box.columns))


def _draw_inputs(figure: Figure, layout: Layout, picture: Picture) -> None:
    """The name and the tokens of each column, and a line to the row where it comes in."""
    top = layout.bottom - PADDING - 0.2
    for column, tokens in enumerate(picture.columns):
        entrance = layout.area(_first_row(picture, column), range(column, column + 1))
        centre = entrance.centre[0]
        shapes.guide(figure, centre, top, entrance.bottom - PADDING)
        shapes.write(figure, centre, top - 0.1, name("x", column + 1), align="center")
        if _shows_tokens(picture):
            shapes.write(
                figure,
                centre,
                top - 0.27,
                counted_from_one(tokens),
                size=shapes.TINY,
                colour=shapes.GREY,
                align="center",
            )


def _first_row(picture: Picture, column: int) -> int:
    """The number of the row in which a column is a query for the first time."""
    for number, row in enumerate(picture.rows):
        if any(box.kind == "query" and column in box.columns for box in row.boxes):
            return number
    raise AssertionError(f"a timetable must compute every chunk, but {column} is never a query")


def _shows_tokens(picture: Picture) -> bool:
    """Whether columns are more than a token, and the numbers of their tokens fit under them."""
    widest = max(len(counted_from_one(tokens)) for tokens in picture.columns)
    return len(picture.columns[0]) > 1 and shapes.text_width("0" * widest, shapes.TINY) < PITCH
