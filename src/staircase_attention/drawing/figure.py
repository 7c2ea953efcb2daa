"""A picture as an SVG or PNG file, drawn with matplotlib. Positions are in inches, type in points.

There is no pyplot, so no state outside of the figure.
"""

import io
import os
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from staircase_attention.checks import input_error
from staircase_attention.drawing.picture import (
    KINDS,
    LEAVES,
    OUTLINE,
    Box,
    Picture,
    counted_from_one,
    meaning,
    name,
    output_names,
    pass_colours,
)
from staircase_attention.files import check_can_write, write_whole

# The kinds of file that can be written.
ENDINGS = (".svg", ".png")
DOTS_PER_INCH = 200
# The longer side of a PNG, at most; a larger picture gets a lower resolution.
MOST_DOTS = 4000
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "hatch.linewidth": 0.6,
    # Text stays text, so that it can be searched, selected and read aloud.
    "svg.fonttype": "none",
    # The same picture gives the same file.
    "svg.hashsalt": "staircase",
}
DARK, GREY, PALE, CACHED = "#1a1a1a", "#595959", "#b0b0b0", "#efefef"
# Sizes of type.
LARGE, MEDIUM, SMALL, TINY = 11.0, 9.0, 8.0, 6.5
# Width of a letter of DejaVu Sans, in inches per point of type; bold is 0.68 / 0.58 as wide.
LETTER_WIDTH = 0.58 / 72
BOLD = 0.68 / 0.58
# Width of a column, and height of a row with the gap above it, in which outputs leave.
PITCH, ROW_PITCH = 0.66, 0.72
# A box; between it and the outline; half the gap between two boxes.
BOX_HEIGHT, PADDING, INSET = 0.38, 0.07, 0.045
# White space around everything.
MARGIN = 0.3
# Width that the words need, however small the picture.
LEAST_WIDTH = 5.8
# Heights of lines of the title and of the legend.
TITLE_LINE, LEGEND_LINE = 0.21, 0.27
# The boxes in the legend, and the gap between them and the words.
SAMPLE_WIDTH, SAMPLE_HEIGHT, SAMPLE_GAP = 0.34, 0.2, 0.1


