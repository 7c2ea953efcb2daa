"""A stand-in for `staircase train` and `resume` that takes no time: it only writes the run folder.

The run folder is all that the runner knows of a run, so that this is a fair double. What happens in
some runs is in the environment: FAKE_TROUBLE maps 'name, seed' to a word, once per run; FAKE_CALLS
is a file of all calls; FAKE_ERROR is the error of seed 0. It imports nothing that is slow.
"""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path


def main():
    command, path = sys.argv[1:3]
    folder = Path(sys.argv[sys.argv.index("--output") + 1]) if command == "train" else Path(path)
    source = Path(path) if command == "train" else folder / "config.json"
    recipe = json.loads(source.read_text())
    recipe = recipe.get("recipe", recipe)
    title = f"{recipe['name']}, {recipe['seed']}"
    with open(os.environ["FAKE_CALLS"], "a") as calls:
        calls.write(json.dumps([command, recipe["name"], recipe["seed"], os.getpid()]) + "\n")
    trouble = json.loads(os.environ["FAKE_TROUBLE"]).get(title)
    done = folder.with_name(folder.name + ".trouble")
    if trouble and not done.exists():
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    else:
        trouble = None
    if trouble == "refuse":
        sys.exit("staircase: no such thing")
    if command == "train":
        folder.mkdir(parents=True)
        write(folder / "environment.json", {"device": "A Fine GPU", "packages": {"torch": "9.9"}})
        config = {"format": int(os.environ["FAKE_FORMAT"]), "recipe": recipe}
        write(folder / "config.json", config)
    if trouble == "fail":
        sys.exit("Traceback\n  somewhere\nstaircase: CUDA out of memory")
    if trouble in ("wait", "ignore"):
        ignore = signal.SIG_IGN if trouble == "ignore" else lambda *_: os._exit(143)
        signal.signal(signal.SIGTERM, ignore)
        Path(os.environ["FAKE_CALLS"] + ".waiting").touch()
        time.sleep(60)
    if trouble == "end of input":
        Path(os.environ["FAKE_CALLS"] + ".waiting").touch()
        os.read(0, 1)
        Path(os.environ["FAKE_CALLS"] + ".ended").touch()
    if trouble == "slow":
        time.sleep(0.5)
    if trouble in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, trouble))
    if trouble in ("exit 3", "exit 0"):
        os._exit(int(trouble[-1]))
    sys.exit(finish(folder, recipe, trouble))


def finish(folder, recipe, trouble):
    """Metrics on a smooth way from chance to the final error, and the result."""
    config, error = recipe["training"], float(os.environ["FAKE_ERROR"]) + 0.01 * recipe["seed"]
    lines = []
    for update in range(
        config["evaluate_every"], config["num_updates"] + 1, config["evaluate_every"]
    ):
        left = math.exp(-6 * update / config["num_updates"])
        score = {"loss": 1.0, "error": error + (0.95 - error) * left}
        lines.append({"kind": "train", "update": update, **score})
        lines.append({"kind": "valid", "update": update, **with_bits(recipe, score)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    has_diverged = bool(trouble) and trouble.startswith("diverge")
    write(folder / "result.json", result(recipe, error, trouble if has_diverged else None))
    return 1 if has_diverged else 0


def result(recipe, error, trouble=None):
    """What is in result.json, for a recipe as plain data."""
    config = recipe["training"]
    updates = config["num_updates"] // 2 if trouble else config["num_updates"]
    scores = {"loss": 4 * error, "error": error, "num_answers": 1000, "num_tokens": 1100}
    has_score = trouble != "diverge without a score"
    return {
        "recipe": recipe["name"],
        "seed": recipe["seed"],
        "status": "diverged" if trouble else "finished",
        "num_updates": updates,
        "num_tokens": updates * config["num_lanes"] * config["segment_length"],
        "num_parameters": 3_177_024,
        "wall_seconds": 3725.0,
        "device": "NVIDIA H200",
        "num_rollbacks": 3 if trouble else 0,
        "best_update": updates if has_score else None,
        "valid": with_bits(recipe, scores) if has_score else None,
        "test": with_bits(recipe, scores | {"error": error + 0.001}) if has_score else None,
        "outcome": "diverged" if trouble else "learnt",
    }


def with_bits(recipe, score):
    """Scores on a corpus also have bits per byte and perplexity."""
    bits = {"bits_per_byte": 4 * score["error"], "perplexity": 100 * score["error"]}
    return score | (bits if recipe["task"]["kind"] == "corpus" else {})


def write(path, plain):
    """Whole, as a report may be written while another run ends."""
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(plain))
    scratch.replace(path)


if __name__ == "__main__":
    main()
