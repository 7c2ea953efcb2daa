"""A picture as an SVG or PNG file, drawn with matplotlib: a unit is a column wide, a row high.

There is no pyplot, so no state outside of the figure.
"""

import io
import os
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle

from staircase_attention.drawing.picture import (
    KINDS,
    LEAVES,
    OUTLINE,
    Box,
    Kind,
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
# The line around what is computed in parallel.
OUTLINE_STYLE: dict[str, Any] = {"facecolor": "white", "edgecolor": DARK, "linewidth": 1.1}
# Sizes of type, in points.
LARGE, MEDIUM, SMALL, TINY = 11.0, 9.0, 8.0, 6.5
# Inches from one column to the next, and from one row to the next.
PITCH, ROW_PITCH, MARGIN = 0.66, 0.72, 0.3
# Parts of a row: below its outline, the outline, and the boxes in it.
BELOW, OUTLINE_HEIGHT, BOX_HEIGHT = 0.1, 0.72, 0.52
# Half the gap between two boxes.
INSET = 0.07
# Lines of text below the picture, in rows.
LINE = 0.32
# Tokens below each column fit if they have no more characters.
MOST_CHARACTERS = 11


def save_picture(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture to a file that ends in .svg or .png, whole or not at all."""
    target = Path(path)
    ending = target.suffix.lower()
    check_can_write(target, "a picture", ENDINGS)
    metadata = {"Title": picture.title, "Description": picture.caption}
    if ending == ".svg":
        metadata |= {"Date": None}  # type: ignore[dict-item]
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = draw(picture)
        # Words may reach beyond the axes, so the file is as large as all that is drawn.
        whole = figure.get_tightbbox().padded(MARGIN)
        resolution = min(DOTS_PER_INCH, int(MOST_DOTS / max(whole.size)))
        options: dict[str, Any] = {"bbox_inches": whole, "metadata": metadata}
        figure.savefig(content, format=ending[1:], dpi=resolution, **options)
    write_whole(target, content.getvalue())


def draw(picture: Picture) -> Figure:
    """Title, rows from bottom to top, names of the columns, notes and legend."""
    num_columns, num_rows = len(picture.columns), len(picture.rows)
    size = (num_columns * PITCH, num_rows * ROW_PITCH)
    figure = Figure(figsize=size, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, num_columns), ylim=(0, num_rows))
    axes.set_axis_off()
    write(axes, 0, num_rows + 0.75, picture.title, size=LARGE, weight="bold")
    write(axes, 0, num_rows + 0.4, picture.caption, color=GREY)
    for number in range(num_rows):
        draw_row(axes, picture, number)
    bottom = draw_inputs(axes, picture)
    for note in picture.notes:
        write(axes, 0, bottom, note, size=SMALL, color=GREY)
        bottom -= LINE
    samples = dict(box_samples(picture))
    axes.legend(
        handles=list(samples.values()),
        labels=list(samples),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.2)},
        loc="upper left",
        bbox_to_anchor=(0, bottom + LINE / 4),
        bbox_transform=axes.transData,
        borderpad=0,
        borderaxespad=0,
        frameon=False,
        fontsize=SMALL,
        handlelength=5,
        handleheight=1.4,
    )
    return figure


def draw_row(axes: Axes, picture: Picture, number: int) -> None:
    """The outline, the boxes in it, the name of the step and the outputs that leave."""
    row, bottom = picture.rows[number], number + BELOW
    middle, top = bottom + OUTLINE_HEIGHT / 2, bottom + (OUTLINE_HEIGHT + BOX_HEIGHT) / 2
    write(axes, -0.15, middle, row.label, size=SMALL, ha="right")
    axes.add_patch(
        FancyBboxPatch(
            (row.outline.start, bottom),
            len(row.outline),
            OUTLINE_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.12",
            clip_on=False,
            **OUTLINE_STYLE,
        )
    )
    for box in row.boxes:
        draw_box(axes, box, middle, num_passes=picture.num_passes)
        if box.leaves:
            centre = (box.columns.start + box.columns.stop) / 2
            arrow = {"arrowstyle": "-|>", "color": DARK, "shrinkA": 0, "shrinkB": 0}
            ends = (centre, top + 0.33), (centre, top)
            axes.annotate("", *ends, arrowprops=arrow, annotation_clip=False)
            write(axes, centre + 0.11, top + 0.24, output_names(box), size=SMALL)


def draw_box(axes: Axes, box: Box, middle: float, *, num_passes: int) -> None:
    """A box of any kind, with its pass number in the middle."""
    left, width = box.columns.start + INSET, len(box.columns) - 2 * INSET
    bottom, top = middle - BOX_HEIGHT / 2, middle + BOX_HEIGHT / 2
    style = box_style(box.kind, box.pass_number, num_passes)
    axes.add_patch(Rectangle((left, bottom), width, BOX_HEIGHT, **style))
    is_query = box.kind == "query"
    ink = pass_colours(box.pass_number, num_passes)[1] if is_query else DARK
    axes.vlines(box.columns[1:], bottom, top, color=ink, linewidth=0.4, alpha=0.5)
    # Where hatching or lines between tokens would cross the number, it gets a plain background.
    is_crossed = box.kind == "cached" or len(box.columns) > 1
    behind = {"boxstyle": "square,pad=0.1", "facecolor": style["facecolor"], "edgecolor": "none"}
    write(
        axes,
        left + width / 2,
        middle,
        str(box.pass_number),
        color=ink,
        ha="center",
        va="center_baseline",
        weight="bold" if is_query else "normal",
        bbox=behind if is_crossed else None,
    )


def draw_inputs(axes: Axes, picture: Picture) -> float:
    """The names of the columns, and lines to the rows where they enter.

    Returns where the next line of text goes.
    """
    # Of each column, the row where it is first seen, which is always as a query.
    entrances: dict[int, int] = {}
    for number, row in enumerate(picture.rows):
        for box in row.boxes:
            entrances |= {column: entrances.get(column, number) for column in box.columns}
    for column, entrance in entrances.items():
        centre, ends = column + 0.5, (-0.1, entrance + BELOW)
        axes.vlines(centre, *ends, color=PALE, linewidth=0.8, zorder=0.5, clip_on=False)
        write(axes, centre, -0.25, name("x", column + 1), ha="center")
    bottom = -0.5
    tokens = [counted_from_one(column) for column in picture.columns]
    if len(picture.columns[0]) > 1 and max(map(len, tokens)) <= MOST_CHARACTERS:
        for column, numbers in enumerate(tokens):
            write(axes, column + 0.5, bottom, numbers, size=TINY, color=GREY, ha="center")
        bottom -= LINE
    return bottom - LINE / 2


def box_style(kind: Kind, pass_number: int, num_passes: int) -> dict[str, Any]:
    """Queries are filled, cached chunks hatched, kept ones dotted: kinds differ without colour."""
    if kind == "query":
        fill, _ = pass_colours(pass_number, num_passes)
        return {"facecolor": fill, "edgecolor": DARK, "linewidth": 0.8}
    if kind == "cached":
        return {"facecolor": CACHED, "edgecolor": PALE, "hatch": "/////", "linewidth": 0.8}
    dots = (0, (1, 1.5))
    return {"facecolor": "white", "edgecolor": GREY, "linestyle": dots, "linewidth": 1.1}


def box_samples(picture: Picture) -> list[tuple[str, Any]]:
    """What each kind of box means, with a sample: its first pass, one in the middle, its last."""
    samples: list[tuple[str, Any]] = []
    for kind in KINDS:
        passes = sorted({box.pass_number for box in picture.boxes if box.kind == kind})
        if passes:
            shown = dict.fromkeys((passes[0], passes[len(passes) // 2], passes[-1]))
            styles = [box_style(kind, number, picture.num_passes) for number in shown]
            boxes = tuple(Rectangle((0, 0), 1, 1, **style) for style in styles)
            samples.append((meaning(kind, passes[-1]), boxes))
    arrow = Line2D([], [], color=DARK, marker="$\\uparrow$", markersize=9, linestyle="none")
    return [*samples, (LEAVES, arrow), (OUTLINE, Rectangle((0, 0), 1, 1, **OUTLINE_STYLE))]


def write(axes: Axes, x: float, y: float, text: str, *, size: float = MEDIUM, **style: Any) -> None:  # noqa: ANN401
    """Write a line of text; to the right of x and with its middle at y, unless told otherwise."""
    options = {"color": DARK, "va": "center", "parse_math": False, **style}
    axes.text(x, y, text, fontsize=size, **options)
