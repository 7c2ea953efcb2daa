"""How soon a task is solved: tokens until 99% of the answers are right, against length.

    python benchmarks/how_soon.py train RUNS.json --tasks even-pairs,parity-check
    python benchmarks/how_soon.py table random-walk algorithm permutations RUNS.json
    python benchmarks/how_soon.py figure docs/figures/how-soon.png RUNS.json

`random-walk`, `algorithm` and `permutations` are all full-size runs whose curves are in `results`;
`table` also takes other files of collect_runs.py. Their episodes grow in stages. At the length of a
stage the first 50 updates within the stage count whose mean training error is at most 1%; at full
length, also the first such validation, of which there is one every 500 updates. Tokens are counted
from the beginning of training, with those that a rollback undid. Where a stage ends before, its end
is given with '>'.

`train` trains the suite's small models, and scores them every few updates on valid strings of
several exact lengths, so that one run has a number for every length. Finished runs are kept.
"""

import argparse
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from staircase_attention.experiments.comparisons import model_name, table_rows
from staircase_attention.experiments.figures import FAMILIES, GREY, LIGHT_GREY, save
from staircase_attention.experiments.suite import SMALL, suite_recipes
from staircase_attention.files import read_json, write_json
from staircase_attention.tasks import Growth
from staircase_attention.training.dataset import TaskData, build_dataset
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import environment

FULL_SIZE = {"random-walk": "Random Walk", "algorithm": "Algorithm", "permutations": "S5"}
"""Tasks of which there are curves, and their names in the figure."""
MOST_TOKENS = {"random-walk": 401, "algorithm": 430, "permutations": 65}
"""Tokens of a whole episode; of Algorithm, on average."""
SOLVED = 0.01
NUM_COLUMNS, SHIFT, ABOVE = 3, 1.03, 1.2
LENGTHS, EVERY, NUM_STRINGS = (10, 20, 40, 80), 25, 200


class Soon(NamedTuple):
    """When one run solved one length."""

    tokens: int
    is_reached: bool
    """Whether it did; otherwise these are the tokens without success."""


# By length, for one run.
Times = dict[int, list[Soon]]


def main() -> None:
    """Train, print or draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("output", type=Path)
    training.add_argument("--tasks", default="parity-check")
    training.add_argument("--models", default=",".join(SMALL.models))
    commands.add_parser("table").add_argument("sources", nargs="+")
    drawing = commands.add_parser("figure")
    drawing.add_argument("figure", type=Path)
    drawing.add_argument("sources", nargs="*")
    chosen = parser.parse_args()
    if chosen.command == "train":
        train_all(chosen)
    elif chosen.command == "table":
        for source in chosen.sources:
            for task, runs in read(source).items():
                print(*table(task, runs), sep="\n", end="\n\n")
    else:
        tasks = {
            task: runs for one in (*FULL_SIZE, *chosen.sources) for task, runs in read(one).items()
        }
        save(draw(tasks), chosen.figure)


def read(source: str) -> dict[str, dict[str, Times]]:
    """By task and run, when each length was solved; of a full-size task, or of a file."""
    found: dict[str, dict[str, Times]] = {}
    for path in paths_of(source):
        data = read_json(path)
        for label, run in data.get("runs", data).items():
            if "errors" in run:
                task, _, name = label.partition(", ")
                times: Times = {
                    int(length): [first_solved(zip(run["tokens"], errors, strict=True))]
                    for length, errors in run["errors"].items()
                }
            elif run["result"] and "train" in run:
                task = run["recipe"]["task"]["reference"]
                name, times = full_size_name(run["recipe"]), staged(run, MOST_TOKENS[task])
            else:
                # Stopped early, or without the curve of its training errors.
                continue
            found.setdefault(task, {})[name] = times
    # Seeds of a model follow each other, whichever file they are from.
    for task, runs in found.items():
        models = list(dict.fromkeys(map(model_of, runs)))
        order = sorted(runs, key=lambda name: (models.index(model_of(name)), name))
        found[task] = {name: runs[name] for name in order}
    return found


def model_of(run: str) -> str:
    """The name of a run without its seed."""
    return run.partition(", seed")[0]


def full_size_name(recipe: dict[str, Any]) -> str:
    """Model and seed; training within single episodes is another model's row."""
    table, _, name = recipe["name"].partition("/")
    [row] = [row for row in table_rows(table) if row.name == name]
    words = [row.model, *(word.upper() for word in re.findall(r"\b[nc]?\d+", name))]
    if recipe["training"]["segment_length"] != row.recipe.training.segment_length:
        words.append("within an episode")
    return f"{' '.join(words)}, seed {recipe['seed']}"