class Area(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        """Its middle."""
        return self.left + self.width / 2, self.bottom + self.height / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.bottom + self.height


def save(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture to a file that ends in .svg or .png, whole or not at all."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in ENDINGS:
        rule, example = f"a picture is saved as {' or '.join(ENDINGS)}", target.stem or "picture"
        raise input_error(rule, repr(str(target)), f"name it for example {example}.svg")
    check_can_write(target, "a picture")
    metadata = {"Title": picture.title, "Description": picture.caption}
    if ending == ".svg":
        metadata |= {"Date": None}  # type: ignore[dict-item]
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = FigureLayout(picture).draw()
        resolution = min(DOTS_PER_INCH, MOST_DOTS / max(figure.get_size_inches()))
        figure.savefig(content, format=ending[1:], dpi=resolution, metadata=metadata)
    write_whole(target, content.getvalue())


class FigureLayout:
    """Where the parts of a picture go, in inches from the lower left corner."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        labels = max(text_width(row.label, SMALL) for row in picture.rows)
        self.left = MARGIN + labels + 0.1
        inner = max(LEAST_WIDTH, labels + 0.1 + len(picture.columns) * PITCH)
        self.title = textwrap.wrap(picture.title, int(inner / text_width("x", LARGE) / BOLD))
        self.notes = textwrap.wrap(" ".join(picture.notes), int(inner / text_width("x", SMALL)))
        self.samples = box_samples(picture)
        # Two more lines explain the arrow and the outline.
        self.legend_top = MARGIN + (len(self.samples) + 2 + len(self.notes)) * LEGEND_LINE
        self.bottom = self.legend_top + 0.6
        self.bottom += 0.28 if picture.sight is not None else 0
        self.bottom += 0.17 if self.shows_tokens else 0
        self.top = self.bottom + len(picture.rows) * ROW_PITCH
        self.height = self.top + 0.3 + len(self.title) * TITLE_LINE + MARGIN
        self.figure = Figure(figsize=(inner + 2 * MARGIN, self.height), facecolor="white")

    @property
    def shows_tokens(self) -> bool:
        """Whether columns are more than a token, and the numbers of their tokens fit below them."""
        columns = self.picture.columns
        widest = max(len(counted_from_one(tokens)) for tokens in columns)
        return len(columns[0]) > 1 and text_width("0" * widest, TINY) < PITCH

    def area(self, row: int, columns: range) -> Area:
        """The area of a box, or of all boxes in a row."""
        left, bottom = self.left + columns.start * PITCH, self.bottom + row * ROW_PITCH
        return Area(left, bottom, len(columns) * PITCH, BOX_HEIGHT)

    def draw(self) -> Figure:
        """Draw title, rows from bottom to top, inputs, and legend."""
        for number, line in enumerate(self.title):
            middle = self.height - MARGIN - (number + 0.3) * TITLE_LINE
            write(self.figure, MARGIN, middle, line, size=LARGE, weight="bold")
        write(self.figure, MARGIN, self.top + 0.2, self.picture.caption, colour=GREY)
        for number in range(len(self.picture.rows)):
            self._draw_row(number)
        self._draw_inputs()
        if self.picture.sight is not None:
            self._draw_sight(self.picture.sight)
        self._draw_legend()
        return self.figure

    def _draw_row(self, number: int) -> None:
        """The outline, the boxes in it, the name of the step and the outputs that leave."""
        row = self.picture.rows[number]
        whole = self.area(number, row.outline)
        bottom, height = whole.bottom - PADDING, whole.height + 2 * PADDING
        draw_outline(self.figure, whole._replace(bottom=bottom, height=height))
        write(self.figure, MARGIN, whole.centre[1], row.label, size=SMALL)
        for box in row.boxes:
            area = self.area(number, box.columns)
            draw_box(self.figure, box, area, num_passes=self.picture.num_passes)
            if box.leaves:
                centre = area.centre[0]
                draw_arrow(self.figure, centre, area.top, area.top + 0.24)
                write(self.figure, centre + 0.07, area.top + 0.17, output_names(box), size=SMALL)

    def _draw_inputs(self) -> None:
        """The name and the tokens of each column, and a line to the row where it enters."""
        top = self.bottom - PADDING - 0.2
        # Of each column, the row where it is first seen, which is always as a query.
        entrances: dict[int, int] = {}
        for number, row in enumerate(self.picture.rows):
            for box in row.boxes:
                entrances |= {column: entrances.get(column, number) for column in box.columns}
        for column, tokens in enumerate(self.picture.columns):
            entrance = self.area(entrances[column], range(column, column + 1))
            centre = entrance.centre[0]
            ends = ((centre, top), (centre, entrance.bottom - PADDING))
            draw_line(self.figure, *ends, color=PALE, linewidth=0.8, zorder=0.5)
            write(self.figure, centre, top - 0.1, name("x", column + 1), align="center")
            if self.shows_tokens:
                numbers = counted_from_one(tokens)
                style: dict[str, Any] = {"size": TINY, "colour": GREY, "align": "center"}
                write(self.figure, centre, top - 0.27, numbers, **style)

    def _draw_sight(self, sight: range) -> None:
        """A bracket under the columns that the last token sees."""
        seen, top = self.area(0, sight), self.legend_top + 0.43
        left, right, bottom = seen.left + INSET, seen.left + seen.width - INSET, top - 0.08
        corners = ((left, top), (left, bottom), (right, bottom), (right, top))
        draw_line(self.figure, *corners, color=DARK, linewidth=1)
        words = f"seen by {name('x', sight.stop)}"
        write(self.figure, seen.centre[0], bottom - 0.11, words, size=SMALL, align="center")

    def _draw_legend(self) -> None:
        """Samples with their meanings, then the notes; samples end where the words begin."""
        middle = self.legend_top - LEGEND_LINE / 2
        end = MARGIN + max(len(boxes) for boxes, _ in self.samples) * SAMPLE_WIDTH

        def sample(place: int) -> Area:
            left, bottom = end - place * SAMPLE_WIDTH, middle - SAMPLE_HEIGHT / 2
            return Area(left, bottom, SAMPLE_WIDTH, SAMPLE_HEIGHT)

        for boxes, words in [*self.samples, ([], LEAVES), ([], OUTLINE)]:
            for place, box in enumerate(reversed(boxes), start=1):
                draw_box(self.figure, box, sample(place), num_passes=self.picture.num_passes)
            area = sample(1)
            if words == LEAVES:
                draw_arrow(self.figure, area.centre[0], area.bottom, area.top + 0.02)
            elif words == OUTLINE:
                left, width = area.left + INSET, area.width - 2 * INSET
                draw_outline(self.figure, area._replace(left=left, width=width))
            write(self.figure, end + SAMPLE_GAP, middle, words, size=SMALL)
            middle -= LEGEND_LINE
        for note in self.notes:
            write(self.figure, MARGIN, middle, note, size=SMALL, colour=GREY)
            middle -= LEGEND_LINE


def box_samples(picture: Picture) -> list[tuple[list[Box], str]]:
    """Boxes of each kind, on its first pass, one in the middle, and its last; what they mean."""
    entries = []
    for kind in KINDS:
        passes = sorted({box.pass_number for box in picture.boxes if box.kind == kind})
        if passes:
            shown = dict.fromkeys((passes[0], passes[len(passes) // 2], passes[-1]))
            boxes = [Box(kind=kind, columns=range(1), pass_number=number) for number in shown]
            entries.append((boxes, meaning(kind, passes[-1])))
    return entries


def text_width(text: str, size: float) -> float:
    """About how wide a text will be."""
    return len(text) * LETTER_WIDTH * size


def write(
    figure: Figure,
    left: float,
    middle: float,
    text: str,
    *,
    size: float = MEDIUM,
    colour: str = DARK,
    align: str = "left",
    vertical: str = "center",
    **style: Any,  # noqa: ANN401
) -> None:
    """Write a line of text."""
    style |= {"fontsize": size, "color": colour, "ha": align, "va": vertical}
    figure.text(left, middle, text, transform=figure.dpi_scale_trans, **style)


def draw_line(figure: Figure, *corners: tuple[float, float], **style: Any) -> None:  # noqa: ANN401
    """A line through some corners."""
    xs, ys = zip(*corners, strict=True)
    figure.add_artist(Line2D(xs, ys, transform=figure.dpi_scale_trans, **style))


def draw_outline(figure: Figure, area: Area) -> None:
    """The line around what is computed in parallel."""
    outline = FancyBboxPatch(
        (area.left, area.bottom),
        area.width,
        area.height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor="white",
        edgecolor=DARK,
        linewidth=1.1,
        transform=figure.dpi_scale_trans,
    )
    figure.add_artist(outline)


def draw_box(figure: Figure, box: Box, area: Area, *, num_passes: int) -> None:
    """A box of any kind, with its pass number in the middle."""
    # Cached chunks are hatched, kept ones dotted, queries filled: kinds differ without colour.
    style: dict[str, Any] = {"facecolor": CACHED, "edgecolor": PALE, "hatch": "/////"}
    ink, linewidth = DARK, 0.8
    if box.kind == "query":
        fill, ink = pass_colours(box.pass_number, num_passes)
        style = {"facecolor": fill, "edgecolor": DARK}
    elif box.kind == "kept":
        style = {"facecolor": "white", "edgecolor": GREY, "linestyle": (0, (1, 1.5))}
        linewidth = 1.1
    corner, size = (area.left + INSET, area.bottom), (area.width - 2 * INSET, area.height)
    style |= {"linewidth": linewidth, "transform": figure.dpi_scale_trans}
    figure.add_artist(Rectangle(corner, *size, **style))
    for place in range(1, len(box.columns)):
        between = area.left + place * area.width / len(box.columns)
        ends = ((between, area.bottom), (between, area.top))
        draw_line(figure, *ends, color=ink, linewidth=0.4, alpha=0.5)
    # Where hatching or lines between tokens would cross the number, it gets a plain background.
    is_crossed = box.kind == "cached" or len(box.columns) > 1
    behind = {"boxstyle": "square,pad=0.1", "facecolor": style["facecolor"], "edgecolor": "none"}
    write(
        figure,
        *area.centre,
        str(box.pass_number),
        size=MEDIUM if area.height > SAMPLE_HEIGHT else SMALL,
        colour=ink,
        align="center",
        vertical="center_baseline",
        weight="bold" if box.kind == "query" else "normal",
        bbox=behind if is_crossed else None,
    )


def draw_arrow(figure: Figure, centre: float, bottom: float, top: float) -> None:
    """An arrow that points up."""
    arrow = FancyArrowPatch(
        (centre, bottom),
        (centre, top),
        arrowstyle="-|>,head_width=0.18,head_length=0.32",
        mutation_scale=10,
        shrinkA=0,
        shrinkB=0,
        linewidth=1.2,
        color=DARK,
        transform=figure.dpi_scale_trans,
    )
    figure.add_artist(arrow)
