"""Learning curves: how the validation error of each row came down."""

import statistics
from collections.abc import Sequence
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.experiments.pictures import draw_row, row_styles, tidy
from staircase_attention.experiments.run_records import RunRecord
from staircase_attention.experiments.summary import RowSummary

Curve = Sequence[tuple[int, float]]
"""Updates, and validation errors in percent."""
Against = Literal["updates", "minutes"]
"""What a curve is drawn along."""


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
    axes.set_xlabel("Updates" if against == "updates" else "Minutes of training and validation")
    axes.set_ylabel("Validation error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    if against == "updates":
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
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


def places(run: RunRecord, against: Against) -> dict[int, float]:
    """Where each update of a run's curve lies along the axis, as far as that is known."""
    if against == "minutes":
        return {update: seconds / 60 for update, seconds in run.seconds.items()}
    return {update: float(update) for update, _ in run.curve}


def _placed(curve: Curve, runs: Sequence[RunRecord], against: Against) -> list[tuple[float, float]]:
    """A curve of some runs, each of its updates where it lay on the average of them."""
    by_run = [places(run, against) for run in runs]
    return [
        (statistics.fmean(places[update] for places in by_run), error)
        for update, error in curve
        if all(update in places for places in by_run)
    ]
