"""The two experiments: any recipes compared, and tables of the paper run again."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.experiments.catalog import SAME_TASK, Row, recipes, table_rows
from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.paper import paper_tables
from staircase_attention.experiments.report import Report
from staircase_attention.experiments.runner import carry_out
from staircase_attention.training import Recipe, TaskChoice

NUM_SEEDS = 10
"""Runs of a setting in the paper."""
LEAST_EVALUATIONS = 20
"""Points of a learning curve, however short the run."""
TITLES = {
    "random-walk": "Random Walk: our runs and the paper's",
    "random-walk-fast": "Random Walk with our own settings: our runs and the paper's",
    "algorithm": "Algorithm: our runs and the paper's",
    "algorithm-fast": "Algorithm with our own settings: our runs and the paper's",
    "permutations": "Permutations of five elements: the models of the Random Walk table",
    "permutations-fast": "Permutations of five elements with our own settings",
}


def compare(
    chosen: Sequence[Recipe],
    *,
    folder: Path,
    seeds: int = 1,
    lengths: Sequence[int] = (),
    title: str = "A comparison",
    command: str | None = None,
    jobs: int = 1,
    processes: int = 1,
    threads: int | None = None,
    progress: bool = False,
) -> Report:
    """Run recipes with the seeds 0, 1, ... each, or resume them, and write the report.

    The run of a recipe with seed k is in folder/name/seed-k, so the names must differ. Every run is
    a `staircase train` or `resume` of its own.
    """
    if not chosen:
        raise input_error("a comparison needs recipes", "none", "give at least one")
    [(name, count)] = Counter(recipe.name for recipe in chosen).most_common(1)
    if count > 1:
        raise input_error(
            "compared recipes must have different names", f"{name!r} twice", "rename one of them"
        )
    experiment = Experiment(
        title=title,
        folder=Path(folder),
        rows=labelled_rows(chosen),
        wanted=tuple(recipe.name for recipe in chosen),
        num_seeds=seeds,
        lengths=tuple(lengths),
        command=this_command() if command is None else command,
    )
    return carry_out(experiment, jobs=jobs, processes=processes, threads=threads, progress=progress)


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
    processes: int = 1,
    progress: bool = False,
) -> Report:
    """Run rows of a table, or resume them, and write the report.

    Args:
        table: random-walk, algorithm or permutations, or one of them with -fast at its end.
        folder: for everything; the run of a row with seed k is in row/seed-k.
        rows: names of rows; None: all of them, and an LSTM.
        seeds: runs per row, with the seeds 0, 1, ...
        updates: of every run; None: each row's own number, the paper's.
        overrides: other settings to change, each named by its path, as training.precision.
        lengths: also evaluate the best weights of every run at these episode lengths.
        command: what the report gives as the command line; None: that of this process.
        jobs: runs at a time.
        processes: of each run, started by torchrun.
        progress: show progress on standard error.
    """
    everything = table_rows(table)
    if updates is not None:
        check_integer("updates", updates, minimum=1, example=5000)
    if "seed" in (overrides or {}):
        raise input_error("rows are run with the seeds 0, 1, ...", "seed=...", "use seeds")
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
    return carry_out(experiment, jobs=jobs, processes=processes, progress=progress)


def with_updates(recipe: Recipe, num_updates: int) -> Recipe:
    """The recipe with another length, evaluated and saved often enough for it.

    Episodes grow in proportion.
    """
    at_most = max(1, num_updates // LEAST_EVALUATIONS)
    training = recipe.training
    config = replace(
        training,
        num_updates=num_updates,
        growth=training.growth.in_proportion(num_updates, training.num_updates),
        evaluate_every=min(training.evaluate_every, at_most),
        checkpoint_every=min(training.checkpoint_every, at_most),
    )
    return replace(recipe, training=config)


def _changed(row: Row, updates: int | None, overrides: Mapping[str, Any]) -> Row:
    recipe = row.recipe if updates is None else with_updates(row.recipe, updates)
    recipe = recipe.override(overrides) if overrides else recipe
    if updates is not None and recipe.training.num_updates != updates:
        raise input_error(
            "updates and training.num_updates must agree",
            f"{updates} and {recipe.training.num_updates}",
            "give one of them",
        )
    return replace(row, recipe=recipe)


def chosen_names(names: Sequence[str] | None, rows: Sequence[Row]) -> tuple[str, ...]:
    """The requested rows, in the order of the table; all of them where none is named."""
    known = [row.name for row in rows]
    for name in names or ():
        check_choice("a row", name, known)
    return tuple(name for name in known if not names or name in names)


def labelled_rows(chosen: Sequence[Recipe]) -> tuple[Row, ...]:
    """A row for each recipe, labelled by the task that it really uses."""
    labels = [task_label(recipe) for recipe in chosen]
    rows = []
    for recipe, label in zip(chosen, labels, strict=True):
        clear = label if labels.count(label) == 1 else f"{label} ({recipe.name})"
        rows.append(Row(name=recipe.name, label=clear, recipe=recipe))
    return tuple(rows)


def task_label(recipe: Recipe) -> str:
    """A recipe's name, with the task in place of the group where the task was overridden.

    >>> from staircase_attention.experiments.catalog import find_recipe
    >>> lstm = find_recipe("parity/lstm")
    >>> clock = lstm.override({"task.reference": "tasks/clock.py:Clock"})
    >>> task_label(lstm), task_label(clock)
    ('parity/lstm', 'Clock/lstm')
    """
    _, _, rest = recipe.name.partition("/")
    named = recipes().get("/".join(recipe.name.split("/")[:2]))
    used = task_name(recipe)
    return recipe.name if named is None or used == task_name(named) else f"{used}/{rest}"


def task_name(recipe: Recipe) -> str:
    """The name of a task, the class of a user's task, or the folder of a corpus."""
    if isinstance(recipe.task, TaskChoice):
        return recipe.task.reference.rpartition(":")[2]
    return Path(recipe.task.folder).name


def this_command() -> str:
    """The command line that started this process."""
    program, *arguments = sys.argv
    return shlex.join([Path(program).name, *arguments])
