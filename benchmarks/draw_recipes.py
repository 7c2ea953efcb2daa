"""How soon Random Walk is solved with the paper's settings and with ours, as a figure.

    python benchmarks/draw_recipes.py docs/figures/random-walk-recipes.png

Validation errors of Staircase N4 C16 against tokens, from the files in benchmarks/results. Both
axes are logarithmic; where no answer was wrong, half a wrong one is drawn, as an empty circle.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from staircase_attention.experiments.figures import FAMILIES, LIGHT_GREY, save

RESULTS = Path(__file__).parent / "results"
OURS = "2026-11-16-random-walk-fast.json"
THE_PAPERS = "2026-11-16-random-walk-paper.json"
LANES = {OURS: 256, THE_PAPERS: 512}
SEGMENT = 128
"""Tokens of a lane in an update, in both."""
BILLION = 10**9
NONE_WRONG = 100 * 0.5 / 400_000
"""Percent of all answers."""


def main() -> None:
    """Read the data and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figure", type=Path, help="a PNG file")
    save(recipes_figure(), parser.parse_args().figure)


def recipes_figure() -> Figure:
    """Validation error against tokens, a line a run."""
    figure = Figure(figsize=(8.0, 4.4), layout="constrained")
    axes = figure.add_subplot()
    rows = {row["name"]: row for row in read(OURS)["rows"]}
    for number, run in enumerate(rows["staircase-n4-c16"]["runs"]):
        label = None if number else "settings of our own, three seeds"
        points = [(point["update"], point["valid"]) for point in run["curve"]]
        draw(axes, OURS, points, colour=FAMILIES["Staircase"][0], label=label)
    papers = next(iter(read(THE_PAPERS).values()))
    points = [(update, 100 * error) for update, error in papers["valid"]["rows"]]
    draw(
        axes,
        THE_PAPERS,
        points,
        colour=FAMILIES["Cached Staircase"][0],
        label="the paper's settings, one seed",
    )
    axes.set(xscale="log", yscale="log", xlabel="Tokens", ylabel="Validation error (%)")
    axes.xaxis.set_major_formatter(FuncFormatter(in_words))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title("Random Walk, Staircase N4 C16", fontsize=11, loc="left")
    axes.grid(color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    return figure


def draw(
    axes: Axes, file: str, points: list[tuple[int, float]], *, colour: str, label: str | None
) -> None:
    """One run."""
    tokens = [update * LANES[file] * SEGMENT for update, _ in points]
    errors = [error or NONE_WRONG for _, error in points]
    axes.plot(tokens, errors, color=colour, marker="o", markersize=3.5, label=label)
    spotless = [place for place, error in zip(tokens, errors, strict=True) if error == NONE_WRONG]
    empty = {"markerfacecolor": "white", "linestyle": "", "marker": "o", "markersize": 5}
    axes.plot(spotless, [NONE_WRONG] * len(spotless), color=colour, **empty)


def in_words(tokens: float, _: object) -> str:
    """1e7 as 10 million."""
    return f"{tokens / BILLION:g} billion" if tokens >= BILLION else f"{tokens / 1e6:g} million"


def read(name: str) -> Any:  # noqa: ANN401
    """One of the files."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
