r"""The figures of a table of the paper, drawn from collected runs in place of run folders.

    python benchmarks/draw_table.py random-walk-fast docs/figures \
        benchmarks/results/2026-11-16-random-walk-fast.json \
        "within a walk=benchmarks/results/2026-11-18-random-walk-global.json"

Files are reports (report.json), or runs as `collect_runs.py` writes them. Of NOTE=FILE, runs whose
segments have another length than the table's take the place of the table's row, with the note in
its name. Writes TABLE-curves.png, TABLE-steps.png and, where the files have scores at other
lengths, TABLE-lengths.png.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from staircase_attention.experiments.comparisons import TABLES, table_rows
from staircase_attention.experiments.figures import curve_figure, save, steps_figure
from staircase_attention.experiments.results import Row, RunRecord
from staircase_attention.training import RunResult


def main() -> None:
    """Read the runs and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+", metavar="[NOTE=]FILE")
    chosen = parser.parse_args()
    rows = {row.name: row for row in table_rows(chosen.table)}
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for words in chosen.files:
        note, _, file = words.rpartition("=")
        for name, run in read(Path(file)):
            row = rows[name.removeprefix(f"{chosen.table}/")]
            usual = row.recipe.training.segment_length
            # A report does not say; its runs are the table's.
            length = run["recipe"]["training"]["segment_length"] if "recipe" in run else usual
            label = f"{row.name}, {note}" if note and length != usual else row.name
            found.setdefault(row.name, {}).setdefault(label, []).append(record(row, run))
    drawn = []
    for name, labelled in found.items():
        label, runs = [*labelled.items()][-1]
        if len({run.seed for run in runs}) < len(runs):
            raise SystemExit(f"{label}: each seed counts once; name each file once")
        drawn.append(replace(rows[name], label=label, runs=tuple(runs)))
    drawn.sort(key=lambda row: [*rows].index(row.name))
    figures = {
        "curves": curve_figure(drawn, "updates"),
        "steps": steps_figure(drawn),
        "lengths": curve_figure(drawn, "length"),
    }
    for name, figure in figures.items():
        if figure is not None:
            figure.axes[0].set_title(TABLES[chosen.table][0], fontsize=11, loc="left")
            save(figure, chosen.folder / f"{chosen.table}-{name}.png")


def read(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All finished runs in a file, with the names of their recipes."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if "rows" in content:
        runs = [(row["recipe"], run) for row in content["rows"] for run in row["runs"]]
    else:
        runs = [(run["recipe"]["name"], run) for run in content.get("runs", content).values()]
    yield from ((name, run) for name, run in runs if run["result"] is not None)


def curve(row: Row, run: dict[str, Any]) -> list[tuple[int, float]]:
    """Updates and validation scores of a run of a file."""
    points, scale = run.get("curve"), 1.0
    if points is None:
        points, scale = run["valid"], row.measure.scale
    if isinstance(points, dict):
        columns = points["columns"]
        places = columns.index("update"), columns.index(row.measure.key)
        points = [[line[place] for place in places] for line in points["rows"]]
    pairs = [[*point.values()] if isinstance(point, dict) else point for point in points]
    # Null is a score that was not finite.
    return [(at, float("nan") if score is None else scale * score) for at, score, *_ in pairs]


def record(row: Row, run: dict[str, Any]) -> RunRecord:
    """A run of a file as the report of its folder would have it."""
    known = {field.name for field in fields(RunResult)}
    result = {key: value for key, value in run["result"].items() if key in known}
    return RunRecord(
        seed=run["result"]["seed"],
        status="finished",
        result=RunResult(**{"recipe": row.recipe.name} | result),
        curve=tuple(curve(row, run)),
        lengths={
            int(length): 100 * score["error"] if isinstance(score, dict) else score
            for length, score in run.get("lengths", {}).items()
        },
        # Early files do not say, and most of their runs were not alone.
        is_shared=run.get("is_shared", True),
    )


if __name__ == "__main__":
    main()
