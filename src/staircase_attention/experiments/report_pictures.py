"""The pictures of a report."""

from collections.abc import Sequence
from pathlib import Path

from staircase_attention.experiments.curves import learning_curves
from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.figures import place_points, recurrence_figure
from staircase_attention.experiments.length_figure import length_figure
from staircase_attention.experiments.pictures import save
from staircase_attention.experiments.summary import RowSummary

PICTURES = ("figure-2", "learning-curves", "learning-times", "lengths")


def draw_pictures(
    experiment: Experiment, rows: Sequence[RowSummary], folder: Path
) -> dict[str, str]:
    """Draw all for which there is something to draw: the PNGs, and what each shows."""
    title, drawn = experiment.title, {}
    if experiment.is_table and place_points(rows):
        save(recurrence_figure(rows, title=title), folder / "figure-2")
        drawn["figure-2.png"] = "Test error against recurrent steps"
    if any(run.curve for row in rows for run in row.runs):
        save(learning_curves(rows, title=title), folder / "learning-curves")
        drawn["learning-curves.png"] = "Validation error against updates"
    if any(run.seconds for row in rows for run in row.runs):
        save(learning_curves(rows, title=title, against="time"), folder / "learning-times")
        drawn["learning-times.png"] = "Validation error against time of training"
    if any(row.lengths for row in rows):
        save(length_figure(rows, title=title), folder / "lengths")
        drawn["lengths.png"] = "Test error against the length of episodes"
    for name in PICTURES:
        if f"{name}.png" not in drawn:
            # Of a report that was here before.
            for ending in (".png", ".svg"):
                (folder / name).with_suffix(ending).unlink(missing_ok=True)
    return drawn
