"""The report of an experiment: everything that was found, as data and as a page to read."""

import datetime
from dataclasses import dataclass
from typing import Any

from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.markdown import page
from staircase_attention.experiments.run_records import RunRecord
from staircase_attention.experiments.spread import Spread
from staircase_attention.experiments.summary import RowSummary, summarize
from staircase_attention.files import write_json, write_whole
from staircase_attention.training.plain import to_plain
from staircase_attention.training.run_folder import environment

FORMAT = 3
"""Counted up when the layout of report.json changes."""
UNIT = "error %"
NOT_WELL = ("failed", "diverged")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What an experiment has come to so far."""

    experiment: Experiment
    rows: tuple[RowSummary, ...]
    written: str
    """Day and time, in UTC."""

    @property
    def failures(self) -> list[tuple[str, RunRecord]]:
        """Runs that did not end well, with the names of their rows."""
        return [(row.row.name, run) for row in self.rows for run in row.with_status(*NOT_WELL)]

    def to_plain(self) -> dict[str, Any]:
        """The report as plain data."""
        experiment, table = self.experiment, self.experiment.table
        return {
            "format": FORMAT,
            "title": experiment.title,
            "table": None if table is None else {"name": table.name, "label": table.label},
            "unit": UNIT,
            "command": experiment.command,
            "overrides": to_plain(experiment.overrides),
            "written": self.written,
            "environment": environment(),
            "rows": [_plain_row(row) for row in self.rows],
            "notes": [] if table is None else list(table.notes),
        }


def collect(experiment: Experiment) -> Report:
    """Read all runs of an experiment's rows that are in its folder."""
    now = datetime.datetime.now(datetime.UTC)
    return Report(
        experiment=experiment,
        rows=summarize(experiment.rows, experiment.folder),
        written=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


def write_report(experiment: Experiment) -> Report:
    """Write report.json, report.md and the pictures; each file is whole or as it was before."""
    # Most commands draw nothing, and need not wait for matplotlib.
    from staircase_attention.experiments.report_pictures import draw_pictures

    report = collect(experiment)
    folder = experiment.folder
    pictures = draw_pictures(experiment, report.rows, folder)
    plain = report.to_plain()
    write_json(folder / "report.json", plain)
    text = page(
        experiment,
        report.rows,
        written=report.written,
        environment=plain["environment"],
        pictures=pictures,
    )
    write_whole(folder / "report.md", text.encode())
    return report


def _plain_row(summary: RowSummary) -> dict[str, Any]:
    row = summary.row
    return {
        "name": row.name,
        "recipe": row.recipe.name,
        "model": row.model,
        **to_plain(row.words),
        "is_run": summary.is_run,
        "ours": _plain_ours(summary) if summary.is_run else None,
        "paper": _plain_paper(summary),
        "full_updates": row.full_updates,
        "full_tokens": row.full_tokens,
        "is_shortened": summary.is_shortened,
        "runs": [_plain_run(run) for run in summary.runs],
    }


def _plain_ours(summary: RowSummary) -> dict[str, Any]:
    return {
        "train": _plain_spread(summary.train_error),
        "valid": _plain_spread(summary.error("valid")),
        "test": _plain_spread(summary.error("test")),
        "best_seed": to_plain(summary.best),
        "num_seeds": len(summary.results),
        "num_updates": summary.num_updates,
        "num_tokens": summary.num_tokens,
        "num_parameters": summary.num_parameters,
        "wall_seconds": summary.wall_seconds,
        "seconds_to_solve": _plain_spread(summary.seconds_to_solve),
        "is_shared": summary.is_shared,
        "lengths": {
            str(length): _plain_spread(summary.length_error(length)) for length in summary.lengths
        },
        "devices": summary.devices,
    }


def _plain_paper(summary: RowSummary) -> dict[str, Any] | None:
    paper = summary.row.paper
    if paper is None:
        return None
    return {
        "row": paper.identifier,
        "valid": _plain_spread(paper.valid),
        "test": _plain_spread(paper.test),
        "best_seed_test": summary.row.paper_best,
        "num_seeds": paper.num_seeds,
        "num_updates": paper.num_updates,
    }


def _plain_run(run: RunRecord) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "status": run.status,
        "failure": run.failure,
        "is_shared": run.is_shared,
        "environment": dict(run.environment),
        "result": None if run.result is None else to_plain(run.result),
        "train": run.train,
        "lengths": {str(length): error for length, error in run.lengths.items()},
        "curve": [
            {"update": update, "valid": error, "seconds": run.seconds.get(update)}
            for update, error in run.curve
        ],
    }


def _plain_spread(spread: Spread | None) -> dict[str, float | None] | None:
    return None if spread is None else {"mean": spread.mean, "deviation": spread.deviation}
