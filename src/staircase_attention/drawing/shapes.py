"""The shapes that a figure is made of. Places and sizes are in inches, type in points."""

from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from staircase_attention.drawing.palette import hexadecimal, ink_on, pass_colour
from staircase_attention.drawing.picture import Box

Weight = Literal["normal", "bold"]
Align = Literal["left", "center", "right"]

DARK = "#1a1a1a"
GREY = "#595959"
PALE = "#b0b0b0"
CACHED = "#efefef"

LARGE, MEDIUM, SMALL, TINY = 11.0, 9.0, 8.0, 6.5
"""Sizes of type."""
LETTER_WIDTHS = {"normal": 0.58, "bold": 0.68}
"""In parts of the size of type: a letter of DejaVu Sans, on the wide side of the average."""
POINTS_PER_INCH = 72
SMALL_BOX = 0.3
"""Boxes no higher than this get smaller numbers."""
INSET = 0.045
"""Half the gap between two boxes side by side."""


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


def text_width(text: str, size: float, weight: Weight = "normal") -> float:
    """About how wide a text will be."""
    return len(text) * LETTER_WIDTHS[weight] * size / POINTS_PER_INCH


def write(
    figure: Figure,
    left: float,
    middle: float,
    text: str,
    *,
    size: float = MEDIUM,
    colour: str = DARK,
    align: Align = "left",
    weight: Weight = "normal",
) -> None:
    """Write a line of text."""
    figure.text(
        left,
        middle,
        text,
        fontsize=size,
        color=colour,
        weight=weight,
        ha=align,
        va="center",
        transform=figure.dpi_scale_trans,
    )


def line(figure: Figure, *corners: tuple[float, float], **looks: Any) -> None:  # noqa: ANN401
    """A line through some corners."""
    xs, ys = zip(*corners, strict=True)
    figure.add_artist(Line2D(xs, ys, transform=figure.dpi_scale_trans, **looks))


def outline(figure: Figure, area: Area) -> None:
    """The line around what is computed in parallel."""
    figure.add_artist(
        FancyBboxPatch(
            (area.left, area.bottom),
            area.width,
            area.height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="white",
            edgecolor=DARK,
            linewidth=1.1,
            transform=figure.dpi_scale_trans,
        )
    )


def box(figure: Figure, drawn: Box, area: Area, *, num_passes: int) -> None:
    """A box of any kind, with its pass number in the middle."""
    looks, ink = _looks(drawn, num_passes)
    corner, width = (area.left + INSET, area.bottom), area.width - 2 * INSET
    scale = figure.dpi_scale_trans
    figure.add_artist(Rectangle(corner, width, area.height, transform=scale, **looks))
    for place in range(1, len(drawn.columns)):
        between = area.left + place * area.width / len(drawn.columns)
        ends = ((between, area.bottom), (between, area.top))
        line(figure, *ends, color=ink, linewidth=0.4, alpha=0.5)
    _number(figure, drawn, area, ink, looks["facecolor"])


def _number(figure: Figure, drawn: Box, area: Area, ink: str, fill: str) -> None:
    """The pass number, clear of hatching and of lines between tokens."""
    is_crossed = drawn.kind == "cached" or len(drawn.columns) > 1
    behind = {"boxstyle": "square,pad=0.1", "facecolor": fill, "edgecolor": "none"}
    figure.text(
        *area.centre,
        str(drawn.pass_number),
        fontsize=MEDIUM if area.height > SMALL_BOX else SMALL,
        color=ink,
        ha="center",
        va="center_baseline",
        weight="bold" if drawn.kind == "query" else "normal",
        bbox=behind if is_crossed else None,
        transform=figure.dpi_scale_trans,
    )


def _looks(drawn: Box, num_passes: int) -> tuple[dict[str, Any], str]:
    """The fill and the edge of a box, and the colour of its number."""
    if drawn.kind == "query":
        colour = pass_colour(drawn.pass_number, num_passes)
        fill = hexadecimal(colour)
        return {"facecolor": fill, "edgecolor": DARK, "linewidth": 0.8}, hexadecimal(ink_on(colour))
    if drawn.kind == "cached":
        return {"facecolor": CACHED, "edgecolor": PALE, "hatch": "/////", "linewidth": 0.8}, DARK
    dotted = {"facecolor": "white", "edgecolor": GREY, "linestyle": (0, (1, 1.5)), "linewidth": 1.1}
    return dotted, DARK


def arrow(figure: Figure, centre: float, bottom: float, top: float) -> None:
    """An arrow that points up."""
    figure.add_artist(
        FancyArrowPatch(
            (centre, bottom),
            (centre, top),
            arrowstyle="-|>,head_width=0.18,head_length=0.32",
            mutation_scale=10,
            color=DARK,
            linewidth=1.2,
            shrinkA=0,
            shrinkB=0,
            transform=figure.dpi_scale_trans,
        )
    )


def output(figure: Figure, area: Area, text: str) -> None:
    """An arrow up from a box that leaves, and the name of its output."""
    centre = area.centre[0]
    arrow(figure, centre, area.top, area.top + 0.24)
    write(figure, centre + 0.07, area.top + 0.17, text, size=SMALL)


def guide(figure: Figure, centre: float, bottom: float, top: float) -> None:
    """A pale line from the name of an input to where it comes in."""
    line(figure, (centre, bottom), (centre, top), color=PALE, linewidth=0.8, zorder=0.5)


def bracket(figure: Figure, left: float, right: float, top: float, text: str) -> None:
    """A bracket that opens upwards, with words under it."""
    left, right, bottom = left + INSET, right - INSET, top - 0.08
    corners = ((left, top), (left, bottom), (right, bottom), (right, top))
    line(figure, *corners, color=DARK, linewidth=1)
    write(figure, (left + right) / 2, bottom - 0.11, text, size=SMALL, align="center")
