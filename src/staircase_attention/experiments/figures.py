"""The figures of a report: scores against recurrent steps, updates, time and episode length."""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from staircase_attention.drawing.figure import SETTINGS
from staircase_attention.experiments.experiment import Row, unit
from staircase_attention.experiments.results import ERROR, PERPLEXITY, RunRecord
from staircase_attention.files import write_whole

DOTS_PER_INCH = 160
GREY, LIGHT_GREY = "#666666", "#dddddd"
# Okabe and Ito's colours, then three of Paul Tol's: they differ for every kind of colour vision,
# and no two models that are often compared have the same hue. Markers differ as well.
BLUE, ORANGE = "#0072b2", "#e69f00"
# Colour and marker of every model family.
FAMILIES: dict[str, tuple[str, str]] = {
    "Staircase": (BLUE, "o"),
    "Cached Staircase": (ORANGE, "s"),
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
# The score by update or length.
Points = Mapping[int, float]
# What scores are drawn against.
Axis = Literal["updates", "length"]


class Style(NamedTuple):
    """How a row is drawn."""

    colour: str
    marker: str
    dashes: str = "-"


def row_styles(models: Sequence[str]) -> list[Style]:
    """The style of each row: families differ by colour and marker, rows of a family by dashes."""
    others = dict.fromkeys(model for model in models if model not in FAMILIES)
    known = FAMILIES | dict(zip(others, cycle(OTHER_FAMILIES), strict=False))
    dashes: dict[str, Iterator[str]] = {}
    return [
        Style(*known[model], dashes=next(dashes.setdefault(model, cycle(DASHES))))
        for model in models
    ]


def draw_figures(rows: Sequence[Row], folder: Path, *, title: str) -> dict[str, str]:
    """Draw every figure for which there is data: names of PNG files, and captions.

    Figures of an earlier report that no longer have data are removed.
    """
    figures = {
        "figure-2": (recurrence_figure(rows), "Test score against recurrent steps"),
        "figure-3": (cost_figure(rows), "Test score against training time and recurrent steps"),
        "learning-curves": (curve_figure(rows, "updates"), "Validation score against updates"),
        "lengths": (curve_figure(rows, "length"), "Test error against episode length"),
    }
    for name, (figure, _) in figures.items():
        if figure is not None:
            figure.axes[0].set_title(title, fontsize=11, loc="left")
            save(figure, folder / f"{name}.png")
        else:
            (folder / f"{name}.png").unlink(missing_ok=True)
    return {f"{name}.png": caption for name, (figure, caption) in figures.items() if figure}


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, whole or as it was before."""
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(content, format="png", dpi=DOTS_PER_INCH)
    write_whole(path, content.getvalue())


def curve_figure(rows: Sequence[Row], against: Axis) -> Figure | None:
    """Scores as curves: the mean over seeds, and each of several seeds as a thin line.

    The mean is over finished runs or, before any is finished, over all. None: there is no data.
    """

    def points_of(one: RunRecord) -> Points:
        return dict(sorted(one.lengths.items())) if against == "length" else dict(one.curve)

    run = [row for row in rows if any(points_of(one) for one in row.runs)]
    if not run:
        return None
    figure, axes = _axes()
    lines: list[Line2D] = []
    errors: list[float] = []
    for row, style in zip(run, row_styles([row.model for row in run]), strict=True):
        known = {one.seed: points_of(one) for one in row.runs}
        # An unfinished run would end the mean where it stopped.
        finished = [known[one.seed] for one in row.runs if one.status == "finished"]
        seeds = [points for points in known.values() if points]
        mean = mean_points([*filter(None, finished)] or seeds, common=against != "length")
        for points in [*seeds, mean] if mean else ():
            errors += points.values()
        lines += _draw_row(axes, row, mean, seeds, style) if mean else []
    axes.set_ylim(*error_limits(errors))
    # In the order in which the curves end from top to bottom.
    _tidy(axes, sorted(lines, key=lambda line: -float(line.get_ydata()[-1])))  # type: ignore[index,arg-type]
    _label_axis(axes, run, against)
    return figure


def time_figure(curves: Mapping[str, Mapping[float, float]]) -> Figure:
    """Bits per byte by minutes, one curve per name."""
    figure, axes = _axes()
    lines: list[Line2D] = []
    for (name, points), colour in zip(curves.items(), (ORANGE, BLUE), strict=False):
        label = f"{name}: {list(points.values())[-1]:.2f}"
        lines += axes.plot([*points], [*points.values()], color=colour, linewidth=1.9, label=label)
    axes.set(xlabel="Minutes", ylabel="Bits per byte")
    _tidy(axes, lines)
    return figure


def passes_figure(curves: Mapping[str, Mapping[int, float]], *, title: str, measure: str) -> Figure:
    """A score by the number of passes of one model, one curve per name."""
    figure, axes = _axes()
    lines: list[Line2D] = []
    for (name, points), style in zip(curves.items(), cycle(FAMILIES.values()), strict=False):
        passes, scores = zip(*sorted(points.items()), strict=True)
        colour, marker = style
        lines += axes.plot(passes, scores, color=colour, marker=marker, label=name)
    ticks = sorted({passes for points in curves.values() for passes in points})
    axes.set(xlabel="Passes", ylabel=measure.capitalize(), xscale="log")
    axes.set_xticks(ticks, [str(passes) for passes in ticks])
    axes.minorticks_off()
    axes.set_title(title, fontsize=11, loc="left")
    _tidy(axes, lines)
    return figure


def mean_points(runs: Sequence[Points], *, common: bool) -> Points:
    """The mean error over the runs that have a point; in common: only points that all have.

    >>> mean_points([{10: 90.0, 20: 50.0}, {10: 80.0}], common=True)
    {10: 85.0}
    """
    keys = set.intersection(*map(set, runs)) if common else set().union(*runs)
    return {key: fmean(points[key] for points in runs if key in points) for key in sorted(keys)}


def _draw_row(
    axes: Axes, row: Row, mean: Points, seeds: Sequence[Points], style: Style
) -> list[Line2D]:
    """A thick line for the mean, which is returned, and thin ones for several seeds."""
    for points in seeds if len(seeds) > 1 else ():
        axes.plot(*zip(*points.items(), strict=True), color=style.colour, linewidth=0.6, alpha=0.45)
    positions, scores = zip(*mean.items(), strict=True)
    last = f"{scores[-1]:.1f}%" if row.measure is ERROR else f"{scores[-1]:.{row.measure.digits}f}"
    return axes.plot(
        positions,
        scores,
        color=style.colour,
        linestyle=style.dashes,
        linewidth=1.9,
        marker=style.marker,
        markersize=5,
        markevery=max(1, len(positions) // NUM_MARKERS),
        label=f"{row.label}: {last}",
    )


def _label_axis(axes: Axes, rows: Sequence[Row], against: Axis) -> None:
    if against == "updates":
        axes.set(xlabel="Updates", ylabel=f"Validation: {unit(rows)}")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        return
    axes.set(xlabel="Length of test episodes", ylabel="Test: error %")
    lengths = sorted({length for row in rows for length in row.lengths})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()


def error_limits(errors: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that shows all errors: from 0, unless all of them are far from it.

    >>> error_limits([0.5, 40.0]), error_limits([40.0, 50.0])
    ((-1.2, 41.2), (39.5, 50.5))
    """
    low, high = min(errors, default=0.0), max(errors, default=100.0)
    # Half is far: then the curves would lie in the upper half of the figure.
    low = 0.0 if low < high / 2 else low
    margin = (0.03 if low == 0 else 0.05) * (high - low) or 0.5
    return low - margin, high + margin


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    return figure, figure.add_subplot()


def _tidy(axes: Axes, handles: Sequence[Line2D]) -> None:
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


# The models that the paper's Figure 2 shows.
IN_FIGURE_2 = (
    "Transformer-XL",
    "Feedback Transformer",
    "Cached Staircase",
    "Staircase",
    "Ladder",
)
# From the middle of a row to our point on the left, and to the paper's on the right.
APART = 0.13


def recurrence_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of a table that have a score, ours or the paper's, by recurrent steps."""
    shown = [
        row
        for row in rows
        if row.budget and row.model in IN_FIGURE_2 and (row.paper or row.results)
    ]
    return sorted(shown, key=lambda row: (num_steps(row), IN_FIGURE_2.index(row.model)))


def num_steps(row: Row) -> int:
    """Recurrent steps; a Transformer-XL, for which the tables print a dash, makes one pass."""
    return row.words.recurrent_steps or 1


def recurrence_figure(rows: Sequence[Row]) -> Figure | None:
    """Test score against recurrent steps: mean and deviation, ours filled, the paper's hollow."""
    shown = recurrence_rows(rows)
    # Perplexities of other vocabularies do not belong on one axis.
    if not shown or shown[0].measure is PERPLEXITY:
        return None
    figure, axes = _axes()
    for number, row in enumerate(shown):
        colour, marker = FAMILIES[row.model]
        printed = None if row.paper is None else row.paper.test
        for spread, shift, face in (
            (row.score("test"), -APART, colour),
            (printed, APART, "white"),
        ):
            if spread is not None:
                axes.errorbar(
                    number + shift,
                    spread.mean,
                    yerr=spread.deviation or 0.0,
                    color=colour,
                    marker=marker,
                    markersize=7,
                    markerfacecolor=face,
                    capsize=2.5,
                )
    sizes = [row.words.forward_size for row in shown]
    names = [
        f"{num_steps(row)}" + (f"\nC={size}" if size else "")
        for row, size in zip(shown, sizes, strict=True)
    ]
    axes.set_xticks(range(len(shown)), names)
    axes.set(xlabel="Recurrent steps, and forward size C", ylabel=f"Test: {unit(shown)}")
    _tidy(axes, _legend(shown))
    if shown[0].measure is ERROR:
        # Markers at 0% stay whole.
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    return figure


def cost_figure(rows: Sequence[Row]) -> Figure | None:
    """Test score of a corpus against minutes of training, and against recurrent steps.

    A line joins the best rows of a model by steps; the others are markers alone.
    """
    shown = [row for row in rows if row.budget and row.results and row.measure is not ERROR]
    if not shown:
        return None
    models: dict[str, list[tuple[int, float, float]]] = {}
    for row in shown:
        minutes, score = fmean(one.wall_seconds for one in row.results) / 60, row.score("test")
        assert score is not None, "it has results"
        models.setdefault(row.model, []).append((num_steps(row), minutes, score.mean))
    figure = Figure(figsize=(10.4, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for (model, points), style in zip(models.items(), row_styles([*models]), strict=True):
        # Of several with as many steps, the last and best is joined.
        points.sort(key=lambda point: (point[0], -point[2]))
        best = [*{point[0]: point for point in points}.values()]
        for axes, column in ((left, 1), (right, 0)):
            for chosen, line in ((best, "-"), (points, "none")):
                x, y = [one[column] for one in chosen], [one[2] for one in chosen]
                axes.plot(x, y, style.marker, color=style.colour, linestyle=line, label=model)
        for steps, *place in best:
            left.annotate(f" {steps}", place, color=style.colour, fontsize=8, va="bottom")
    left.set(xlabel="Minutes of training (numbers: recurrent steps)", xscale="log")
    left.set(ylabel=f"Test: {unit(shown)}")
    left.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")
    ticks = sorted({num_steps(row) for row in shown})
    right.set(xlabel="Recurrent steps", xscale="log")
    right.set_xticks(ticks, [str(steps) for steps in ticks])
    for axes, lines in ((left, []), (right, right.get_lines()[::2])):
        axes.minorticks_off()
        _tidy(axes, lines)
    return figure


def _legend(rows: Sequence[Row]) -> list[Line2D]:
    drawn = {row.model for row in rows}
    entries = [
        (model, *FAMILIES[model], FAMILIES[model][0]) for model in IN_FIGURE_2 if model in drawn
    ]
    has_paper, is_shortened = any(row.paper for row in rows), any(row.is_shortened for row in rows)
    if has_paper or is_shortened:
        entries.append(("ours, from fewer updates" if is_shortened else "ours", GREY, "o", GREY))
    if has_paper:
        entries.append(("the paper's", GREY, "o", "white"))
    return [
        Line2D(
            [], [], color=ink, marker=marker, markerfacecolor=face, label=label, linestyle="none"
        )
        for label, ink, marker, face in entries
    ]
