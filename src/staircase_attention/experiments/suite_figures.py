"""The figures of the suite: a heat map of models against tasks, and accuracy against length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from staircase_attention.experiments.figures import GREY, LIGHT_GREY, row_styles

if TYPE_CHECKING:
    from staircase_attention.experiments.suite import Cells

NUM_COLUMNS = 5
# Below this accuracy in percent, cells are so dark that their numbers are white.
DARK = 55
# Where the score at trained lengths, 20 to 40, is drawn, and where they end.
TRAINED_LENGTH, LONGEST_TRAINED = 30, 40


def heat_map(cells: "Cells", published: Mapping[str, Any]) -> Figure:
    """Accuracies at trained lengths, at longer ones, and of the study at longer ones."""
    models = [*next(iter(cells.values()))]
    networks, scores = published["networks"], published["scores"]
    rows = [[*row.values()] for row in cells.values()]
    trained = [[row[0].guess, *(cell.trained for cell in row)] for row in rows]
    longer = [[cell.longer for cell in row] for row in rows]
    study = [[scores.get(task, {}).get(name) for name in networks] for task in cells]
    panels = {
        "Trained lengths": (["Best guess", *models], trained),
        "41 to 500": (models, longer),
        "Published, 41 to 500": (networks, study),
    }
    widths = [len(columns) for columns, _ in panels.values()]
    size = (3 + 0.55 * sum(widths), 2.2 + 0.33 * len(cells))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)
    for axes, (title, (columns, values)) in zip(grid[0], panels.items(), strict=True):
        _draw_panel(axes, title, columns, values)
    grid[0, 0].set_yticks(range(len(cells)), [*cells])
    return figure


def _draw_panel(
    axes: Axes, title: str, columns: Sequence[str], values: Sequence[Sequence[float | None]]
) -> None:
    shown = np.array(values, dtype=float)
    axes.imshow(shown, vmin=0, vmax=100, cmap="cividis", aspect="auto")
    for (row, column), value in np.ndenumerate(shown):
        if not np.isnan(value):
            colour = "white" if value < DARK else "black"
            place = {"ha": "center", "va": "center"}
            axes.text(column, row, f"{value:.0f}", place, color=colour, fontsize=8)
    axes.set_facecolor(LIGHT_GREY)
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def length_curves(cells: "Cells") -> Figure:
    """Accuracy against length, a small picture for each task; dotted: the best constant guess."""
    num_columns = min(NUM_COLUMNS, len(cells))
    num_rows = -(-len(cells) // num_columns)
    figure = Figure(figsize=(2.6 * num_columns + 0.6, 2.1 * num_rows + 1.1), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for axes, (task, row) in zip(grid.flat, cells.items(), strict=False):
        for (model, cell), style in zip(row.items(), row_styles([*row]), strict=True):
            points = {TRAINED_LENGTH: cell.trained, **cell.lengths}
            known = {length: value for length, value in points.items() if value is not None}
            line = {"color": style.colour, "marker": style.marker, "markersize": 3}
            axes.plot([*known], [*known.values()], label=model, linewidth=1.2, **line)
        axes.axhline(cell.guess, color=GREY, linestyle=":", linewidth=0.9)
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
