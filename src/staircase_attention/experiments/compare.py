"""Any recipes side by side, with the same report as a table of the paper gets."""

from collections.abc import Sequence
from pathlib import Path

from staircase_attention import training
from staircase_attention.experiments.experiment import Experiment, this_command
from staircase_attention.experiments.planned_run import Resume, Train
from staircase_attention.experiments.report import Report
from staircase_attention.experiments.rows import Row
from staircase_attention.experiments.runner import carry_out
from staircase_attention.training import Display, Recipe


def compare(
    recipes: Sequence[Recipe],
    *,
    folder: Path,
    seeds: int = 1,
    lengths: Sequence[int] = (),
    title: str = "A comparison",
    command: str | None = None,
    jobs: int = 1,
    train: Train = training.train,
    resume: Resume = training.resume,
    progress: Display | None = None,
) -> Report:
    """Run recipes with the seeds 0, 1, ... each, or go on with them, and write the report.

    The run of a recipe with seed k is in folder/name/seed-k, so the names must differ. Of several
    jobs, runs at a time, each has a process of its own.
    """
    names = tuple(recipe.name for recipe in recipes)
    _check_names(names)
    experiment = Experiment(
        title=title,
        folder=Path(folder),
        rows=tuple(Row(name=recipe.name, recipe=recipe) for recipe in recipes),
        wanted=names,
        num_seeds=seeds,
        lengths=tuple(lengths),
        command=this_command() if command is None else command,
    )
    return carry_out(experiment, train=train, resume=resume, progress=progress, jobs=jobs)


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ValueError("a comparison needs recipes, got none; give at least one")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"recipes that are compared must have different names, got {name!r} twice; "
                "rename one of them"
            )
