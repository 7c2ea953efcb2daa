"""Figures on disk, and the colours they share."""

import io
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.files import write_whole

DOTS_PER_INCH = 160
ENDINGS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}}
"""The files of a figure, and their metadata: no date, so that they can be compared."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    # Text stays text, so that it can be searched, selected and read aloud.
    "svg.fonttype": "none",
    # The same figure gives the same file.
    "svg.hashsalt": "staircase",
}

# Okabe and Ito's colours, which differ for every kind of colour vision; yellow, which is hard to
# see on white, comes last.
BLUE, ORANGE, GREEN, BLACK = "#0072b2", "#e69f00", "#009e73", "#000000"
PURPLE, VERMILION, SKY, YELLOW = "#cc79a7", "#d55e00", "#56b4e9", "#f0e442"
MODEL_COLOURS = {
    "Staircase": BLUE,
    "Cached Staircase": ORANGE,
    "Global Cached Staircase": VERMILION,
    "Ladder": GREEN,
    "Transformer-XL": BLACK,
    "Feedback Transformer": PURPLE,
    "LSTM": SKY,
}
OTHER_COLOUR = YELLOW
MODEL_MARKERS = {
    "Staircase": "o",
    "Cached Staircase": "s",
    "Global Cached Staircase": "P",
    "Ladder": "^",
    "Transformer-XL": "X",
    "Feedback Transformer": "D",
    "LSTM": "v",
}
LineStyle = Literal["-", "--", ":", "-."]
LINE_STYLES: tuple[LineStyle, ...] = get_args(LineStyle)
Points = Sequence[tuple[float, float]]
"""Places along an axis, and errors in percent."""
GREY = "#666666"
LIGHT_GREY = "#dddddd"


def row_styles(models: Sequence[str]) -> list[tuple[str, LineStyle]]:
    """A colour and dashes for each row: models differ by colour, the rows of a model by dashes."""
    dashes: dict[str, Iterator[LineStyle]] = {}
    return [
        (
            MODEL_COLOURS.get(model, OTHER_COLOUR),
            next(dashes.setdefault(model, cycle(LINE_STYLES))),
        )
        for model in models
    ]


def draw_row(
    axes: Axes,
    name: str,
    mean: Points,
    seeds: Sequence[Points],
    look: tuple[str, LineStyle],
    marker: str | None = None,
) -> tuple[float, Line2D]:
    """A thick line for the mean, and a thin one a seed where there are several; where it ends."""
    colour, style = look
    if len(seeds) > 1:
        for points in seeds:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=0.6, alpha=0.45)
    places, errors = zip(*mean, strict=True)
    [line] = axes.plot(
        places,
        errors,
        color=colour,
        linestyle=style,
        linewidth=1.9,
        marker=marker,
        markersize=4,
        label=f"{name}: {errors[-1]:.1f}%",
    )
    return errors[-1], line


def tidy(axes: Axes, handles: Sequence[Line2D]) -> None:
    """What all figures of errors share: percents, a quiet grid, the legend beside the axes."""
    axes.set_ylim(-3, 103)
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def save(figure: Figure, path: Path) -> None:
    """Write a figure as path.png and path.svg, each whole or as it was before."""
    with matplotlib.rc_context(SETTINGS):
        for ending, metadata in ENDINGS.items():
            content = io.BytesIO()
            figure.savefig(content, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)
            write_whole(path.with_suffix(ending), content.getvalue())