def paths_of(source: str) -> list[Path]:
    """A file, or all curves of a full-size task, those of the paper's rows first."""
    if source not in FULL_SIZE:
        return [Path(source)]
    results = Path(__file__).parent / "results"
    others = (results.glob(f"*-{source}-{kind}.json") for kind in ("global", "second-seeds"))
    return [first_curves(source), *(path for paths in others for path in sorted(paths))]


def first_curves(task: str) -> Path:
    """The latest curves of the rows of a full-size task."""
    return max((Path(__file__).parent / "results").glob(f"*-{task}-fast-training.json"))


def first_solved(points: Any) -> Soon:  # noqa: ANN401
    """The first of (tokens, error) with 99% right, or the last tokens."""
    tokens = 0
    for tokens, error in points:
        if error <= SOLVED:
            return Soon(tokens, is_reached=True)
    return Soon(tokens, is_reached=False)


def staged(run: dict[str, Any], most_tokens: int) -> Times:
    """Of a full-size run: by training error at each stage's length, by validation at the last."""
    training = run["recipe"]["training"]
    growth = Growth(**training["growth"])
    per_update = training["num_lanes"] * training["segment_length"]

    def points(kind: str) -> Iterator[tuple[int, int, float]]:
        """Update, tokens and error. Updates that a rollback undid count."""
        place, last, undone = run[kind]["columns"].index("error"), 0, 0
        rollbacks = [one for one in run.get("events", ()) if one["kind"] == "rollback"]
        for update, *row in run[kind]["rows"]:
            while rollbacks and not last < update <= rollbacks[0]["from_update"]:
                event = rollbacks.pop(0)
                undone += event["from_update"] - event["update"]
                last = event["update"]
            yield update, (update + undone) * per_update, row[place - 1]
            last = update

    times: Times = {}
    stages = sorted(points("train"), key=lambda one: growth.longest(one[0] - 1) or most_tokens)
    for length, stage in groupby(stages, key=lambda one: growth.longest(one[0] - 1) or most_tokens):
        times[length] = [first_solved(sorted((tokens, error) for _, tokens, error in stage))]
    times[most_tokens].append(first_solved((tokens, error) for _, tokens, error in points("valid")))
    return times


def table(task: str, runs: dict[str, Times]) -> Iterator[str]:
    """Markdown: a row for each model, a column for each length, seeds side by side."""
    columns = [
        (length, place)
        for length, found in next(iter(runs.values())).items()
        for place in range(len(found))
    ]
    headings = [f"{length}, valid" if place else str(length) for length, place in columns]
    yield f"| {task}: tokens until 99% right at | " + " | ".join(headings) + " |"
    yield "|---|" + "---|" * len(columns)
    for model, seeds in groupby(runs.items(), key=lambda one: model_of(one[0])):
        times = [one for _, one in seeds]
        cells = [", ".join(shown(one[length][place]) for one in times) for length, place in columns]
        yield f"| {model} | " + " | ".join(cells) + " |"


def shown(soon: Soon) -> str:
    """In millions, with two digits."""
    number = f"{float(f'{soon.tokens / 1e6:.2g}'):g}M"
    return number if soon.is_reached else f"> {number}"


