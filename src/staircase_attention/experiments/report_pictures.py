"""The pictures of a report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from staircase_attention.experiments.curves import learning_curves
from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.figures import place_points, recurrence_figure
from staircase_attention.experiments.length_figure import length_figure
from staircase_attention.experiments.pictures import ENDINGS, save
from staircase_attention.experiments.summary import RowSummary


def draw_pictures(
    experiment: Experiment, rows: Sequence[RowSummary], folder: Path
) -> dict[str, str]:
    """Draw all for which there is something to draw: the PNGs, and what each shows.

    Others, of a report that was here before, are taken away.
    """
    title, runs, drawn = experiment.title, [run for row in rows for run in row.runs], {}
    pictures: dict[str, tuple[bool, Callable[[], Figure], str]] = {
        "figure-2": (
            experiment.is_table and bool(place_points(rows)),
            lambda: recurrence_figure(rows, title=title),
            "Test error against recurrent steps",
        ),
        "learning-curves": (
            any(run.curve for run in runs),
            lambda: learning_curves(rows, title=title),
            "Validation error against updates",
        ),
        "learning-times": (
            any(run.seconds for run in runs),
            lambda: learning_curves(rows, title=title, against="time"),
            "Validation error against time of training",
        ),
        "lengths": (
            any(row.lengths for row in rows),
            lambda: length_figure(rows, title=title),
            "Test error against the length of episodes",
        ),
    }
    for name, (has_something, figure, caption) in pictures.items():
        path = folder / name
        if has_something:
            save(figure(), path)
            drawn[f"{name}.png"] = caption
        else:
            for ending in ENDINGS:
                path.with_suffix(ending).unlink(missing_ok=True)
    return drawn
