"""Recipes that train in a second or two, and a script that trains one in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from staircase_attention import CoreConfig, Staircase
from staircase_attention.training import (
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)

PARITY = {"group": "S2", "length": 10, "num_valid": 20, "num_test": 20}


def small_recipe(**changes):
    """A tiny Staircase with dropout, so that random generators matter."""
    recipe = Recipe(
        name="small",
        task=TaskChoice(reference="permutations", options=PARITY),
        model=FamilyModel(
            core=CoreConfig(width=8, num_layers=1, num_heads=2, dropout=0.1),
            schedule=Staircase(chunk_size=3, num_passes=2),
        ),
        training=TrainingConfig(
            num_updates=12,
            num_lanes=4,
            segment_length=7,
            optimizer=OptimizerConfig(learning_rate=1e-2, warm_up=3),
            log_every=2,
            evaluate_every=5,
            checkpoint_every=4,
        ),
    )
    return recipe.override({name.replace("__", "."): value for name, value in changes.items()})


def lstm_recipe(**changes):
    plain = small_recipe().to_plain() | {
        "model": {"kind": LSTMModel.kind, "width": 8, "num_layers": 2, "dropout": 0.1}
    }
    return Recipe.from_plain(plain).override(
        {name.replace("__", "."): value for name, value in changes.items()}
    )


SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from staircase_attention.training import Recipe, resume, train
from staircase_attention.training.display import Lines
folder, recipe = Path(sys.argv[1]), Recipe.from_plain(json.loads(sys.argv[2]))
display = Lines(every_seconds=0)
if (folder / "config.json").exists():
    resume(folder, progress=display)
else:
    train(recipe, folder, progress=display)
"""


def start_process(folder, recipe, *, launcher=()):
    """Train a recipe, or go on with it, in another process, whose output goes to a file."""
    script = Path(folder).parent / "train_script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, *launcher, str(script), str(folder), json.dumps(recipe.to_plain())]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with output_of(folder).open("w") as output:
        return subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)


def output_of(folder):
    """Where `start_process` puts what a run prints."""
    return Path(f"{folder}.output")


def final_bytes(folder):
    """The weights after the last update, and all metrics."""
    folder = Path(folder)
    last = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return (last / "weights.safetensors").read_bytes(), (folder / "metrics.jsonl").read_bytes()
