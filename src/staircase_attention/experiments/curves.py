"""Learning curves: how the validation error of each row came down."""

import statistics
from collections.abc import Sequence
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from staircase_attention.clock import clock
from staircase_attention.experiments.pictures import draw_row, row_styles, tidy
from staircase_attention.experiments.run_records import RunRecord
from staircase_attention.experiments.summary import RowSummary

Curve = Sequence[tuple[int, float]]
"""Updates, and validation errors in percent."""
Against = Literal["updates", "time"]
"""What a curve is drawn along."""
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18_000, 36_000, 86_400)
"""Seconds from one mark of a time axis to the next, of which the first is taken that is enough."""
MOST_TICKS = 9


def learning_curves(
    rows: Sequence[RowSummary], *, title: str, against: Against = "updates"
) -> Figure:
    """Validation error against updates or time: the mean over seeds, and each seed in a thin line.

    The legend is in the order in which the curves end, from top to bottom.
    """
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    ends: list[tuple[float, Line2D]] = []
    styles = row_styles([row.row.model for row in rows])
    for row, look in zip(rows, styles, strict=True):
        drawn = [run for run in row.runs if places(run, against)]
        shown = shown_runs(drawn)
        mean = _placed(mean_curve([run.curve for run in shown]), shown, against)
        if mean:
            seeds = [_placed(run.curve, [run], against) for run in drawn]
            ends.append(draw_row(axes, row.row.name, mean, seeds, look))
    axes.set_xlim(left=0)
    axes.set_ylabel("Validation error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    if against == "updates":
        axes.set_xlabel("Updates")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        beside = any(run.is_shared for row in rows for run in row.runs if run.seconds)
        axes.set_xlabel(
            "Time of training and validation" + (", of runs beside others" if beside else "")
        )
        axes.xaxis.set_major_locator(MultipleLocator(tick_seconds(axes.get_xlim()[1])))
        axes.xaxis.set_major_formatter(lambda value, _: clock(value))
    tidy(axes, [line for _, line in sorted(ends, key=lambda end: -end[0])])
    return figure


def shown_runs(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """Those that make up the mean: the ones that are finished or, before any is, all."""
    return [run for run in runs if run.status == "finished"] or runs


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """The mean over runs, at the updates that all of them have reached.

    >>> mean_curve([[(10, 90.0), (20, 50.0)], [(10, 80.0)]])
    [(10, 85.0)]
    """
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(update, sum(table[update] for table in tables) / len(tables)) for update in shared]


def tick_seconds(end: float) -> int:
    """From one mark to the next on a time axis of that many seconds.

    >>> [tick_seconds(end) for end in (50, 160, 7000)]
    [10, 30, 900]
    """
    return next((tick for tick in TICKS if end / tick <= MOST_TICKS), TICKS[-1])


def places(run: RunRecord, against: Against) -> dict[int, float]:
    """Where each update of a run's curve lies along the axis, as far as that is known."""
    if against == "time":
        return dict(run.seconds)
    return {update: float(update) for update, _ in run.curve}


def _placed(curve: Curve, runs: Sequence[RunRecord], against: Against) -> list[tuple[float, float]]:
    """A curve of some runs, each of its updates where it lay on the average of them."""
    by_run = [places(run, against) for run in runs]
    return [
        (statistics.fmean(places[update] for places in by_run), error)
        for update, error in curve
        if all(update in places for places in by_run)
    ]
