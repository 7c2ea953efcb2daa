"""The paper's Figure 2, error against recurrent steps, with our points in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.experiments.pictures import GREY, MODEL_COLOURS, MODEL_MARKERS, tidy
from staircase_attention.experiments.spread import Spread
from staircase_attention.experiments.summary import RowSummary

IN_FIGURE_2 = (
    "Transformer-XL",
    "Feedback Transformer",
    "Cached Staircase",
    "Staircase",
    "Ladder",
)
"""The models that the paper's figure shows."""
BAND = "#f4f4f4"
PITCH = 0.3
"""Between the middles of two rows that stand side by side."""
APART = 0.075
"""From the middle of a row to our point on the left, and to the paper's on the right, if any."""
GAP = 0.3
"""Between rows with different recurrent steps, on top of the pitch."""
MARGIN = (PITCH + GAP) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One row in Figure 2."""

    model: str
    recurrent_steps: int
    place: float
    """Along the axis: rows with the same recurrent steps stand side by side."""
    forward_size: int | None
    ours: Spread | None
    paper: Spread | None


def recurrence_figure(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Test error against recurrent steps: mean and deviation, ours filled, the paper's hollow."""
    points = place_points(rows)
    figure = Figure(figsize=(8.6, 5.2), layout="constrained")
    axes = figure.add_subplot()
    for model, group in groupby(points, key=lambda point: point.model):
        _draw_model(axes, model, list(group))
    _label_cached(axes, points)
    _mark_steps(axes, points)
    axes.set_ylabel("Test error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes, _legend(points, is_shortened=any(row.is_shortened for row in rows)))
    return figure


def place_points(rows: Sequence[RowSummary]) -> list[Point]:
    """Where each row goes of which there is a score, ours or the paper's.

    Rows with the same recurrent steps stand side by side.
    """
    shown = [row for row in rows if row.row.model in IN_FIGURE_2 and (row.row.paper or row.results)]
    shown.sort(key=lambda row: IN_FIGURE_2.index(row.row.model))
    steps = sorted({_steps(row) for row in shown})
    points, left = {}, 0.0
    for step in steps:
        here = [row for row in shown if _steps(row) == step]
        for number, row in enumerate(here):
            points[row.row.name] = Point(
                model=row.row.model,
                recurrent_steps=step,
                place=left + PITCH * number,
                forward_size=row.row.words.forward_size,
                ours=row.error("test"),
                paper=None if row.row.paper is None else row.row.paper.test,
            )
        left += PITCH * len(here) + GAP
    return sorted(points.values(), key=lambda point: (IN_FIGURE_2.index(point.model), point.place))


def _steps(row: RowSummary) -> int:
    """Recurrent steps; a Transformer-XL, for which the tables print a dash, makes one pass."""
    return row.row.words.recurrent_steps or 1


def _draw_model(axes: Axes, model: str, points: Sequence[Point]) -> None:
    """A line through a model's points where it was run with several numbers of steps."""
    colour, marker = MODEL_COLOURS[model], MODEL_MARKERS[model]
    is_line = len({point.recurrent_steps for point in points}) > 1
    for ours in (False, True):
        spreads = [(point, point.ours if ours else point.paper) for point in points]
        known = [
            (point.place + _shift(point, ours=ours), spread)
            for point, spread in spreads
            if spread is not None
        ]
        if not known:
            continue
        axes.errorbar(
            [place for place, _ in known],
            [spread.mean for _, spread in known],
            yerr=[spread.deviation or 0.0 for _, spread in known],
            color=colour,
            marker=marker,
            markersize=7,
            markerfacecolor=colour if ours else "white",
            linestyle=("-" if ours else ":") if is_line else "none",
            linewidth=1.4 if ours else 1.0,
            elinewidth=1.1,
            capsize=2.5,
        )


def _shift(point: Point, *, ours: bool) -> float:
    """Ours stands on the left of the paper's, where it has any."""
    if point.paper is None:
        return 0.0
    return -APART if ours else APART


def _label_cached(axes: Axes, points: Sequence[Point]) -> None:
    """The Cached Staircase has one recurrent step in all its rows; C tells them apart."""
    for point in points:
        if point.model == "Cached Staircase":
            known = [spread for spread in (point.ours, point.paper) if spread is not None]
            tops = [spread.mean + (spread.deviation or 0.0) for spread in known]
            axes.annotate(
                f"C={point.forward_size}",
                (point.place, max(tops)),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=GREY,
            )


def _mark_steps(axes: Axes, points: Sequence[Point]) -> None:
    """Name the places of the recurrent steps, and shade every other one."""
    places: dict[int, list[float]] = {}
    for point in sorted(points, key=lambda point: point.place):
        places.setdefault(point.recurrent_steps, []).append(point.place)
    middles = {steps: (min(here) + max(here)) / 2 for steps, here in places.items()}
    axes.set_xticks(list(middles.values()), [str(steps) for steps in middles])
    for number, here in enumerate(places.values()):
        if number % 2 == 0:
            axes.axvspan(min(here) - MARGIN, max(here) + MARGIN, color=BAND, zorder=0)
    edges = [place for here in places.values() for place in here]
    axes.set_xlim(min(edges) - MARGIN, max(edges) + MARGIN)
    axes.set_xlabel("Recurrent steps")


def _legend(points: Sequence[Point], *, is_shortened: bool) -> list[Line2D]:
    models = dict.fromkeys(point.model for point in points)
    handles = [
        Line2D([], [], color=MODEL_COLOURS[m], marker=MODEL_MARKERS[m], linestyle="none", label=m)
        for m in models
    ]
    has_paper = any(point.paper is not None for point in points)
    faces = []
    if has_paper or is_shortened:
        faces.append(("ours, from fewer updates" if is_shortened else "ours", GREY))
    if has_paper:
        faces.append(("the paper's", "white"))
    for label, face in faces:
        handles.append(
            Line2D(
                [], [], color=GREY, marker="o", markerfacecolor=face, linestyle="none", label=label
            )
        )
    return handles
