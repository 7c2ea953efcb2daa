"""What run folders say, in one file small enough to be kept: settings, results and curves.

    python benchmarks/collect_runs.py results.json results/enwik8-fast "N4, rate 5e-3=runs/fast" ...

A folder stands for all runs below it, labelled by their paths; LABEL=FOLDER names one run. Kept of
a run: the command that began it, its recipe, the machine and its packages, its result (none where
it was stopped) with tokens, seconds and scores, training losses and errors, validation scores with
the seconds of training so far, events such as rollbacks, how often it was started, whether it
shared the machine, and scores at other lengths where there are any. Weights are left out.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from staircase_attention.experiments.results import read_lengths, read_lines, read_run
from staircase_attention.files import read_json
from staircase_attention.training.run_folder import RunFolder

TRAIN = ("loss", "error", "gradient_norm")
VALID = ("loss", "error", "bits_per_byte", "perplexity")
DIGITS = 5
"""Significant digits of numbers in curves."""
LINE = 100
"""Characters that fit on a line."""


def main() -> None:
    """Read the folders and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]FOLDER")
    chosen = parser.parse_args()
    folders: dict[str, Path] = {}
    for words in chosen.runs:
        found = dict(named_runs(words))
        if not found or found.keys() & folders.keys():
            parser.error(f"each folder must hold runs of other labels, got {words!r}")
        folders |= found
    kept = {label: collected(folder) for label, folder in folders.items()}
    chosen.output.write_text(compact(kept) + "\n", encoding="utf-8")
    print(f"wrote {len(kept)} runs to {chosen.output}")


def named_runs(words: str) -> Iterator[tuple[str, Path]]:
    """The run of LABEL=FOLDER, or all runs below FOLDER, labelled by their paths in it."""
    label, _, name = words.rpartition("=")
    # The folder of a variation has an equals sign in its own name.
    is_labelled = label and not Path(words).exists()
    folder = Path(name if is_labelled else words)
    for config in sorted(folder.rglob("config.json")):
        run = config.parent
        if not is_labelled:
            yield str(run.relative_to(folder.parent if run == folder else folder)), run
        elif run == folder:
            yield label, run


def collected(run: Path) -> dict[str, Any]:
    """What is kept of a run."""
    place = RunFolder(run)
    recipe = read_json(place.config)["recipe"]
    record = read_run(run, recipe["seed"])
    environment = dict(record.environment)
    lines = list(read_lines(place.metrics))
    seconds = {line["update"]: line["wall_seconds"] for line in read_lines(place.timing)}
    lengths = {str(length): score.to_plain() for length, score in read_lengths(run).items()}
    return {
        "command": " ".join(environment.pop("command", [])),
        "recipe": recipe,
        "environment": environment,
        "num_starts": record.num_starts,
        "is_shared": record.is_shared,
        "result": read_json(place.result) if place.is_finished else None,
        "train": columns(lines, "train", TRAIN, {}),
        "valid": columns(lines, "valid", VALID, seconds),
        "events": [line for line in lines if line["kind"] not in ("train", "valid")],
    } | ({"lengths": lengths} if lengths else {})


def columns(
    lines: list[dict[str, Any]], kind: str, names: tuple[str, ...], seconds: dict[int, float]
) -> dict[str, Any]:
    """The known numbers of all lines of a kind, and the seconds at which they were written."""
    lines = [line for line in lines if line["kind"] == kind]
    known = [name for name in names if all(name in line for line in lines)]
    rows = [
        [line["update"], *(rounded(line[name]) for name in known)]
        + ([rounded(seconds.get(line["update"]))] if seconds else [])
        for line in lines
    ]
    return {"columns": ["update", *known, *(["wall_seconds"] if seconds else [])], "rows": rows}


def rounded(number: float | None) -> float | None:
    """A number with a few significant digits; None where there is none."""
    return None if number is None else float(f"{number:.{DIGITS}g}")


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
