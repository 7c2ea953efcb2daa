"""Figures of a report: scores against recurrent steps, time, updates and episode length.

And those of the suite: a heat map of models against tasks, and accuracy against length.
"""

import base64
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from staircase_attention.drawing.figure import SETTINGS
from staircase_attention.experiments.results import ERROR, PERPLEXITY, Cells, Row, RunRecord, unit
from staircase_attention.files import write_whole

DOTS_PER_INCH = 160
GREY, LIGHT_GREY = "#666666", "#dddddd"
# Okabe and Ito's colours, then three of Paul Tol's: they differ for every kind of colour vision,
# and no two models that are often compared have the same hue. Markers differ as well.
# By model family: colour and marker.
FAMILIES: dict[str, tuple[str, str]] = {
    "Staircase": ("#0072b2", "o"),
    "Cached Staircase": ("#e69f00", "s"),
    "Global Cached Staircase": ("#d55e00", "P"),
    "Ladder": ("#009e73", "^"),
    "Transformer-XL": ("#000000", "X"),
    "Transformer-XL (2x)": (GREY, "d"),
    "Feedback Transformer": ("#cc79a7", "D"),
    "LSTM": ("#8c6d31", "v"),
    "Universal Transformer": ("#882255", "<"),
    "Memory Network": ("#999933", ">"),
}
# Colours and markers of families that a user adds.
OTHER_FAMILIES = (("#44aa99", "p"), ("#888888", "h"), ("#aa4499", "*"))
# Line styles of the rows of one family.
DASHES = ("-", "--", ":", "-.")
# Markers along a curve, about.
NUM_MARKERS = 8
# Pictures of tasks beside each other.
NUM_COLUMNS = 5
# Below this accuracy in percent, cells are so dark that their numbers are white.
DARK = 55
# Where the score at trained lengths, 20 to 40, is drawn, and where they end.
TRAINED_LENGTH, LONGEST_TRAINED = 30, 40
# From one row to the next with as many recurrent steps, and from ours to the paper's: factors.
GAP, PAPER_SHIFT = 1.1, 1.04
# The score by update or length.
Points = Mapping[int, float]


class Style(NamedTuple):
    """How a row is drawn."""

    colour: str
    marker: str
    dashes: str = "-"


class Curve(NamedTuple):
    """A line of a figure: its points in order, and thin lines beside it."""

    points: Points
    style: Style | None = None
    """None: the next family's."""
    seeds: Sequence[Points] = ()


def row_styles(models: Sequence[str]) -> list[Style]:
    """The style of each row: families differ by colour and marker, rows of a family by dashes."""
    others = dict.fromkeys(model for model in models if model not in FAMILIES)
    known = FAMILIES | dict(zip(others, cycle(OTHER_FAMILIES), strict=False))
    dashes: dict[str, Iterator[str]] = {}
    return [
        Style(*known[model], dashes=next(dashes.setdefault(model, cycle(DASHES))))
        for model in models
    ]


