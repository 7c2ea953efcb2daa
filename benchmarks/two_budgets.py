"""Trains a recipe for its tokens, and for so many seconds, sharing the updates that agree.

    python benchmarks/two_budgets.py RECIPE [KEY=VALUE ...] --seconds 300 --folder runs/table

Recipes whose rate is constant until the last part of the updates (`decay_part`) need no second run
from the start: a run of another length continues from a checkpoint before its own decay. The run
with the recipe's tokens is RECIPE-tokens. Its median speed says how many updates fit the seconds:
RECIPE-seconds is a copy of its folder with the checkpoints before that decay, resumed with this
number of updates. Seconds are those of updates, without start, validation and test. What is there
already is not trained again, and a run that was stopped is resumed.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Train both, print their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--folder", type=Path, default=Path("runs/table"))
    arguments = parser.parse_args()
    name = arguments.recipe.split("/")[-1]
    first, second = (arguments.folder / f"{name}-{budget}" for budget in ("tokens", "seconds"))
    if not first.exists():
        call("train", arguments.recipe, *arguments.settings, "--output", str(first))
    call("resume", str(first))
    show(first)
    if arguments.seconds is not None:
        training = json.loads((first / "config.json").read_text())["recipe"]["training"]
        tokens = training["num_lanes"] * training["segment_length"]
        num_updates = round(arguments.seconds * speed(first) / tokens)
        if not second.exists():
            branch(first, second, training, num_updates)
        call("resume", str(second), "--updates", str(num_updates))
        show(second)


def call(*words: str) -> None:
    """One command of ours."""
    subprocess.run([sys.executable, "-m", "staircase_attention", *words, "--quiet"], check=True)


def speed(folder: Path) -> float:
    """Median tokens per second of a run."""
    records = [json.loads(line) for line in (folder / "timing.jsonl").open()]
    return statistics.median(record["tokens_per_second"] for record in records)


def branch(first: Path, second: Path, training: dict, num_updates: int) -> None:
    """A copy of a run with only the checkpoints before the decay of either."""
    decay_part = training["optimizer"]["decay_part"]
    last = (1 - decay_part) * min(num_updates, training["num_updates"])
    leave = [path for path in (first / "checkpoints").iterdir() if int(path.name[7:15]) > last]
    # Hard links: checkpoints are never written to again.
    shutil.copytree(
        first,
        second,
        copy_function=lambda here, there: (
            Path(there).hardlink_to(here) if "checkpoints" in here else shutil.copy2(here, there)
        ),
        ignore=lambda folder, names: [n for n in names if Path(folder) / n in leave],
    )


def show(folder: Path) -> None:
    """A row of the table."""
    result = json.loads((folder / "result.json").read_text())
    scores = {split: round(result[split]["bits_per_byte"], 4) for split in ("valid", "test")}
    sys.stdout.write(
        f"| {folder.name} | {scores} | {result['num_tokens']:,} tokens | "
        f"{result['num_tokens'] / speed(folder):.0f} s of updates | {result['status']} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
