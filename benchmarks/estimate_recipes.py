"""Times and memory of ten recipes that `staircase estimate` was not fitted to.

    python benchmarks/estimate_recipes.py --output measured.json

Random tokens; no corpus is needed. A fresh process per recipe; about four minutes on an H200.
`--small` tries it on a CPU.
The first two sets showed what the estimate had left out and are part of its fit; the third was
measured after that. They differ from the other measurements behind the estimate in schedule, size,
optimiser, dropout, recomputation and precision.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bench

from staircase_attention.experiments.catalog import find_recipe
from staircase_attention.files import write_json
from staircase_attention.training.processes import choose_device
from staircase_attention.training.recipe import Recipe

LANES, PRECISION = "training.num_lanes", "training.precision"
BF16 = {PRECISION: "bfloat16"}
PLAIN = BF16 | {"model.core.dropout": 0.0, "model.core.embedding_dropout": 0.0}
FIRST: dict[str, dict[str, Any]] = {
    "random-walk-fast/transformer-xl": {},
    "random-walk-fast/cached-staircase-c16": {},
    "random-walk/staircase-n4-c16": {},
    "permutations/feedback": BF16,
    "enwik8-fast/transformer-xl": {},
    "enwik8/staircase-n2-c128": BF16 | {LANES: 64},
    "reddit/ladder-2": PLAIN | {LANES: 64},
    "reddit/transformer-xl-2x": PLAIN | {LANES: 32},
    "reddit/staircase-n4-c64": PLAIN | {LANES: 64, "training.recompute": True},
    "base/cached-staircase-c128": PLAIN
    | {LANES: 16, "model.core.width": 2048, "model.core.num_heads": 16},
}
SECOND: dict[str, dict[str, Any]] = {
    "random-walk-fast/feedback": {},
    "random-walk-fast/ladder-4": {},
    "algorithm-fast/global-cached-staircase-c16": {},
    "algorithm/staircase-n2-c32": BF16,
    "permutations-fast/staircase-n8-c8": {},
    "enwik8-fast/cached-staircase-c64": {},
    "enwik8/ladder-2": BF16 | {LANES: 64},
    "words/staircase-n4-c64": {},
    "reddit/ladder-4": PLAIN | {LANES: 16},
    "base/staircase-n8-c32": PLAIN | {LANES: 8},
}
THIRD: dict[str, dict[str, Any]] = {
    "random-walk-fast/cached-staircase-c8": {},
    "random-walk/ladder-2": BF16,
    "algorithm-fast/feedback": {},
    "algorithm/cached-staircase-c16": BF16,
    "permutations-fast/staircase-n2-c32": {},
    "enwik8-fast/ladder-4": {},
    "words/cached-staircase-c32": {},
    "words/transformer-xl-2x": {},
    "reddit/staircase-n2-c128": PLAIN | {LANES: 32},
    "base/ladder-8": PLAIN | {LANES: 8, "training.recompute": True},
}
SETS = (FIRST, SECOND, THIRD)
SMALL = {LANES: 2, PRECISION: "float32", "model.core.width": 32, "model.core.num_heads": 2}
SMALL |= {"model.core.num_layers": 1}


def recipes(chosen: dict[str, dict[str, Any]] = FIRST, *, is_small: bool = False) -> list[Recipe]:
    """The ten recipes, at their sizes or tiny."""
    return [
        replace(find_recipe(name).override(overrides | (SMALL if is_small else {})), name=name)
        for name, overrides in chosen.items()
    ]


def main() -> None:
    """Time all recipes, print one line each, and write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("measured.json"), help="JSON file")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try it on a CPU")
    parser.add_argument("--set", type=int, choices=(1, 2, 3), default=3, help="which ten recipes")
    options = parser.parse_args()
    chosen = recipes(SETS[options.set - 1], is_small=options.small)
    print(f"{'recipe':40} {'ms':>9} {'median':>9} {'GiB':>7}")
    reports = []
    for recipe in chosen:
        # A fresh process: libraries keep memory of earlier recipes.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            report = process.submit(measure, recipe, 1 if options.small else None).result()
        reports.append(report)
        (row,) = report["rows"]
        if "failure" in row:
            print(f"{row['name']:40} {row['failure']}", flush=True)
        else:
            times = 1e3 * row["mean_seconds"], 1e3 * row["median_seconds"]
            memory = row["peak_memory_bytes"] / 2**30
            print(f"{row['name']:40} {times[0]:9.2f} {times[1]:9.2f} {memory:7.2f}", flush=True)
        rows = [row for report in reports for row in report["rows"]]
        write_json(options.output, report | {"rows": rows})


def measure(recipe: Recipe, repeats: int | None) -> dict[str, Any]:
    """The bench of one recipe."""
    report = bench.run([recipe], choose_device(), repeats=repeats, say=lambda text: None)
    for row in report["rows"]:
        row.pop("seconds_each", None)
    return report


if __name__ == "__main__":
    main()
