"""The figures of a report: error against recurrent steps, updates, time and episode length."""

import io
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from staircase_attention.clock import clock
from staircase_attention.drawing.figure import SETTINGS
from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.paper import Spread
from staircase_attention.experiments.results import RowSummary, RunRecord
from staircase_attention.files import write_whole

DOTS_PER_INCH = 160
ENDINGS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}}
"""The files of a figure, and their metadata: no date, so that they can be compared."""
GREY, LIGHT_GREY, BAND = "#666666", "#dddddd", "#f4f4f4"
# Okabe and Ito's colours, then three of Paul Tol's: they differ for every kind of colour vision,
# and no two models that are often compared have the same hue. Markers differ as well.
BLUE, ORANGE = "#0072b2", "#e69f00"
FAMILIES: dict[str, tuple[str, str]] = {
    "Staircase": (BLUE, "o"),
    "Cached Staircase": (ORANGE, "s"),
    "Global Cached Staircase": ("#d55e00", "P"),
    "Ladder": ("#009e73", "^"),
    "Transformer-XL": ("#000000", "X"),
    "Feedback Transformer": ("#cc79a7", "D"),
    "LSTM": ("#8c6d31", "v"),
    "Universal Transformer": ("#882255", "<"),
    "Memory Network": ("#999933", ">"),
}
"""Colour and marker of every model family."""
OTHER_FAMILIES = (("#44aa99", "p"), ("#888888", "h"), ("#aa4499", "*"))
"""Colours and markers of families that a user adds."""
DASHES = ("-", "--", ":", "-.")
"""Line styles of the rows of one family."""
NUM_MARKERS = 8
"""Markers along a curve, about."""
Points = Sequence[tuple[float, float]]
"""Positions along an axis, and errors in percent."""
Against = Literal["updates", "time"]


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


def draw_figures(
    experiment: Experiment, rows: Sequence[RowSummary], folder: Path
) -> dict[str, str]:
    """Draw every figure for which there is data: names of PNG files, and captions.

    Figures of an earlier report that no longer have data are removed.
    """
    title, runs, drawn = experiment.title, [run for row in rows for run in row.runs], {}
    figures: dict[str, tuple[bool, Callable[[], Figure], str]] = {
        "figure-2": (
            experiment.is_table and bool(recurrence_points(rows)),
            lambda: recurrence_figure(rows, title=title),
            "Test error against recurrent steps",
        ),
        "learning-curves": (
            any(run.curve for run in runs),
            lambda: learning_curves(rows, title=title),
            "Validation error against updates",
        ),
        "learning-times": (
            any(run.seconds for run in runs),
            lambda: learning_curves(rows, title=title, against="time"),
            "Validation error against training time",
        ),
        "lengths": (
            any(row.lengths for row in rows),
            lambda: length_figure(rows, title=title),
            "Test error against episode length",
        ),
    }
    for name, (has_data, figure, caption) in figures.items():
        if has_data:
            save(figure(), folder / name)
            drawn[f"{name}.png"] = caption
        else:
            for ending in ENDINGS:
                (folder / name).with_suffix(ending).unlink(missing_ok=True)
    return drawn


def save(figure: Figure, path: Path) -> None:
    """Write a figure as path.png and path.svg, each whole or as it was before."""
    with matplotlib.rc_context(SETTINGS):
        for ending, metadata in ENDINGS.items():
            content = io.BytesIO()
            figure.savefig(content, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)
            write_whole(path.with_suffix(ending), content.getvalue())


def learning_curves(
    rows: Sequence[RowSummary], *, title: str, against: Against = "updates"
) -> Figure:
    """Validation error against updates or time: the mean over seeds, and each seed as a thin line.

    The mean is over finished runs or, before any is finished, over all.
    """
    figure, axes = _axes(title)
    ends: list[tuple[float, Line2D]] = []
    for row, style in _styles(rows):
        drawn = [run for run in row.runs if positions(run, against)]
        averaged = [run for run in drawn if run.status == "finished"] or drawn
        mean = _along(mean_curve([run.curve for run in averaged]), averaged, against)
        if mean:
            seeds = [_along(run.curve, [run], against) for run in drawn]
            ends.append(_draw_row(axes, row.row.shown, mean, seeds, style))
    axes.set_xlim(left=0)
    axes.set_ylabel("Validation error (%)")
    if against == "updates":
        axes.set_xlabel("Updates")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        shared = any(run.is_shared for row in rows for run in row.runs if run.seconds)
        label = "Time of training and validation"
        axes.set_xlabel(label + (", of runs that shared the machine" if shared else ""))
        axes.xaxis.set_major_locator(MultipleLocator(tick_seconds(axes.get_xlim()[1])))
        axes.xaxis.set_major_formatter(lambda value, _: clock(value))
    _finish(axes, ends)
    return figure


def mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """The mean over runs, at the updates that all of them have reached.

    >>> mean_curve([[(10, 90.0), (20, 50.0)], [(10, 80.0)]])
    [(10, 85.0)]
    """
    tables = [dict(curve) for curve in curves]
    common = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(update, statistics.fmean(table[update] for table in tables)) for update in common]


def positions(run: RunRecord, against: Against) -> dict[int, float]:
    """Where the updates of a run's curve lie along the axis, as far as that is known."""
    return dict(run.seconds) if against == "time" else {n: float(n) for n, _ in run.curve}


def _along(
    curve: Sequence[tuple[int, float]], runs: Sequence[RunRecord], against: Against
) -> list[tuple[float, float]]:
    """A curve of some runs, each update at its mean position over these runs."""
    by_run = [positions(run, against) for run in runs]
    return [
        (statistics.fmean(known[update] for known in by_run), error)
        for update, error in curve
        if all(update in known for known in by_run)
    ]


def tick_seconds(end: float) -> int:
    """Seconds between the ticks of a time axis that ends here.

    >>> [tick_seconds(end) for end in (50, 160, 7000)]
    [10, 30, 900]
    """
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18_000, 36_000, 86_400)
    return next((step for step in steps if end / step <= 9), steps[-1])  # noqa: PLR2004


