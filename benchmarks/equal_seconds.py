"""Rows of a table, each trained for as many updates as fit into the same time.

    python benchmarks/equal_seconds.py enwik8-fast --seconds 300 --rows ladder-4,feedback
    python benchmarks/equal_seconds.py enwik8-fast --seconds 1200 --at-most-recipe

For every row: the time of an update, in a process of its own on the idle device; the number of
updates that fit; then `staircase reproduce TABLE --rows ROW --updates NUMBER`. Training alone
counts: validation, test and the program's start come on top. `--at-most-recipe` keeps the recipe's
number of updates where that takes less time, so that only slow rows are cut short. One row at a
time, nothing beside it. What is finished is kept: the same command resumes, with the numbers of
updates that it chose before (OUTPUT/updates.json).
"""

import argparse
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from staircase_attention.cli.arguments import parse_assignments
from staircase_attention.experiments.comparisons import chosen_names, table_rows
from staircase_attention.experiments.quickstart import seconds_per_update
from staircase_attention.experiments.results import read_run
from staircase_attention.files import read_json, write_json
from staircase_attention.training import Recipe
from staircase_attention.training.learner import build_dataset


def main() -> None:
    """Measure, train and print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table")
    parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE")
    parser.add_argument("--seconds", type=float, required=True, help="training time per run")
    parser.add_argument("--rows", help="separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--at-most-recipe", action="store_true", help="the recipe's updates at most"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_intermixed_args()
    table, overrides = options.table, parse_assignments(options.overrides)
    folder = options.output or Path("results") / f"{table}-{options.seconds:g}s"
    rows = {row.name: row for row in table_rows(table)}
    names = chosen_names(options.rows and options.rows.split(","), [*rows.values()])
    plan = folder / "updates.json"
    updates: dict[str, int] = read_json(plan) if plan.exists() else {}
    for name in names:
        recipe = rows[name].recipe.override(overrides)
        if name not in updates:
            # A fresh process: what one row leaves in memory must not slow the next one down.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                each = process.submit(measured, recipe).result()
            updates[name] = max(1, int(options.seconds / each))
            if options.at_most_recipe:
                updates[name] = min(updates[name], recipe.training.num_updates)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(plan, updates)
            print(f"{name}: {1e3 * each:.1f} ms per update, {updates[name]:,} updates", flush=True)
        command = [sys.executable, "-m", "staircase_attention", "reproduce", table]
        command += [*options.overrides, "--rows", name, "--seeds", str(options.seeds)]
        if updates[name] != recipe.training.num_updates:
            command += ["--updates", str(updates[name])]
        command += ["--first-seed", str(options.first_seed), "--output", str(folder), "--quiet"]
        status = subprocess.run(command, check=False).returncode
        if status:
            sys.exit(status)
    for name in names:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            result = read_run(folder / name / f"seed-{seed}", seed).result
            assert result is not None
            print(f"{name:24} seed {seed}  {result.num_updates:7,} updates  ", end="")
            print(f"{result.num_tokens:13,} tokens  {result.wall_seconds:7.1f} s  {result.test}")


def measured(recipe: Recipe) -> float:
    """Seconds of an update."""
    return seconds_per_update(recipe, build_dataset(recipe).num_inputs)


if __name__ == "__main__":
    main()
