"""The paper's tables, run again: rows, several seeds each, one report beside its numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from staircase_attention import training
from staircase_attention.experiments.experiment import (
    Experiment,
    check_count,
    chosen_names,
    this_command,
)
from staircase_attention.experiments.paper import paper_tables
from staircase_attention.experiments.planned_run import Resume, Train
from staircase_attention.experiments.report import Report
from staircase_attention.experiments.rows import SAME_TASK, Row, table_rows
from staircase_attention.experiments.runner import carry_out
from staircase_attention.training import Display, Recipe

NUM_SEEDS = 10
"""Runs of a setting in the paper."""
LEAST_EVALUATIONS = 20
"""Points of a learning curve, however short the run."""
TITLES = {
    "random-walk": "Random Walk: our runs beside the paper's",
    "random-walk-fast": "Random Walk with settings of our own: our runs beside the paper's",
    "algorithm": "Algorithm: our runs beside the paper's",
    "algorithm-fast": "Algorithm with settings of our own: our runs beside the paper's",
    "permutations": "Permutations of five things: the models of the Random Walk table",
    "permutations-fast": "Permutations of five things with settings of our own",
}


def reproduce(
    table: str,
    *,
    folder: Path,
    rows: Sequence[str] | None = None,
    seeds: int = NUM_SEEDS,
    updates: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    lengths: Sequence[int] = (),
    command: str | None = None,
    jobs: int = 1,
    train: Train = training.train,
    resume: Resume = training.resume,
    progress: Display | None = None,
) -> Report:
    """Run rows of a table, or go on with them, and write the report.

    Args:
        table: random-walk, algorithm or permutations, or one of them with -fast at its end.
        folder: for everything; the run of a row with seed k is in row/seed-k.
        rows: names of rows; all of them, and an LSTM, where None.
        seeds: runs a row, with the seeds 0, 1, ...
        updates: of every run; each row's own number, the paper's, where None.
        overrides: other settings to change, each named by its path, as training.precision.
        lengths: of test episodes on which the best weights of every run are scored besides.
        command: what the report gives as the way to have it again; this process's where None.
        jobs: runs at a time; more than one have a process of their own each.
        train: begins a run.
        resume: goes on with one.
        progress: what a person sees meanwhile.
    """
    everything = table_rows(table)
    if updates is not None:
        check_count("updates", updates)
    if "seed" in (overrides or {}):
        raise ValueError("rows are run with the seeds 0, 1, ..., got seed=...; use seeds")
    wanted = chosen_names(rows, everything)
    changed = [
        _changed(row, updates, overrides or {}) if row.name in wanted else row for row in everything
    ]
    experiment = Experiment(
        title=TITLES[table],
        folder=Path(folder),
        rows=tuple(changed),
        wanted=wanted,
        num_seeds=seeds,
        table=paper_tables().get(SAME_TASK.get(table, table)),
        is_table=True,
        lengths=tuple(lengths),
        command=this_command() if command is None else command,
        overrides=overrides or {},
    )
    return carry_out(experiment, train=train, resume=resume, progress=progress, jobs=jobs)


def with_updates(recipe: Recipe, num_updates: int) -> Recipe:
    """The recipe with another length, evaluated and saved often enough for it.

    Episodes grow in proportion.
    """
    at_most = max(1, num_updates // LEAST_EVALUATIONS)
    training = recipe.training
    config = dataclasses.replace(
        training,
        num_updates=num_updates,
        growth=training.growth.in_proportion(num_updates, training.num_updates),
        evaluate_every=min(training.evaluate_every, at_most),
        checkpoint_every=min(training.checkpoint_every, at_most),
    )
    return dataclasses.replace(recipe, training=config)


def _changed(row: Row, updates: int | None, overrides: Mapping[str, Any]) -> Row:
    recipe = row.recipe if updates is None else with_updates(row.recipe, updates)
    recipe = recipe.override(overrides) if overrides else recipe
    if updates is not None and recipe.training.num_updates != updates:
        raise ValueError(
            f"updates and training.num_updates must agree, got {updates} and "
            f"{recipe.training.num_updates}; give one of them"
        )
    return dataclasses.replace(row, recipe=recipe)
