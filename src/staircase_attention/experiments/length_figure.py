"""Error against the length of episodes."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.experiments.pictures import draw_row, row_styles, tidy
from staircase_attention.experiments.summary import RowSummary


def length_figure(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Test error against length: the mean over seeds, and each seed in a thin line."""
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    lengths = sorted({length for row in rows for length in row.lengths})
    ends: list[tuple[float, Line2D]] = []
    for row, look in zip(rows, row_styles([row.row.model for row in rows]), strict=True):
        known = [(float(length), row.length_error(length)) for length in row.lengths]
        mean = [(length, spread.mean) for length, spread in known if spread is not None]
        seeds = [sorted(run.lengths.items()) for run in row.runs if run.lengths]
        if mean:
            ends.append(draw_row(axes, row.row.name, mean, seeds, look, marker="o"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Length of test episodes")
    axes.set_ylabel("Test error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes, [line for _, line in sorted(ends, key=lambda end: -end[0])])
    return figure