def draw_figures(rows: Sequence[Row], *, title: str) -> dict[str, Figure]:
    """Every figure for which there is data, by its caption."""
    figures = {
        "Test score against recurrent steps and time; the paper's is hollow": steps_figure(rows),
        "Validation score against updates": curve_figure(rows, "updates"),
        "Test error against episode length": curve_figure(rows, "length"),
    }
    found = {caption: figure for caption, figure in figures.items() if figure is not None}
    for figure in found.values():
        figure.axes[0].set_title(title, fontsize=11, loc="left")
    return found


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, whole or as it was before."""
    write_whole(path, _drawn(figure, format="png", dpi=DOTS_PER_INCH))


def image(figure: Figure, caption: str) -> str:
    """A figure as HTML that needs no other file."""
    data = base64.b64encode(_drawn(figure, format="svg", metadata={"Date": None})).decode()
    text = html.escape(caption)
    source = f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{source}<figcaption>{text}</figcaption></figure>"


def _drawn(figure: Figure, **options: Any) -> bytes:  # noqa: ANN401
    content = io.BytesIO()
    # A name or a token may have dollar signs.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(content, **options)
    return content.getvalue()


def steps_figure(rows: Sequence[Row]) -> Figure | None:
    """Test score of a table's rows against recurrent steps, and against minutes of training.

    A line joins the rows of a model, ours filled, the paper's hollow. None: nothing was run.
    """
    listed = sorted((row for row in rows if row.budget), key=num_steps)
    if not any(row.results for row in listed):
        return None
    figure = Figure(figsize=(10.4, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = side_by_side(listed)
    ours = [(row, spread) for row in listed if (spread := row.score("test"))]
    theirs = [(row, row.paper.test) for row in listed if row.paper and row.paper.test]
    # Perplexities of other vocabularies do not belong on one axis.
    theirs = [] if listed[0].measure is PERPLEXITY else theirs
    models = [*dict.fromkeys(row.model for row in rows if row.budget)]
    for model, style in zip(models, row_styles(models), strict=True):
        own = [row for row in listed if row.model == model]
        for axes, place, scores, face in (
            (left, lambda row: PAPER_SHIFT * places[row.name], theirs, "white"),
            (left, lambda row: places[row.name], ours, style.colour),
            (right, lambda row: row.seconds / 60, ours, style.colour),
        ):
            points = {row.name: (place(row), one) for row, one in scores if row.model == model}
            axes.errorbar(
                [x for x, _ in points.values()],
                [spread.mean for _, spread in points.values()],
                yerr=[spread.deviation or 0.0 for _, spread in points.values()],
                color=style.colour,
                marker=style.marker,
                markerfacecolor=face,
                linestyle="none",
                elinewidth=0.8,
                capsize=2.5,
                label=model if axes is right and points else None,
            )
            # A line joins the first row of every number of steps; if there are others, rows are
            # named by their forward size.
            joined = {num_steps(row): row.name for row in reversed(own)}.values()
            line = [(x, spread.mean) for name, (x, spread) in points.items() if name in joined]
            if len(joined) > 1:
                axes.plot([x for x, _ in line], [y for _, y in line], style.colour, linewidth=0.8)
            for row in own if len(joined) < len(own) and face != "white" else ():
                size, label = row.words.forward_size, "" if row.name in joined else row.label
                if row.name in points:
                    x, spread = points[row.name]
                    note, above = f"C{size}" if size else label, (0, 7)
                    axes.annotate(
                        note, (x, spread.mean), above, textcoords="offset points", fontsize=6
                    )
    ticks = sorted({num_steps(row) for row in listed})
    hollow = " (hollow: the paper's)" if theirs else ""
    left.set(xlabel=f"Recurrent steps{hollow}", ylabel=f"Test: {unit(listed)}", xscale="log")
    left.set_xticks(ticks, [str(steps) for steps in ticks])
    shared = ", some beside other runs" if any(row.is_shared for row in listed) else ""
    right.set(xlabel=f"Minutes of training{shared}", xscale="log")
    right.xaxis.set_major_formatter("{x:g}")
    right.xaxis.set_minor_formatter(PlainTicks())
    left.minorticks_off()
    _tidy(left, [])
    _tidy(right, right.get_legend_handles_labels()[0])
    return figure


class PlainTicks(LogFormatter):
    """As many labels as a logarithmic axis has room for, without exponents."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of a tick, empty for most within a decade."""
        return f"{x:g}" if super().__call__(x, pos) else ""


def num_steps(row: Row) -> float:
    """Recurrent steps; a Transformer-XL, for which the tables print a dash, makes one pass."""
    return row.words.recurrent_steps or 1


def side_by_side(rows: Sequence[Row]) -> dict[str, float]:
    """Places for rows on a logarithmic axis of recurrent steps: those of one number in a group."""
    places: dict[str, float] = {}
    for steps in {*map(num_steps, rows)}:
        group = [row.name for row in rows if num_steps(row) == steps]
        for number, name in enumerate(group):
            places[name] = steps * GAP ** (number - (len(group) - 1) / 2)
    return places


def curve_figure(rows: Sequence[Row], against: Literal["updates", "length"]) -> Figure | None:
    """Scores as curves: the mean over seeds, and each of several seeds as a thin line.

    Against updates the mean is over finished runs or, before any is finished, over all. None: there
    is no data.
    """
    is_length = against == "length"

    def points_of(one: RunRecord) -> Points:
        return dict(sorted(one.lengths.items())) if is_length else dict(one.curve)

    run = [row for row in rows if any(points_of(one) for one in row.runs)]
    if not run:
        return None
    curves: dict[str, Curve] = {}
    for row, style in zip(run, row_styles([row.model for row in run]), strict=True):
        # An unfinished run would end the mean where it stopped. Of lengths the mean is the table's.
        finished = [points_of(one) for one in row.runs if is_length or one.status == "finished"]
        seeds = [*filter(None, map(points_of, row.runs))]
        if mean := mean_points([*filter(None, finished)] or seeds, common=not is_length):
            *_, last = mean.values()
            digits, percent = (1, "%") if row.measure is ERROR else (row.measure.digits, "")
            curves[f"{row.label}: {last:.{digits}f}{percent}"] = Curve(mean, style, seeds)
    x, y = "Updates", f"Validation: {unit(run)}"
    if is_length:
        x, y = "Length of test episodes", "Test: error %"
    return lines_figure(curves, is_log=is_length, xlabel=x, ylabel=y)


def mean_points(runs: Sequence[Points], *, common: bool) -> Points:
    """The mean error over the runs that have a point; in common: only points that all have."""
    keys = set.intersection(*map(set, runs)) if common else set().union(*runs)
    return {key: fmean(points[key] for points in runs if key in points) for key in sorted(keys)}


