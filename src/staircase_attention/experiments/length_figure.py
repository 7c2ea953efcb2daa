"""Error against the length of episodes."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from staircase_attention.experiments.pictures import row_styles, tidy
from staircase_attention.experiments.summary import RowSummary


def length_figure(rows: Sequence[RowSummary], *, title: str) -> Figure:
    """Test error against length: the mean over seeds, and each seed in a thin line."""
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    lengths = sorted({length for row in rows for length in row.lengths})
    ends: list[tuple[float, Line2D]] = []
    for row, (colour, style) in zip(rows, row_styles([row.row.model for row in rows]), strict=True):
        known = [(length, row.length_error(length)) for length in row.lengths]
        points = [(length, spread) for length, spread in known if spread is not None]
        if not points:
            continue
        scored = [run for run in row.runs if run.lengths]
        if len(scored) > 1:
            for run in scored:
                own = sorted(run.lengths.items())
                axes.plot(*zip(*own, strict=True), color=colour, linewidth=0.6, alpha=0.45)
        means = [spread.mean for _, spread in points]
        name = f"{row.row.name}: {means[-1]:.1f}%"
        [line] = axes.plot(
            [length for length, _ in points],
            means,
            color=colour,
            linestyle=style,
            linewidth=1.9,
            marker="o",
            markersize=4,
            label=name,
        )
        ends.append((means[-1], line))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Length of test episodes")
    axes.set_ylabel("Test error (%)")
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes, [line for _, line in sorted(ends, key=lambda end: -end[0])])
    return figure
