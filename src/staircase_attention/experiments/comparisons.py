"""The two experiments: any recipes compared, and tables of the paper run again."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.experiments.catalog import WORDS_TABLES, recipes
from staircase_attention.experiments.paper import paper_tables
from staircase_attention.experiments.report import Report
from staircase_attention.experiments.results import Row
from staircase_attention.experiments.runner import carry_out
from staircase_attention.training import FamilyModel, Recipe

# The tables that can be run: their titles, and the paper's tables that have numbers for them.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "random-walk": ("Random Walk: our runs and the paper's", ("random-walk",)),
    "algorithm": ("Algorithm: our runs and the paper's", ("algorithm",)),
    "random-walk-fast": ("Random Walk: our own settings, and the paper's runs", ("random-walk",)),
    "algorithm-fast": ("Algorithm: our own settings, and the paper's runs", ("algorithm",)),
    "enwik8": ("Enwik8: our runs and the paper's", ("enwik8",)),
    "enwik8-fast": ("Enwik8: our own settings, and the paper's runs", ("enwik8",)),
    "words": ("Words: our runs, and the paper's on Reddit", WORDS_TABLES),
    "words-episodic": ("Episodes: our runs, and the paper's on Reddit", ("reddit-episodic",)),
    "permutations": ("Permutations of five elements: the models of the Random Walk table", ()),
    "permutations-fast": ("Permutations of five elements with our own settings", ()),
}
# Points of a learning curve, however short the run.
LEAST_EVALUATIONS = 20
# Settings that tell rows apart, and what to do in place of setting them.
FIXED = {
    "name": ("names show the recipe and what varies", "leave it out"),
    "seed": ("a row is run with several seeds", "use --seeds and --first-seed"),
}


def compare(
    chosen: Sequence[Recipe],
    *,
    folder: Path,
    seeds: int = 1,
    first_seed: int = 0,
    lengths: Sequence[int] = (),
    title: str = "A comparison",
    jobs: int = 1,
    processes: int = 1,
    threads: int | None = None,
    progress: bool = False,
) -> Report:
    """Run recipes with some seeds each, or resume them, and write the report.

    The run of a recipe with seed k is in folder/name/seed-k, so the names must differ. Every run is
    a `staircase train` or `resume` of its own.
    """
    if not chosen:
        raise input_error("a comparison needs recipes", "none", "give at least one")
    [(name, count)] = Counter(recipe.name for recipe in chosen).most_common(1)
    if count > 1:
        rule = "compared recipes must have different names"
        raise input_error(rule, f"{name!r} twice", "rename one of them")
    report = Report(
        title=title,
        folder=Path(folder),
        rows=labelled_rows(chosen),
        num_seeds=seeds,
        first_seed=first_seed,
        lengths=tuple(lengths),
    )
    [report] = carry_out(
        [report], jobs=jobs, processes=processes, threads=threads, progress=progress
    )
    return report


def reproduce(
    table: str,
    *,
    folder: Path,
    rows: Sequence[str] | None = None,
    seeds: int = 10,
    first_seed: int = 0,
    updates: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    lengths: Sequence[int] = (),
    jobs: int = 1,
    processes: int = 1,
    progress: bool = False,
) -> Report:
    """Run rows of a table, or resume them, and write the report.

    Args:
        table: one of TABLES, as random-walk-fast.
        folder: for everything; the run of a row with seed k is in row/seed-k.
        rows: names of rows; None: all of them, and an LSTM.
        seeds: runs per row, with as many seeds from `first_seed` on; the paper has ten.
        updates: of every run; None: each row's own number, the paper's.
        overrides: other settings to change, each named by its path, as training.precision.
        lengths: also evaluate the best weights of every run at these episode lengths.
        jobs: runs at a time.
        processes: of each run, started by torchrun.
    """
    everything = table_rows(table)
    title, paper_names = TABLES[table]
    if updates is not None:
        check_integer("updates", updates, minimum=1, example=5000)
        if "training.num_updates" in (overrides or {}):
            received = "--updates and training.num_updates"
            raise input_error("the number of updates is given once", received, "leave one out")
    check_settings(overrides or {})
    wanted, listed = chosen_names(rows, everything), []
    for row in everything:
        recipe, is_wanted = row.recipe, row.name in wanted
        if is_wanted:
            recipe = recipe if updates is None else with_updates(recipe, updates)
            recipe = recipe.override(overrides or {})
        listed.append(replace(row, recipe=recipe, is_wanted=is_wanted))
    report = Report(
        title=title,
        folder=Path(folder),
        rows=tuple(listed),
        num_seeds=seeds,
        first_seed=first_seed,
        tables=tuple(paper_tables()[name] for name in paper_names),
        lengths=tuple(lengths),
    )
    [report] = carry_out([report], jobs=jobs, processes=processes, progress=progress)
    return report


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what tells rows apart among settings that are given or varied."""
    for name in FIXED.keys() & settings:
        rule, remedy = FIXED[name]
        raise input_error(rule, f"{name}=...", remedy)