def lines_figure(
    curves: Mapping[str, Curve], *, title: str = "", is_log: bool = False, **labels: str
) -> Figure:
    """A line through the points of each name; a logarithmic axis has a tick for each point."""
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes, lines, families = figure.add_subplot(), list[Line2D](), cycle(FAMILIES.values())
    for name, (points, own, seeds) in curves.items():
        style = own or Style(*next(families))
        for thin in seeds if len(seeds) > 1 else ():
            axes.plot([*thin], [*thin.values()], color=style.colour, linewidth=0.6, alpha=0.45)
        lines += axes.plot(
            [*points],
            [*points.values()],
            color=style.colour,
            linestyle=style.dashes,
            linewidth=1.9,
            marker=style.marker,
            markersize=5,
            markevery=max(1, len(points) // NUM_MARKERS),
            label=name,
        )
    if is_log:
        ticks = sorted({place for curve in curves.values() for place in curve.points})
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(ticks, [f"{place:,}" for place in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params("x", integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    bottom, top = axes.get_ylim()
    # From 0, unless all curves would then lie in the upper half.
    if 0 < bottom < top / 2:
        axes.set_ylim(bottom=-0.03 * top)
    axes.set(**labels)
    axes.set_title(title, fontsize=11, loc="left")
    # In the order in which the curves end from top to bottom.
    _tidy(axes, sorted(lines, key=lambda line: -float(line.get_ydata()[-1])))  # type: ignore[index,arg-type]
    return figure


def _tidy(axes: Axes, handles: Sequence[Line2D]) -> None:
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def heat_map(cells: Cells, published: Mapping[str, Any]) -> Figure:
    """Accuracies at trained lengths, at longer ones, and of the study at longer ones."""
    models = [*next(iter(cells.values()))]
    networks, scores = published["networks"], published["scores"]
    rows = [[*row.values()] for row in cells.values()]
    trained = [[row[0]["guess"], *(cell["trained"] for cell in row)] for row in rows]
    longer = [[cell["longer"] for cell in row] for row in rows]
    study = [[scores.get(task, {}).get(name) for name in networks] for task in cells]
    panels = {
        "Trained lengths": (["Best guess", *models], trained),
        "41 to 500": (models, longer),
        "Published, 41 to 500": (networks, study),
    }
    widths = [len(columns) for columns, _ in panels.values()]
    figure = Figure((3 + 0.55 * sum(widths), 2.2 + 0.33 * len(cells)), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)
    for axes, (title, (columns, values)) in zip(grid[0], panels.items(), strict=True):
        shown = np.array(values, dtype=float)
        axes.imshow(shown, vmin=0, vmax=100, cmap="cividis", aspect="auto")
        for (number, column), value in np.ndenumerate(shown):
            if not np.isnan(value):
                colour = "white" if value < DARK else "black"
                place = {"ha": "center", "va": "center"}
                axes.text(column, number, f"{value:.0f}", place, color=colour, fontsize=8)
        axes.set_facecolor(LIGHT_GREY)
        axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=8)
        axes.set_title(title, fontsize=10, loc="left")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    grid[0, 0].set_yticks(range(len(cells)), [*cells])
    return figure


def length_curves(cells: Cells) -> Figure:
    """Accuracy against length, a small picture for each task; dotted: the best constant guess."""
    num_columns = min(NUM_COLUMNS, len(cells))
    num_rows = -(-len(cells) // num_columns)
    figure = Figure(figsize=(2.6 * num_columns + 0.6, 2.1 * num_rows + 1.1), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for axes, (task, row) in zip(grid.flat, cells.items(), strict=False):
        for (model, cell), style in zip(row.items(), row_styles([*row]), strict=True):
            points = {TRAINED_LENGTH: cell["trained"], **cell["lengths"]}
            known = {length: value for length, value in points.items() if value is not None}
            line = {"color": style.colour, "marker": style.marker, "markersize": 3}
            axes.plot([*known], [*known.values()], label=model, linewidth=1.2, **line)
        axes.axhline(cell["guess"], color=GREY, linestyle=":", linewidth=0.9)
        axes.axvline(LONGEST_TRAINED, color=LIGHT_GREY, linewidth=0.9, zorder=0)
        axes.set_title(task, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xscale="log", ylim=(-3, 103))
        axes.set_xticks([TRAINED_LENGTH, 100, 500], ["20-40", "100", "500"])
        axes.minorticks_off()
    for axes in grid.flat[len(cells) :]:
        axes.set_visible(False)
    lines = grid[0, 0].get_lines()[: len(row)]
    figure.legend(handles=lines, loc="outside upper center", ncols=7, frameon=False, fontsize=8)
    figure.supylabel("Answers that are right, %", fontsize=9)
    figure.supxlabel("Length of test strings", fontsize=9)
    return figure
