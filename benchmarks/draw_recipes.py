"""How soon a task is solved with the paper's settings and with ours, as a figure.

    python benchmarks/draw_recipes.py random-walk docs/figures/random-walk-recipes.png
    python benchmarks/draw_recipes.py algorithm docs/figures/algorithm-recipes.png

Validation errors of Staircase N4 C16 against tokens, from the files in benchmarks/results. Both
axes are logarithmic; where no answer was wrong, half a wrong one is drawn, as an empty circle.
"""

import argparse
import json
from pathlib import Path

from draw_table import curve
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from staircase_attention.experiments.comparisons import table_rows
from staircase_attention.experiments.figures import FAMILIES, LIGHT_GREY, save

RESULTS = Path(__file__).parent / "results"
ROW = "staircase-n4-c16"
FILES = {
    "random-walk": (
        "Random Walk",
        "2026-11-16-random-walk-fast-training.json",
        "2026-11-16-random-walk-paper.json",
    ),
    "algorithm": (
        "Algorithm",
        "2026-11-18-algorithm-fast-training.json",
        "2026-11-18-algorithm-paper.json",
    ),
}
"""The title, our runs, and the run with the paper's settings."""
BILLION = 10**9
NONE_WRONG = 100 * 0.5 / 400_000
"""Percent of all answers of Random Walk's validation data."""


def main() -> None:
    """Read the data and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=FILES)
    parser.add_argument("figure", type=Path, help="a PNG file")
    chosen = parser.parse_args()
    save(recipes_figure(chosen.task), chosen.figure)


def recipes_figure(task: str) -> Figure:
    """Validation error against tokens, one line per run."""
    title, ours, papers = FILES[task]
    figure = Figure(figsize=(8.0, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for file, table, family, label in (
        (ours, f"{task}-fast", "Staircase", "our own settings, three seeds"),
        (papers, task, "Cached Staircase", "the paper's settings, one seed"),
    ):
        [row] = [row for row in table_rows(table) if row.name == ROW]
        config = row.recipe.training
        batch = config.num_lanes * config.segment_length
        runs = json.loads((RESULTS / file).read_text(encoding="utf-8")).values()
        runs = [run for run in runs if run["recipe"]["name"] == row.recipe.name]
        # Of runs with the paper's settings the first; another one was stopped early.
        for number, run in enumerate(runs[:1] if file == papers else runs):
            points = [(update * batch, error) for update, error in curve(row, run)]
            draw(axes, points, colour=FAMILIES[family][0], label=None if number else label)
    axes.set(xscale="log", yscale="log", xlabel="Tokens", ylabel="Validation error (%)")
    axes.xaxis.set_major_formatter(FuncFormatter(in_words))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(f"{title}, Staircase N4 C16", fontsize=11, loc="left")
    axes.grid(color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    return figure


def draw(axes: Axes, points: list[tuple[int, float]], *, colour: str, label: str | None) -> None:
    """One run."""
    tokens = [place for place, _ in points]
    errors = [error or NONE_WRONG for _, error in points]
    axes.plot(tokens, errors, color=colour, marker="o", markersize=3.5, label=label)
    spotless = [place for place, error in points if not error]
    empty = {"markerfacecolor": "white", "linestyle": "", "marker": "o", "markersize": 5}
    axes.plot(spotless, [NONE_WRONG] * len(spotless), color=colour, **empty)


def in_words(tokens: float, _: object) -> str:
    """1e7 as 10 million."""
    return f"{tokens / BILLION:g} billion" if tokens >= BILLION else f"{tokens / 1e6:g} million"


if __name__ == "__main__":
    main()
