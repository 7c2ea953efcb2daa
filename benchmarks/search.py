"""Trains variations of a recipe, several at a time on one device, and keeps their scores.

    python benchmarks/search.py TRIALS.json --output RESULTS.json --jobs 3

TRIALS.json names a recipe, settings that all trials share, and for each trial the settings that it
changes (`recipe` among them changes the recipe):

    {"recipe": "enwik8/transformer-xl",
     "settings": {"training.num_updates": 2000},
     "trials": {"base": {}, "high-rate": {"training.optimizer.learning_rate": 0.005}}}

Every trial is a `staircase train`. RESULTS.json has what TRIALS.json has, so it can be run again,
and each trial's result and losses. Trials that are in RESULTS.json already are not run again. The
first trial runs alone, so that the others find its kernels compiled.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Plain = dict[str, Any]


def main() -> None:
    """Read the trials, run those that are missing, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/search"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="names of trials, separated by commas")
    arguments = parser.parse_args()
    plan = json.loads(arguments.trials.read_text())
    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    results = {**plan, "results": results.get("results", {})}
    wanted = arguments.only.split(",") if arguments.only else list(plan["trials"])
    waiting = [name for name in wanted if name not in results["results"]]
    running: dict[str, subprocess.Popen[bytes]] = {}
    first = waiting[0] if waiting else None
    while waiting or running:
        jobs = 1 if first in waiting or first in running else arguments.jobs
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = start(plan, name, arguments.folder / name)
        time.sleep(0.1)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            results["results"][name] = outcome(arguments.folder / name, code)
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")
            print(line(name, results["results"][name]), flush=True)


def start(plan: Plain, name: str, folder: Path) -> subprocess.Popen[bytes]:
    """One trial as a process of its own."""
    settings = {**plan["settings"], **plan["trials"][name]}
    recipe = settings.pop("recipe", plan["recipe"])
    assignments = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
    command = [sys.executable, "-m", "staircase_attention", "train", recipe, *assignments]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--output", str(folder), "--quiet"],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
        )


def outcome(folder: Path, code: int) -> Plain:
    """A trial's result, its training losses and its speed; its last words where it failed."""
    if code:
        return {"failed": Path(f"{folder}.log").read_text()[-500:]}
    records = [json.loads(record) for record in (folder / "metrics.jsonl").open()]
    times = [json.loads(record) for record in (folder / "timing.jsonl").open()]
    speeds = [time["tokens_per_second"] for time in times if "tokens_per_second" in time]
    return {
        "result": json.loads((folder / "result.json").read_text()),
        "losses": {
            record["update"]: round(record["loss"], 4)
            for record in records
            if record["kind"] == "train"
        },
        "tokens_per_second": round(statistics.median(speeds)) if speeds else None,
    }


def line(name: str, found: Plain) -> str:
    """A row of the table."""
    if "failed" in found:
        return f"| {name} | failed: {found['failed'][-200:]!r} |"
    result = found["result"]
    scores = [(result[split] or {}).get("bits_per_byte") for split in ("valid", "test")]
    return (
        f"| {name} | {scores} | {result['num_tokens']:,} tokens | {result['wall_seconds']:.0f} s "
        f"| {found['tokens_per_second']} tokens/s | {result['status']} {result['num_rollbacks']} |"
    )


if __name__ == "__main__":
    main()
