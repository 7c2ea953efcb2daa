"""The suite: every model on every task, trained at lengths up to 40 and scored at 41 to 500.

Each task is a comparison of its own in the suite's folder, so that cells that are done are not run
again. The suite adds one table, a heat map and length curves of all cells, and their raw data.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from staircase_attention.checks import check_choice, input_error
from staircase_attention.cores import available_cores
from staircase_attention.display import clock
from staircase_attention.experiments.catalog import find_recipe, our_training, small_models
from staircase_attention.experiments.comparisons import check_settings, labelled_rows
from staircase_attention.experiments.report import Report, short
from staircase_attention.experiments.results import Cells, Row
from staircase_attention.experiments.runner import carry_out
from staircase_attention.files import write_json, write_whole
from staircase_attention.layers.config import CoreConfig
from staircase_attention.plain import IDENTITIES
from staircase_attention.tasks import load_task
from staircase_attention.tasks.registry import SUITE
from staircase_attention.tasks.splits import random_generator
from staircase_attention.tasks.task import task_name
from staircase_attention.training import FamilyModel, LSTMModel, Recipe, TaskChoice, TaskData
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.run_folder import environment

# Incremented when the layout of suite.json changes.
FORMAT = 2
# The tasks, with their class in the Chomsky hierarchy or, if the study has them not, 'state'.
TASKS = {task_name(kind): level for level, kinds in SUITE.items() for kind in kinds}
# For Transformer-XL and Ladder: whole strings and answers, but for some of duplicate-string.
SPAN = 96
# The name of the user's model.
OWN = "own"
EXPLAINED = (
    "Percent of answers that are right, at trained lengths (test strings of 20 to 40 symbols) / "
    "mean over longer ones, up to 500; means over seeds. Guess: the best constant answer. The "
    "budget and the scores of every seed are in suite.json. Published: Delétang et al. (2023), "
    "lengths 41 to 500, after {}. Cells that could not be confirmed are empty."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Sizes of the models, and how each cell is trained and scored."""

    training: str = "suite"
    """The group of our training settings."""
    width: int = 128
    num_layers: int = 4
    lstm_width: int = 156
    """So that it has about the parameters of the others."""
    chunk_size: int = 4
    lengths: tuple[int, ...] = tuple(range(41, 501, 51))
    """Equally spaced, so that their mean stands for that over 41 to 500, which the study has."""
    num_held_out: int = 500
    """Episodes in valid, in test and at each length."""

    @property
    def models(self) -> dict[str, FamilyModel | LSTMModel]:
        """The models, the slowest first, so that the last runs of a task are short."""
        core = CoreConfig(width=self.width, num_layers=self.num_layers, num_heads=4)
        sizes = {"window": SPAN // 3, "span": SPAN, "near": SPAN // 3}
        models = small_models(core, lstm_width=self.lstm_width, chunk_size=self.chunk_size, **sizes)
        return {name: models[name] for name in ("feedback", "cached-staircase")} | models


FULL = Budget()
SMALL = Budget(
    training="suite-small",
    width=48,
    num_layers=1,
    lstm_width=59,
    chunk_size=2,
    lengths=tuple(range(41, 501, 153)),
    num_held_out=100,
)


@cache
def published() -> dict[str, Any]:
    """The study's scores by task and network, as far as they are confirmed, and its budget."""
    return tomllib.loads(Path(__file__).with_name("chomsky.toml").read_text(encoding="utf-8"))


def suite_recipes(
    budget: Budget,
    *,
    tasks: Sequence[str] = (),
    models: Sequence[str] = (),
    own_recipe: str | None = None,
    own: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, list[Recipe]]:
    """The recipes of each task, named after their models.

    A further model is that of `own_recipe` or, without one, the Staircase, with the settings `own`.
    """
    chosen_elsewhere = {"task", "model", "model.schedule", *IDENTITIES} & {*(overrides or {})}
    not_of_model = [path for path in own or {} if not f"{path}.".startswith("model.")]
    for path in (*chosen_elsewhere, *not_of_model):
        rule = "tasks are chosen by --tasks, models by --models, and --own has settings of a model"
        raise input_error(rule, f"{path}=...", "leave it out")
    for chosen, known, kind in ((tasks, TASKS, "a task"), (models, budget.models, "a model")):
        for name in chosen:
            check_choice(f"{kind} of the suite", name, known)
    sizes = dict.fromkeys(("num_valid", "num_test"), budget.num_held_out)
    base = Recipe(
        name=OWN,
        task=TaskChoice(reference="parity-check", options=sizes),
        model=find_recipe(own_recipe).model if own_recipe else budget.models["staircase"],
        training=our_training(budget.training),
    )
    known_models = {name: budget.models[name] for name in models or budget.models}
    if own_recipe or own:
        known_models[OWN] = base.override(own or {}).model
    check_settings(overrides or {})
    changes = {"task.options": sizes, **(overrides or {})}
    return {
        task: [
            replace(base, name=name, model=model).override({"task.reference": task} | changes)
            for name, model in known_models.items()
        ]
        for task in tasks or TASKS
    }


def run_suite(
    recipes: Mapping[str, Sequence[Recipe]],
    budget: Budget,
    *,
    folder: Path,
    seeds: int = 1,
    first_seed: int = 0,
    jobs: int | None = None,
    progress: bool = False,
) -> Cells:
    """Train and score what is not done yet; write the results so far whenever a task is done."""
    # Small models are too small for two threads to help.
    default, threads = (min(2, available_cores()), 1) if budget is SMALL else (1, None)
    reports = [
        Report(
            title=f"Suite: {task}",
            folder=folder / task,
            rows=labelled_rows(chosen),
            num_seeds=seeds,
            first_seed=first_seed,
            lengths=budget.lengths,
        )
        for task, chosen in recipes.items()
    ]
    jobs = default if jobs is None else jobs
    guesses: dict[str, float] = {}
    # Before any run: a task that has too few episodes is refused here.
    for task, chosen in recipes.items():
        data = build_dataset(chosen[0])
        assert isinstance(data, TaskData)
        guesses[task] = 100 * (1 - data.constant_error("test"))
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for report in carry_out(reports, jobs=jobs, threads=threads, progress=progress):
        task = report.folder.name
        cells[task] = {
            OWN if row.name == OWN else row.model: cell_of(row, guesses[task])
            for row in report.rows
        }
        # In the order of the tasks, not of the ends of their runs.
        cells = {task: cells[task] for task in recipes if task in cells}
        write_suite(cells, folder)
    return cells


def cell_of(row: Row, guess: float) -> dict[str, Any]:
    """What the runs of a row show, as plain data."""
    runs = {
        run.seed: {
            "trained": 100 - row.value(result, "test"),
            "lengths": {length: 100 - error for length, error in sorted(run.lengths.items())},
            "wall_seconds": result.wall_seconds,
        }
        for run, result in zip(row.scored, row.results, strict=True)
    }
    status = next((run.status for run in row.runs if run.status != "finished"), "finished")
    failure = next((run.failure for run in row.runs if run.failure), None)
    cell: dict[str, Any] = {"status": status, "failure": failure, "guess": guess}
    cell |= {"trained": None, "longer": None, "lengths": {}, "budget": {}, "seeds": runs}
    if test := row.score("test"):
        names = ("num_updates", "num_tokens", "num_parameters", "device")
        errors = {length: row.length_error(length) for length in row.lengths}
        cell["trained"] = 100 - test.mean
        cell["lengths"] = {length: 100 - one.mean for length, one in errors.items() if one}
        cell["longer"] = fmean(cell["lengths"].values()) if errors else None
        cell["budget"] = {name: getattr(row.results[0], name) for name in names}
        cell["budget"] |= {"wall_seconds": row.seconds, "shared": row.is_shared}
    return cell


def episodes(tasks: Sequence[str], length: int = 12) -> Iterator[tuple[str, str]]:
    """One episode of each task, in words."""
    for name in tasks or TASKS:
        task = load_task(name).with_length(length)
        yield name, task.show(*task.generate(random_generator(1), 1)[0])


def write_suite(cells: Cells, folder: Path) -> None:
    """Write suite.json, and report.html with the scores, the study's beside them, and figures."""
    # Imported late: matplotlib takes a second.
    from staircase_attention.experiments.figures import heat_map, image, length_curves
    from staircase_attention.experiments.page import page, table

    facts = {"format": FORMAT, "environment": environment(), "published": published()}
    write_json(folder / "suite.json", {**facts, "cells": cells})
    scores = score_table(cells)
    for row in scores:
        # Of costs, which the last row is of, the study has none.
        known = published()["scores"].get(row["Task"], {})
        row |= {f"{name}, published": str(known.get(name, "")) for name in published()["networks"]}
    parts = [
        f"<p>{EXPLAINED.format(published()['budget'])}</p>",
        table(scores),
        image(heat_map(cells, published()), "Accuracy of models on tasks"),
        image(length_curves(cells), "Accuracy against length"),
    ]
    write_whole(folder / "report.html", page("Suite", parts))


def score_table(cells: Cells) -> list[dict[str, str]]:
    """A row for each task, then one of what the cells of a model cost on average."""
    rows, costs = [], {"Task": "tokens, time", "Class": "per cell", "Guess": ""}
    for task, row in cells.items():
        guess = next(iter(row.values()))["guess"]
        shown = {"Task": task, "Class": TASKS[task], "Guess": f"{guess:.1f}"}
        for model, cell in row.items():
            known = [one for one in (cell["trained"], cell["longer"]) if one is not None]
            shown[model] = " / ".join(f"{one:.1f}" for one in known) or cell["status"]
        rows.append(shown)
    for model in row:
        budgets = [one[model]["budget"] for one in cells.values() if one[model]["budget"]]
        tokens, seconds = (
            fmean(one[name] for one in budgets) if budgets else 0
            for name in ("num_tokens", "wall_seconds")
        )
        costs[model] = f"{short(round(tokens))}, {clock(seconds)}"
    return [*rows, costs]