def table_rows(table: str) -> tuple[Row, ...]:
    """The rows of a table, those of the paper first, then an LSTM."""
    check_choice("a table to reproduce", table, TABLES)
    # Of a row that is in several tables, the first one counts.
    tables = [paper_tables()[name].rows for name in reversed(TABLES[table][1])]
    printed = {name: row for rows in tables for name, row in rows.items()}
    # Tasks have the models of this table. By its recipe alone, a Global Cached Staircase would be
    # called a Cached one, as it has a window.
    named = {**paper_tables()["random-walk"].rows, **printed}
    models = {name: row.model for name, row in named.items()}
    rows = []
    for full_name, recipe in recipes().items():
        group, name = full_name.split("/", 1)
        if group == table:
            config = recipe.training
            num_tokens = config.num_updates * config.num_lanes * config.segment_length
            row = Row(
                name=name,
                label=name,
                model=models.get(name, model_name(recipe)),
                recipe=recipe,
                budget=(config.num_updates, num_tokens),
                paper=printed.get(name),
            )
            rows.append(row)
    return tuple(rows)


def model_name(recipe: Recipe) -> str:
    """The paper's name of a recipe's model: a schedule is called after its class."""
    if not isinstance(recipe.model, FamilyModel):
        return "LSTM"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(recipe.model.schedule).__name__)
    return words.replace(" XL", "-XL")


def with_updates(recipe: Recipe, num_updates: int) -> Recipe:
    """The recipe with another length, evaluated and saved often enough for it.

    Episodes grow in proportion.
    """
    # Also saved often, so that a short run that is killed loses little.
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


def chosen_names(names: Sequence[str] | None, rows: Sequence[Row]) -> tuple[str, ...]:
    """The requested rows, in the order of the table; all of them where none is named."""
    known = [row.name for row in rows]
    for name in names or ():
        check_choice("a row", name, known)
    return tuple(name for name in known if not names or name in names)


def labelled_rows(chosen: Sequence[Recipe]) -> tuple[Row, ...]:
    """A row for each recipe; its label names the task where another one was chosen."""
    rows = []
    for recipe in chosen:
        # A variation has the name of its recipe and a third part.
        named = recipes().get("/".join(recipe.name.split("/")[:2]), recipe)
        plain = [one.to_plain()["task"] for one in (recipe, named)]
        used, usual = (one.get("reference") or one["folder"] for one in plain)
        label = recipe.name if used == usual else f"{recipe.name} ({re.split('[:/]', used)[-1]})"
        rows.append(Row(name=recipe.name, label=label, model=model_name(recipe), recipe=recipe))
    return tuple(rows)


def variations(recipe: Recipe, varied: Mapping[str, Sequence[Any]]) -> list[Recipe]:
    """The recipe with every combination of some settings, each named by its path.

    The names end in what varies: each setting by the last part of its path, or by the whole path
    where another that varies ends alike.

    >>> from staircase_attention.experiments.catalog import find_recipe
    >>> rates = {"training.optimizer.learning_rate": [1e-3, 3e-3]}
    >>> for recipe in variations(find_recipe("parity/lstm"), rates | {"training.num_lanes": [4]}):
    ...     print(recipe.name, recipe.training.optimizer.learning_rate)
    parity/lstm/learning_rate=0.001,num_lanes=4 0.001
    parity/lstm/learning_rate=0.003,num_lanes=4 0.003
    """
    if not varied:
        return [recipe]
    check_settings(varied)
    for path, values in varied.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            rule = "a setting that varies needs a list of values"
            raise input_error(rule, f"{values!r} for {path}", "give at least one")
        for other in varied:
            # Otherwise the later one would undo the other, and names would not show it.
            if other.startswith(f"{path}."):
                rule = "settings that vary must not contain each other"
                raise input_error(rule, f"{path} and {other}", "vary one of them")
    ends = [path.rpartition(".")[2] for path in varied]
    short = [end if ends.count(end) == 1 else path for path, end in zip(varied, ends, strict=True)]
    made: dict[str, Recipe] = {}
    for values in itertools.product(*varied.values()):
        pairs = zip(short, values, strict=True)
        label = ",".join(f"{name}={value_words(value)}" for name, value in pairs)
        if label in made:
            rule = "values must differ in their letters and digits"
            raise input_error(rule, f"two that make {label}", "change one of them")
        changed = recipe.override(dict(zip(varied, values, strict=True)))
        made[label] = replace(changed, name=f"{recipe.name}/{label}")
    return list(made.values())


def value_words(value: Any) -> str:  # noqa: ANN401
    """A value as part of a folder's name: 0.001, none, 1-2, clock.py-Clock."""
    if value is None or isinstance(value, (bool, int, float)):
        return str(value).lower()
    # What a shell or a file system gives a meaning to becomes a hyphen.
    return re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")
