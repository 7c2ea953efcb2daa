"""What run folders say, in one file small enough to be kept: settings, results and curves.

    python benchmarks/collect_runs.py results.json "Ladder 8, seed 0=runs/ladder-8/seed-0" ...

Each run is under its label: the command that began it, its recipe, the machine and its packages,
its result (none where it was stopped), training errors and gradient norms, validation errors,
events such as rollbacks, and scores at other lengths where there are any. Weights are left out, and
so are times but for the whole, which are those of a shared machine as often as not.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from staircase_attention.experiments.results import read_lengths
from staircase_attention.files import read_json
from staircase_attention.training.run_folder import RunFolder

CURVES = ("train", "valid")
LINE = 100
"""Characters that fit on a line."""


def main() -> None:
    """Read the folders and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER")
    chosen = parser.parse_args()
    pairs = [run.rpartition("=") for run in chosen.runs]
    for label, _, folder in pairs:
        if not label or not RunFolder(Path(folder)).config.exists():
            parser.error(f"each run must be LABEL=FOLDER of a run, got {label!r} and {folder!r}")
    found = {label: collected(Path(folder)) for label, _, folder in pairs}
    chosen.output.write_text(compact(found) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {len(found)} runs to {chosen.output}\n")


def collected(run: Path) -> dict[str, Any]:
    """What is kept of a run."""
    place = RunFolder(run)
    environment = read_json(place.environment)
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    found = {
        "command": " ".join(environment.pop("command")),
        "recipe": read_json(place.config)["recipe"],
        "environment": environment,
        "result": read_json(place.result) if place.is_finished else None,
        "train": columns(lines, "train", "update", "error", "gradient_norm"),
        "valid": columns(lines, "valid", "update", "error"),
        "events": [line for line in lines if line["kind"] not in CURVES],
    }
    lengths = {str(length): score.to_plain() for length, score in read_lengths(run).items()}
    return found | ({"lengths": lengths} if lengths else {})


def columns(lines: list[dict[str, Any]], kind: str, *names: str) -> dict[str, Any]:
    """Some numbers of all lines of a kind."""
    rows = [[line[name] for name in names] for line in lines if line["kind"] == kind]
    return {"columns": names, "rows": rows}


def compact(data: Any, indent: int = 0) -> str:  # noqa: ANN401
    """JSON with lists of numbers, and whatever else fits, on one line."""
    line = json.dumps(data)
    if len(line) <= LINE or not isinstance(data, (dict, list)):
        return line
    pad = "\n" + " " * (indent + 1)
    if isinstance(data, dict):
        parts = [f"{json.dumps(key)}: {compact(one, indent + 1)}" for key, one in data.items()]
        return "{" + pad + ("," + pad).join(parts) + pad[:-1] + "}"
    return "[" + pad + ("," + pad).join(compact(one, indent + 1) for one in data) + pad[:-1] + "]"


if __name__ == "__main__":
    main()