def length_figure(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Test error against episode length: the mean over seeds, and each seed as a thin line."""
    figure, axes = _axes(title)
    lengths = sorted({length for row in rows for length in row.lengths})
    ends: list[tuple[float, Line2D]] = []
    for row, style in _styles(rows):
        known = [(float(length), row.length_error(length)) for length in row.lengths]
        mean = [(length, spread.mean) for length, spread in known if spread is not None]
        seeds = [sorted(run.lengths.items()) for run in row.runs if run.lengths]
        if mean:
            ends.append(_draw_row(axes, row.row.shown, mean, seeds, style))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Length of test episodes")
    axes.set_ylabel("Test error (%)")
    _finish(axes, ends)
    return figure


def _styles(rows: Sequence[RowSummary]) -> Iterator[tuple[RowSummary, Style]]:
    """The rows that were run, and how each is drawn."""
    run = [row for row in rows if row.runs]
    return zip(run, row_styles([row.row.model for row in run]), strict=True)


def _axes(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, loc="left")
    return figure, axes


def _draw_row(
    axes: Axes, name: str, mean: Points, seeds: Sequence[Points], style: Style
) -> tuple[float, Line2D]:
    """A thick line for the mean, thin ones for several seeds; the last error, and the line."""
    if len(seeds) > 1:
        for points in seeds:
            axes.plot(*zip(*points, strict=True), color=style.colour, linewidth=0.6, alpha=0.45)
    places, errors = zip(*mean, strict=True)
    [line] = axes.plot(
        places,
        errors,
        color=style.colour,
        linestyle=style.dashes,
        linewidth=1.9,
        marker=style.marker,
        markersize=5,
        markevery=max(1, len(places) // NUM_MARKERS),
        label=f"{name}: {errors[-1]:.1f}%",
    )
    return errors[-1], line


def _finish(axes: Axes, ends: Sequence[tuple[float, Line2D]]) -> None:
    """The legend, in the order in which the curves end from top to bottom; grid and limits."""
    _tidy(axes, [line for _, line in sorted(ends, key=lambda end: -end[0])])
    shown = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    axes.set_ylim(*error_limits([error for errors in shown for error in errors.tolist()]))


def error_limits(errors: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that shows all errors: from 0, unless all of them are far from it.

    >>> error_limits([0.5, 40.0]), error_limits([40.0, 50.0])
    ((-1.2, 41.2), (39.5, 50.5))
    """
    low, high = min(errors, default=0.0), max(errors, default=100.0)
    low = 0.0 if low < high / 2 else low
    margin = (0.03 if low == 0 else 0.05) * (high - low) or 0.5
    return low - margin, high + margin


def _tidy(axes: Axes, handles: Sequence[Line2D]) -> None:
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


IN_FIGURE_2 = (
    "Transformer-XL",
    "Feedback Transformer",
    "Cached Staircase",
    "Staircase",
    "Ladder",
)
"""The models that the paper's Figure 2 shows."""
PITCH = 0.3
"""Between two rows with the same recurrent steps, side by side."""
APART = 0.075
"""From the middle of a row to our point on the left, and to the paper's on the right, if any."""
GAP = 0.3
"""Between rows with different recurrent steps, in addition to the pitch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One row in Figure 2."""

    model: str
    recurrent_steps: int
    position: float
    """Along the axis: rows with the same recurrent steps are side by side."""
    forward_size: int | None
    ours: Spread | None
    paper: Spread | None


def recurrence_points(rows: Sequence[RowSummary]) -> list[Point]:
    """A point for every row that has a score, ours or the paper's, in the order of IN_FIGURE_2."""
    shown = [row for row in rows if row.row.model in IN_FIGURE_2 and (row.row.paper or row.results)]

    def key(row: RowSummary) -> tuple[int, int]:
        # A Transformer-XL, for which the tables print a dash, makes one pass.
        return row.row.words.recurrent_steps or 1, IN_FIGURE_2.index(row.row.model)

    points, left = [], 0.0
    for steps, group in groupby(sorted(shown, key=key), key=lambda row: key(row)[0]):
        for row in group:
            point = Point(
                model=row.row.model,
                recurrent_steps=steps,
                position=left,
                forward_size=row.row.words.forward_size,
                ours=row.error("test"),
                paper=None if row.row.paper is None else row.row.paper.test,
            )
            points.append(point)
            left += PITCH
        left += GAP
    return sorted(points, key=lambda point: (IN_FIGURE_2.index(point.model), point.position))


def recurrence_figure(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Test error against recurrent steps: mean and deviation, ours filled, the paper's hollow."""
    points = recurrence_points(rows)
    figure, axes = _axes(title)
    for model, group in groupby(points, key=lambda point: point.model):
        _draw_model(axes, model, list(group))
    for point in points:
        if point.model == "Cached Staircase":
            # It has one recurrent step in all its rows; the forward size tells them apart.
            known = [spread for spread in (point.ours, point.paper) if spread is not None]
            top = max(spread.mean + (spread.deviation or 0.0) for spread in known)
            axes.annotate(
                f"C={point.forward_size}",
                (point.position, top),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=GREY,
            )
    _mark_steps(axes, points)
    axes.set_ylabel("Test error (%)")
    _tidy(axes, _legend(points, is_shortened=any(row.is_shortened for row in rows)))
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    return figure


def _draw_model(axes: Axes, model: str, points: Sequence[Point]) -> None:
    """A line through a model's points where it was run with several numbers of steps."""
    colour, marker = FAMILIES[model]
    is_line = len({point.recurrent_steps for point in points}) > 1
    for is_ours in (False, True):
        known = []
        for point in points:
            spread = point.ours if is_ours else point.paper
            shift = 0.0 if point.paper is None else -APART if is_ours else APART
            if spread is not None:
                known.append((point.position + shift, spread))
        if not known:
            continue
        axes.errorbar(
            [position for position, _ in known],
            [spread.mean for _, spread in known],
            yerr=[spread.deviation or 0.0 for _, spread in known],
            color=colour,
            marker=marker,
            markersize=7,
            markerfacecolor=colour if is_ours else "white",
            linestyle=("-" if is_ours else ":") if is_line else "none",
            linewidth=1.4 if is_ours else 1.0,
            elinewidth=1.1,
            capsize=2.5,
        )


def _mark_steps(axes: Axes, points: Sequence[Point]) -> None:
    """Label the axis with recurrent steps, and shade every other group."""
    margin = (PITCH + GAP) / 2
    groups: dict[int, list[float]] = {}
    for point in sorted(points, key=lambda point: point.position):
        groups.setdefault(point.recurrent_steps, []).append(point.position)
    middles = {steps: (min(here) + max(here)) / 2 for steps, here in groups.items()}
    axes.set_xticks(list(middles.values()), [str(steps) for steps in middles])
    for number, here in enumerate(groups.values()):
        if number % 2 == 0:
            axes.axvspan(min(here) - margin, max(here) + margin, color=BAND, zorder=0)
    everything = [point.position for point in points]
    axes.set_xlim(min(everything) - margin, max(everything) + margin)
    axes.set_xlabel("Recurrent steps")


def _legend(points: Sequence[Point], *, is_shortened: bool) -> list[Line2D]:
    models = dict.fromkeys(point.model for point in points)
    entries = [(model, *FAMILIES[model], FAMILIES[model][0]) for model in models]
    has_paper = any(point.paper is not None for point in points)
    if has_paper or is_shortened:
        entries.append(("ours, from fewer updates" if is_shortened else "ours", GREY, "o", GREY))
    if has_paper:
        entries.append(("the paper's", GREY, "o", "white"))
    return [
        Line2D(
            [],
            [],
            color=colour,
            marker=marker,
            markerfacecolor=face,
            linestyle="none",
            label=label,
        )
        for label, colour, marker, face in entries
    ]
