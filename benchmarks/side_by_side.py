"""Times and losses of two versions of the code, in turns on one GPU.

    python benchmarks/side_by_side.py --old ../old/src --new src --output comparison.json

Trains the four sizes of `bench.py engine`, and a Feedback Transformer, on synthetic tokens.
Every turn is a process of its own, in the order old, new, new, old, so that a machine that gets
slower favours neither. In the first turn of each version every size makes 200 updates, whose losses
are compared; later turns are shorter. A time is the median of the updates after the warm-up. About
six minutes on an H200.

The driver uses names that both versions have: find_recipe, build_model, Learner and Batch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# recipe, width, layers, heads, segment, lanes, input symbols, output symbols
SIZES = {
    "algorithm": ("algorithm/staircase-n4-c16", 256, 4, 4, 128, 256, 24, 10),
    "random-walk": ("random-walk/staircase-n8-c8", 256, 4, 4, 128, 512, 4, 64),
    "feedback": ("random-walk/feedback", 256, 4, 4, 128, 512, 4, 64),
    "enwik8": ("enwik8/staircase-n4-c64", 512, 8, 8, 256, 128, 256, 256),
    "reddit": ("reddit/staircase-n8-c32", 1024, 8, 8, 256, 32, 8008, 8008),
}
WARM_UP = 15
"""Updates in which states grow to their full size, kernels are compiled and graphs captured."""
RATE = 1e-4
"""Learning rate after the warm-up."""
NOISE = 0.3
"""Share of tokens that do not follow from the one before."""
Turn = dict[str, dict[str, list[float]]]
"""Seconds and losses of every update, by size."""


def main() -> None:
    """Parse, run all turns, print the comparison; or be one turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--old", type=Path, help="folder that holds the old staircase_attention")
    parser.add_argument("--new", type=Path, help="folder that holds the new staircase_attention")
    parser.add_argument("--updates", type=int, default=200, help="of the first turn")
    parser.add_argument("--timed", type=int, default=60, help="updates of the other turns")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each version")
    parser.add_argument("--sizes", default=",".join(SIZES), help="separated by commas")
    parser.add_argument("--lanes", type=int, help="fewer lanes, to try this script on a CPU")
    parser.add_argument("--output", type=Path, help="JSON file for all times and losses")
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    if options.turn is not None:
        found = {size: train(size, options.turn, options.lanes) for size in sizes}
        options.output.write_text(json.dumps(found))
        return
    if options.old is None or options.new is None:
        parser.error("--old and --new are needed")
    turns: dict[str, list[Turn]] = {"old": [], "new": []}
    trees = {"old": options.old, "new": options.new}
    for number in range(options.rounds):
        for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
            updates = options.updates if number == 0 else options.timed
            print(f"round {number + 1}, {name}: {updates} updates of each size", flush=True)
            turns[name].append(run_turn(trees[name], sizes, updates, options.lanes))
    for size in sizes:
        print(compare(size, turns))
    if options.output is not None:
        options.output.write_text(json.dumps(turns, indent=1) + "\n")


def run_turn(tree: Path, sizes: list[str], updates: int, lanes: int | None) -> Turn:
    """One version trains all sizes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "turn.json"
        command = [sys.executable, __file__, "--turn", str(updates), "--output", str(output)]
        command += ["--sizes", ",".join(sizes), *(["--lanes", str(lanes)] if lanes else [])]
        environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
        # Not the folder of this script: a package beside it must not hide the tree's.
        subprocess.run([*command[:1], "-P", *command[1:]], check=True, env=environment)
        turn: Turn = json.loads(output.read_text())
        return turn


def compare(size: str, turns: dict[str, list[Turn]]) -> str:
    """Times and their ratio, and how far the losses are apart."""
    medians = {
        name: [statistics.median(turn[size]["seconds"][WARM_UP:]) for turn in every]
        for name, every in turns.items()
    }
    old, new = (statistics.fmean(medians[name]) for name in ("old", "new"))
    each = {name: ", ".join(f"{1e3 * one:.2f}" for one in medians[name]) for name in medians}
    losses = [turns[name][0][size]["losses"] for name in ("old", "new")]
    apart = [abs(a - b) / abs(a) for a, b in zip(*losses, strict=True)]
    ends = " -> ".join(f"{losses[0][place]:.4f}" for place in (0, -1))
    return (
        f"{size:12} old {1e3 * old:.2f} ms ({each['old']})  new {1e3 * new:.2f} ms ({each['new']})"
        f"  new/old {new / old:.4f}  losses {ends}, apart by {max(apart):.2e} at most, "
        f"{apart[-1]:.2e} at the end"
    )


@dataclass(frozen=True)
class Symbols:
    """What a model is built for."""

    num_inputs: int
    num_outputs: int


def train(size: str, num_updates: int, lanes: int | None) -> dict[str, list[float]]:
    """Seconds and losses of the first updates of a size, by the version that is on the path."""
    import torch

    from staircase_attention.batches import Batch
    from staircase_attention.experiments import find_recipe
    from staircase_attention.training.learner import Learner
    from staircase_attention.training.processes import Processes

    try:
        from staircase_attention.training.learner import build_model
    except ImportError:  # version 0.1
        from staircase_attention.training.build import build_model

    recipe_name, width, num_layers, num_heads, segment, num_lanes, *symbols = SIZES[size]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = {
        "model.core.width": width,
        "model.core.num_layers": num_layers,
        "model.core.num_heads": num_heads,
        "model.core.dropout": 0.0,
        "model.core.embedding_dropout": 0.0,
        "training.segment_length": segment,
        "training.num_lanes": lanes or num_lanes,
        "training.precision": "bfloat16" if device.type == "cuda" else "float32",
    }
    recipe = find_recipe(recipe_name).override(settings)
    numbers = Symbols(*symbols)
    torch.manual_seed(0)
    learner = Learner(recipe, build_model(recipe, numbers), device, Processes())
    rows = range(lanes or num_lanes)
    batches = tokens(numbers, len(rows), segment, num_updates, Batch)
    seconds, losses = [], []
    for number, batch in enumerate(batches):
        rate = RATE * min(1.0, (number + 1) / 20)
        began = time.perf_counter()
        # An update returns its loss, for which it waits for the device.
        outcome = learner.update(batch, lanes=rows, rate=rate, wants_stop=False)
        seconds.append(time.perf_counter() - began)
        losses.append(outcome.loss)
    return {"seconds": seconds, "losses": losses}


def tokens(symbols: Symbols, lanes: int, segment: int, num_updates: int, batch: Any) -> Any:  # noqa: ANN401
    """Batches of a noisy walk: a model can learn most of it, and its loss never gets near zero."""
    import numpy as np

    generator = np.random.default_rng(0)
    for _ in range(num_updates):
        noise = generator.random((lanes, segment + 1)) < NOISE
        walk = generator.integers(symbols.num_inputs, size=(lanes, segment + 1))
        for place in range(1, segment + 1):
            follows = (5 * walk[:, place - 1] + 3) % symbols.num_inputs
            walk[:, place] = np.where(noise[:, place], walk[:, place], follows)
        inputs, targets = walk[:, :-1].copy(), walk[:, 1:] % symbols.num_outputs
        yield batch(inputs=inputs, targets=targets)


if __name__ == "__main__":
    main()
