"""Learning curves: how the validation error of each row came down."""

from collections.abc import Iterator, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.experiments.pictures import (
    LINE_STYLES,
    MODEL_COLOURS,
    OTHER_COLOUR,
    LineStyle,
    tidy,
)
from staircase_attention.experiments.summary import RowSummary

Curve = Sequence[tuple[int, float]]
"""Updates, and validation errors in percent."""


def learning_curves(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Validation error against updates: the mean over seeds, and each seed in a thin line.

    The legend is in the order in which the curves end, from top to bottom.
    """
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    ends: list[tuple[float, Line2D]] = []
    styles: dict[str, Iterator[LineStyle]] = {}
    for row in rows:
        # Models differ by colour, the rows of a model by their dashes.
        style = next(styles.setdefault(row.row.model, cycle(LINE_STYLES)))
        mean = mean_curve(shown_curves(row))
        if mean:
            ends.append((mean[-1][1], _draw_row(axes, row, mean, style)))
    axes.set_xlim(left=0)
    axes.set_xlabel("Updates")
    axes.set_ylabel("Validation error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    tidy(axes, [line for _, line in sorted(ends, key=lambda end: -end[0])])
    return figure


def shown_curves(row: RowSummary) -> Sequence[Curve]:
    """The curves that make up the mean: of runs that are finished or, before any is, of all."""
    finished = [run.curve for run in row.with_status("finished") if run.curve]
    return finished or [run.curve for run in row.runs if run.curve]


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """The mean over runs, at the updates that all of them have reached.

    >>> mean_curve([[(10, 90.0), (20, 50.0)], [(10, 80.0)]])
    [(10, 85.0)]
    """
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(update, sum(table[update] for table in tables) / len(tables)) for update in shared]


def _draw_row(axes: Axes, row: RowSummary, mean: Curve, style: LineStyle) -> Line2D:
    colour = MODEL_COLOURS.get(row.row.model, OTHER_COLOUR)
    curves = [run.curve for run in row.runs if run.curve]
    if len(curves) > 1:
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.6, alpha=0.45)
    updates, errors = zip(*mean, strict=True)
    name = f"{row.row.name}: {mean[-1][1]:.1f}%"
    [line] = axes.plot(updates, errors, color=colour, linestyle=style, linewidth=1.9, label=name)
    return line