def draw(tasks: dict[str, dict[str, Times]]) -> Figure:
    """A picture for each task of which some length was solved: these are joined, others left out.

    Only the longest episode, if it was not solved, is an empty marker above the run's tokens. Grey
    dots are the tokens at which a stage has its first 50 updates behind it: none can be sooner.
    """
    tasks = {
        task: runs
        for task, runs in tasks.items()
        if any(
            soon.is_reached for times in runs.values() for found in times.values() for soon in found
        )
    }
    num_rows = -(-len(tasks) // NUM_COLUMNS)
    figure = Figure(figsize=(11.0, 3.6 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False, sharey="row").flat
    handles: dict[str, Line2D] = {}
    for (task, runs), axes in zip(tasks.items(), grid, strict=False):
        for label, times in runs.items():
            # The longest name that fits: 'Cached Staircase' is no Staircase.
            family = max((one for one in FAMILIES if label.startswith(one)), key=len)
            colour, marker = FAMILIES[family]
            style: dict[str, Any] = {
                "color": colour,
                "marker": marker,
                "markersize": 5,
                "linewidth": 1,
            }
            # Beside each other where they would cover each other.
            shift = SHIFT ** (list(FAMILIES).index(family) - len(FAMILIES) / 2)
            points = [(length * shift, found[-1]) for length, found in times.items()]
            solved = [(place, soon.tokens) for place, soon in points if soon.is_reached]
            axes.plot(*zip(*solved, strict=True) if solved else ([], []), **style)
            if not points[-1][1].is_reached:
                empty = style | {"linestyle": "", "fillstyle": "none", "alpha": 0.6}
                axes.plot([points[-1][0]], [ABOVE * points[-1][1].tokens], **empty)
            handles[family] = Line2D([], [], label=family, **style)
        lengths = list(times)
        if task in FULL_SIZE:
            # The first stage is there from the beginning.
            axes.plot(lengths[1:], stage_starts(task)[1:], "o", color=GREY, markersize=3, zorder=0)
        axes.set(xscale="log", yscale="log", title=FULL_SIZE.get(task, task))
        axes.set_xlabel("tokens of an episode" if task in FULL_SIZE else "symbols of a string")
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}M"))
        axes.grid(color=LIGHT_GREY, linewidth=0.6)
    for axes in grid:
        axes.remove()
    figure.supylabel("Tokens until 99% of answers are right", fontsize=10)
    figure.legend(
        handles=list(handles.values()), loc="outside lower center", ncols=len(handles), fontsize=8
    )
    return figure


def stage_starts(task: str) -> list[int]:
    """Tokens after the first 50 updates of every stage."""
    run = next(iter(read_json(first_curves(task)).values()))
    training = run["recipe"]["training"]
    growth = Growth(**training["growth"])
    per_update = training["num_lanes"] * training["segment_length"]
    begins = [one for one in range(training["num_updates"]) if not one or growth.grows_at(one)]
    return [(begin + run["train"]["rows"][0][0]) * per_update for begin in begins]


def train_all(chosen: argparse.Namespace) -> None:
    """Train what the file has not yet, and write it after each run."""
    path: Path = chosen.output
    data = read_json(path) if path.exists() else {"environment": environment(), "runs": {}}
    # Twice the suite's updates.
    changes = {"training.num_updates": 800, "task.options.num_valid": NUM_STRINGS}
    names = {"tasks": chosen.tasks.split(","), "models": chosen.models.split(",")}
    for task, recipes in suite_recipes(SMALL, **names, overrides=changes).items():
        for recipe in recipes:
            label = f"{task}, {model_name(recipe)}, seed {recipe.seed}"
            if label not in data["runs"]:
                data["runs"][label] = {"recipe": recipe.to_plain(), **train_one(recipe)}
                write_json(path, data)
                print(label, flush=True)


def train_one(recipe: Recipe) -> dict[str, Any]:
    """Train, and score at every length every few updates."""
    # Imported here: reading and drawing need no torch.
    import torch

    from staircase_attention.evaluation import evaluate
    from staircase_attention.training.learner import Learner, build_model
    from staircase_attention.training.optimizer import learning_rate
    from staircase_attention.training.processes import Processes

    config, data = recipe.training, build_dataset(recipe)
    assert isinstance(data, TaskData)
    torch.manual_seed(recipe.seed)
    learner = Learner(recipe, build_model(recipe, data), torch.device("cpu"), Processes())
    lanes = data.lanes(num_lanes=config.num_lanes, segment_length=config.segment_length)
    scored = {length: data.with_length(length) for length in LENGTHS}
    found: dict[str, Any] = {"tokens": [], "errors": {str(length): [] for length in LENGTHS}}
    found["guess"] = {str(length): one.constant_error("valid") for length, one in scored.items()}
    position = lanes.first_position()
    for update in range(1, config.num_updates + 1):
        batch, position = lanes.batch(position)
        rate = learning_rate(config.optimizer, update - 1, config.num_updates)
        learner.update(batch, lanes=range(config.num_lanes), rate=rate, wants_stop=False)
        if update % EVERY == 0:
            found["tokens"].append(update * batch.inputs.size)
            for length, one in scored.items():
                batches = one.batches("valid", num_lanes=NUM_STRINGS, segment_length=length + 2)
                score = evaluate(learner.model, batches, device="cpu")
                found["errors"][str(length)].append(round(score.error, 5))
    return found


if __name__ == "__main__":
    main()
