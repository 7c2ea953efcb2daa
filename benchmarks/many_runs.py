"""Runs of many recipes side by side on one GPU, for a limited time.

    python benchmarks/many_runs.py benchmarks/missing_runs.json words-long --jobs 2 --seconds 1600

A plan is a JSON file of parts. A part names groups, in the order in which they begin; long runs
come first, so that none is left alone at the end:

    {"walks": {"slow": {"recipes": ["random-walk-fast/feedback"], "first_seed": 2, "seeds": 1,
                     "lengths": [400, 800], "overrides": {"training.num_lanes": 82}}}}

A group is what `staircase compare` does with these options, in OUTPUT/GROUP. After `--seconds` runs
save themselves and stop; the same call resumes them. Every minute collect_runs.py writes what there
is to `--collect`, so that little is lost with the machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from staircase_attention.cli.arguments import parse_assignments
from staircase_attention.experiments import find_recipe
from staircase_attention.experiments.comparisons import labelled_rows
from staircase_attention.experiments.report import Report
from staircase_attention.experiments.runner import carry_out
from staircase_attention.files import read_json
from staircase_attention.training import StopRequested

COLLECT_SECONDS = 60


def main() -> None:
    """Run a part of a plan, and print a line for each run that has ended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("part")
    parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="for all runs")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=threading.TIMEOUT_MAX)
    parser.add_argument("--output", type=Path, default=Path("runs/many"))
    parser.add_argument("--collect", type=Path, default=Path("runs/many.json"))
    options = parser.parse_intermixed_args()
    overrides = parse_assignments(options.overrides)
    reports = [
        report(options.output / name, group, overrides)
        for name, group in read_json(options.plan)[options.part].items()
    ]
    ended = threading.Event()
    collector = threading.Thread(target=keep_collecting, args=(options, ended))
    clock = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
    clock.daemon = True
    collector.start()
    clock.start()
    try:
        for done in carry_out(reports, jobs=options.jobs, progress=True):
            print(f"{done.folder} has ended", flush=True)
    except StopRequested as stop:
        print(stop)
    finally:
        clock.cancel()
        ended.set()
        collector.join()
    for path in sorted(options.output.rglob("result.json")):
        result, name = read_json(path), str(path.parent.relative_to(options.output))
        error = (result["test"] or {}).get("error")
        print(f"{name:60} {result['wall_seconds']:7.0f} s  test error {error}")


def report(folder: Path, group: dict[str, Any], overrides: dict[str, Any]) -> Report:
    """The runs of a group."""
    changes = group.get("overrides", {}) | overrides
    recipes = [find_recipe(name).override(changes) for name in group["recipes"]]
    return Report(
        title=folder.name,
        folder=folder,
        rows=labelled_rows(recipes),
        num_seeds=group["seeds"],
        first_seed=group["first_seed"],
        lengths=tuple(group.get("lengths", ())),
    )


def keep_collecting(options: argparse.Namespace, ended: threading.Event) -> None:
    """Collect every minute, and once more at the end."""
    script, is_last = Path(__file__).with_name("collect_runs.py"), False
    while not is_last:
        is_last = ended.wait(COLLECT_SECONDS)
        folders = sorted({path.parents[3] for path in options.output.glob("*/*/*/*/config.json")})
        if folders:
            command = [sys.executable, script, options.collect, *folders]
            subprocess.run(command, check=False, capture_output=not is_last)


if __name__ == "__main__":
    main()
