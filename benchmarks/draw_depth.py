"""Draws docs/figures/depth.png from the scores of one checkpoint at many depths.

python benchmarks/draw_depth.py benchmarks/results/2026-11-17-depth.json docs/figures/depth.png
"""

import json
import sys

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

FIXED = (1, 2, 3, 4, 8)
LENGTH, NUM_ELEMENTS, NUM_LAYERS = 64, 120, 4


def main(data: str, output: str) -> None:
    """Text on the left, words of S5 on the right."""
    with open(data, encoding="utf-8") as file:
        runs = {name: one["by_passes"] for name, one in json.load(file)["runs"].items()}
    figure, (text, words) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    own = [runs[f"fixed {number}"][str(number)] for number in FIXED]
    text.plot(FIXED, own, "ko", label="trained at that N alone")
    for name, style, label in (
        ("fixed 1", "--", "trained at N = 1"),
        ("fixed 4", "--", "trained at N = 4"),
        ("fixed 8", "--", "trained at N = 8"),
        ("2, 3, 4, 8, held, injection", ".-", "drawn from 2, 3, 4, 8, every pass"),
        ("2, 3, 4, 9, held, ends, injection", ".-", "drawn from 2, 3, 4, 9, ends"),
        ("3, 4, 4, 7, held, ends, normed", ".-", "drawn from 3, 4, 4, 7, ends, normed"),
    ):
        text.plot(
            [int(number) for number in runs[name]], list(runs[name].values()), style, label=label
        )
    text.set(xscale="log", ylim=(1.46, 1.66), xlabel="passes N", ylabel="bits per byte")
    ticks = (1, 2, 3, 4, 6, 8, 16)
    text.set_xticks(ticks, [str(number) for number in ticks])
    text.minorticks_off()
    text.set_title("Ladder, Enwik8, 19.7M tokens")
    scores = {int(number): one for number, one in runs["S5 ladder, uniform 1 to 8"].items()}
    # A model that knows the first elements and guesses the rest is wrong as often.
    guesses = NUM_ELEMENTS / (NUM_ELEMENTS - 1)
    known = [LENGTH * (1 - one * guesses) for one in scores.values()]
    words.plot(list(scores), known, ".-", label="drawn from 1 to 8, loss after every pass")
    layers = [NUM_LAYERS * number for number in scores]
    words.plot(list(scores), layers, "k:", label="layers that a token passes")
    words.axvline(8, color="grey", linewidth=0.8)
    words.text(8.2, 2, "largest N in training", fontsize=7)
    words.set(xlabel="passes N", ylabel="elements known", title="Ladder, S5 words of 64")
    words.set_ylim(0, LENGTH)
    words.set_xticks(list(scores))
    for axes in (text, words):
        axes.legend(fontsize=7)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
