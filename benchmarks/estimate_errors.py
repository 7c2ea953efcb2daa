"""`staircase estimate` beside what was measured on an H200: times and memory, and their errors.

    python benchmarks/estimate_errors.py [measured.json] [--fit]

Without a file: twelve stored measurements and the first two sets of
`benchmarks/estimate_recipes.py`. They gave the constants of `Machine`, with the
time of one attention of Reddit's size; `--fit` fits them again. Memory is that of a fresh
process where that was measured: libraries keep up to half a gigabyte of earlier recipes. With a
file of `bench.py` or `estimate_recipes.py`: its rows.
"""

import argparse
import functools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from staircase_attention.experiments.catalog import find_recipe
from staircase_attention.experiments.estimate import BFLOAT16, Kernel, Machine, Work, estimate
from staircase_attention.training import Recipe
from staircase_attention.training.learner import NumSymbols

RESULTS = Path(__file__).parent / "results"
TIMES = ("latency", "bandwidth_share", "attention_share", "attention_dropout")
SIZES = ("state_copies", "scratch")
GIB = 2**30
# Seconds, forward and backward: 2026-11-16-flex-attention.json.
ATTENTION = 0.000247


@dataclass(frozen=True)
class Measured:
    """One row."""

    name: str
    recipe: Recipe
    symbols: NumSymbols
    seconds: float
    memory: float | None = None


def stored() -> list[Measured]:
    """All whole updates with today's kernels that are stored with their recipes."""
    found = []
    for file in ("2026-11-15-h200", "2026-11-16-engine-recompute"):
        for row in json.loads((RESULTS / f"{file}.json").read_text())["rows"]:
            if not row["name"].endswith("gpt-2"):
                found.append(measured(row["name"], row["config"], row["updates"]))
    # Medians of benchmarks/side_by_side.py and of a training run with dropout, without memory.
    plain = {"model.core.dropout": 0.0, "model.core.embedding_dropout": 0.0}
    for name, overrides, seconds in (
        ("random-walk/feedback", plain, 0.0724),
        ("random-walk/staircase-n4-c16", {}, 0.0283),
    ):
        recipe = find_recipe(name).override({"training.precision": "bfloat16"} | overrides)
        symbols = NumSymbols(num_inputs=4, num_outputs=64)
        found.append(Measured(name, recipe, symbols, seconds))
    for file in ("2026-11-17-estimate-recipes", "2026-11-17-estimate-recipes-second"):
        found += from_bench(RESULTS / f"{file}.json")
    return found


def from_bench(file: Path) -> list[Measured]:
    """The updates in a file of `bench.py`."""
    rows = json.loads(file.read_text())["rows"]
    return [
        measured(row["name"], row, row)
        for row in rows
        if row["what"] == "updates" and "failure" not in row
    ]


def measured(name: str, config: dict[str, Any], times: dict[str, Any]) -> Measured:
    """A row of a stored file."""
    recipe = Recipe.from_plain(config["recipe"])
    name += " recompute" if recipe.training.recompute else ""
    name += " float32" if recipe.training.precision == "float32" else ""
    symbols = NumSymbols(num_inputs=config["num_inputs"], num_outputs=config["num_outputs"])
    memory = times["peak_memory_bytes"]
    if "memory_before_bytes" not in times:
        memory = fresh_memory().get(name, memory)
    return Measured(name, recipe, symbols, times["mean_seconds"], memory)


@functools.cache
def fresh_memory() -> dict[str, int]:
    """Peaks of fresh processes, for rows that did not record what earlier rows had left."""
    rows = json.loads((RESULTS / "2026-11-17-estimate-memory.json").read_text())["rows"]
    return {row["name"]: row["peak_memory_bytes"] for row in rows}


def fit(rows: list[Measured]) -> Machine:
    """Constants with the least squared errors, one after another by ever smaller steps."""
    works = [(row, Work(row.recipe, row.symbols)) for row in rows]
    kernels = [list(work.kernels()) for _, work in works]
    (reddit,) = (work for row, work in works if row.name == "engine/reddit")
    window = max(reddit.cost.steps, key=lambda step: step.num_queries)
    attention = list(reddit._attention(window, 0, 1))

    def loss(machine: Machine) -> float:
        errors = [math.log(seconds(attention, machine, reddit) / ATTENTION)]
        for (row, work), every in zip(works, kernels, strict=True):
            found = machine.between + seconds(every, machine, work)
            errors.append(math.log(found / row.seconds))
            if row.memory:
                errors.append(math.log(sum(work.memory(machine).values()) / row.memory))
        return sum(error**2 for error in errors)

    machine, step = Machine(), 0.2
    best = loss(machine)
    while step > 0.01:  # noqa: PLR2004
        improved = False
        for name in TIMES + SIZES:
            for factor in (1 + step, 1 / (1 + step)):
                candidate = replace(machine, **{name: getattr(machine, name) * factor})
                if (found := loss(candidate)) < best:
                    machine, best, improved = candidate, found, True
        step = step if improved else step / 2
    return machine


def seconds(kernels: list[Kernel], machine: Machine, work: Work) -> float:
    """Of all kernels, in the precision of the work."""
    total, peak = 0.0, machine.flops if work.size == BFLOAT16 else machine.float32_flops
    for one in kernels:
        operations, traffic, latency = machine.parts(one, peak=peak).values()
        total += one.number * (max(operations, traffic) + latency)
    return total


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="JSON file of bench.py")
    parser.add_argument("--fit", action="store_true", help="fit the constants again")
    options = parser.parse_args()
    rows, machine = stored(), Machine()
    if options.fit:
        machine = fit(rows)
        print({name: float(f"{getattr(machine, name):.3g}") for name in TIMES + SIZES})
    if options.file is not None:
        rows = from_bench(options.file)
    print("| recipe | ms | estimated | error | GiB | estimated | error |")
    print("|---" * 7 + "|")
    for row in rows:
        result = estimate(row.recipe, row.symbols, machine=machine)
        memory = result["memory_bytes"]
        sizes = "- | - | -"
        if row.memory:
            error = 100 * (memory / row.memory - 1)
            sizes = f"{row.memory / GIB:.2f} | {memory / GIB:.2f} | {error:+.1f}%"
        error = 100 * (result["update_seconds"] / row.seconds - 1)
        times = f"{1e3 * row.seconds:.1f} | {1e3 * result['update_seconds']:.1f} | {error:+.1f}%"
        print(f"| {row.name} | {times} | {sizes} |")


if __name__ == "__main__":
    main()
