"""All recipes by name: the paper's tables, the same models with our settings, and small ones.

Settings of the paper's tables are the appendix's as printed, with the width of 1024 that the text
gives for Reddit and BASE. What the paper leaves open is decided here:

- Transformer-XL and Universal Transformer get the span of the Ladder, so that they differ from it
  in nothing but their passes: 512 for state tracking, 256 for text.
- A Feedback Transformer's span is the step size that the tables print for it (for BASE, which
  prints none, Reddit's).
- A Cached Staircase has as many chunks in its window as make up the printed step size, and M = 1.
  That of the main Reddit table has the step size of 384 that two other tables give for the same
  model; its own 256 is a slip of one table or the other.
- A Global Cached Staircase has the window of the printed step size, 512, which hardly any episode
  exceeds. Without this bound the state of a lane would grow at every update until memory is full.
- The optimiser is Adam with PyTorch's betas and a constant rate after the warm-up; the appendix
  names neither.
- Corpora are in the folder corpora, as corpora/enwik8; `task.folder=...` names another folder.

Tasks have up to three groups. `random-walk` has the paper's models and settings, `random-walk-fast`
the same models with our settings, for far fewer tokens, and `random-walk-small` models that train
in minutes on two CPU cores. `words` has the models of Reddit's three tables at half their width,
each once, with our settings, and `words-episodic` those of the episodic table. `enwik8-depth`
trains one set of weights for many numbers of passes, `enwik8-record` our best model of 26M
parameters in 20 minutes. Validation of these, of `enwik8-fast` and of small language recipes uses
the first part of the data, so that it takes seconds; the test score is of the whole split.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from staircase_attention.checks import check_choice, input_error, one_line
from staircase_attention.experiments.paper import PaperResult, paper_tables, paper_training
from staircase_attention.files import read_json
from staircase_attention.layers.config import CoreConfig
from staircase_attention.plain import from_plain, override
from staircase_attention.schedules import Schedule
from staircase_attention.schedules.ladder import Ladder, TransformerXL, UniversalTransformer
from staircase_attention.schedules.stairs import CachedStaircase, FeedbackTransformer, Staircase
from staircase_attention.training.recipe import (
    CorpusChoice,
    FamilyModel,
    LSTMModel,
    Recipe,
    TaskChoice,
    TrainingConfig,
)

# Permutations have 64 elements, the task's default: few enough that learning begins soon, and far
# more than a core of four layers can follow in one pass. A word is a sixth of a walk, so spans are
# shorter: keys of other words distract from the first products.
SPANS = {"random-walk": 512, "algorithm": 512, "permutations": 64}
# Step sizes other than the printed ones, by row or, for a task that is not in the paper, by model.
STEP_SIZES = {
    "reddit/cached-staircase-c128": 384,
    "permutations/Cached Staircase": 32,
    "permutations/Global Cached Staircase": 64,
    "permutations/Feedback Transformer": 16,
}
TEXT_SPAN = 256
# No table has the details of BASE; its models are these of the Reddit table.
BASE = ("transformer-xl", "feedback", "cached-staircase-c128", "staircase-n8-c32", "ladder-8")


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes: those of the paper's size first, then the small ones."""
    language = list(_language())
    beside = _beside({recipe.name: recipe for recipe in language})
    everything = [*_state_tracking(), *language, *beside, *_small()]
    return {recipe.name: recipe for recipe in everything}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or of a JSON file: a recipe's `to_plain`, or a run's config.json.

    >>> find_recipe("random-walk/ladder-8").training.num_updates
    50000
    """
    path = Path(name)
    if path.suffix != ".json":
        check_choice("a recipe", name, recipes())
        return recipes()[name]
    if path.name == "config.json":
        # A run folder's recipe may name code, which must be trusted.
        from staircase_attention.training.run_folder import RunFolder

        return RunFolder(path.parent).recipe()
    try:
        plain = read_json(path)
    except (OSError, ValueError) as error:
        rule, received = "a recipe file must be JSON", f"{path} ({one_line(error)})"
        raise input_error(rule, received, "check the path") from error
    return Recipe.from_plain(plain)


def table_schedule(row: PaperResult, *, span: int, step_size: int | None = None) -> Schedule:
    """The schedule of a row, from its model and the sizes that the table prints."""
    num_passes, chunk_size = row.words.recurrent_steps, row.words.forward_size
    step_size = step_size or row.words.step_size
    if row.model == "Transformer-XL" or num_passes is None:
        return TransformerXL(span=span)
    if row.model == "Ladder":
        is_blocked = (row.layer_pattern or "").startswith("AA")
        return Ladder(num_passes=num_passes, span=span, order="AABB" if is_blocked else "ABAB")
    if row.model == "Universal Transformer":
        return UniversalTransformer(num_passes=num_passes, span=span)
    assert step_size is not None
    assert chunk_size is not None
    if row.model == "Feedback Transformer":
        return FeedbackTransformer(span=step_size)
    if row.model == "Staircase":
        return Staircase(chunk_size=chunk_size, num_passes=num_passes)
    return cached(chunk_size, step_size)


def cached(chunk_size: int, step_size: int) -> CachedStaircase:
    """A Cached Staircase (M = 1) whose window is the printed step size."""
    num_chunks = step_size // chunk_size
    return CachedStaircase(chunk_size=chunk_size, num_window_chunks=num_chunks, num_passes=1)


WORDS_TABLES = ("reddit", "reddit-step-size", "reddit-layer-pattern")
# By table of the paper: the group with our settings, and what it changes of the core.
NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0}
OUR_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "enwik8": ("enwik8-fast", NO_DROPOUT),
    **dict.fromkeys(WORDS_TABLES, ("words", {"width": 512, **NO_DROPOUT})),
    # With the paper's dropout.
    "reddit-episodic": ("words-episodic", {"width": 512}),
}


@cache
def our_training(group: str) -> TrainingConfig:
    """Our own settings for a group, from the file of all of them."""
    text = Path(__file__).with_name("training.toml").read_text(encoding="utf-8")
    known, names = tomllib.loads(text), [group]
    while "like" in known[names[-1]]:
        names.append(known[names[-1]].pop("like"))
    plain: dict[str, Any] = {"training": {}}
    for name in reversed(names):
        plain = override(plain, {"training": known[name]})
    return from_plain(TrainingConfig, plain["training"], group)


def _state_tracking() -> Iterator[Recipe]:
    """Each table with the paper's settings, then the same with ours and without dropout."""
    for group in SPANS:
        # Permutations, which are not in the paper, are trained like Random Walk.
        table = "algorithm" if group == "algorithm" else "random-walk"
        options = {"group": "S5", "length": 64} if group == "permutations" else {}
        facts, task = paper_training(table), TaskChoice(reference=group, options=options)
        core = facts.core
        # The paper ran no LSTM. Of this width, it has the parameters of a Staircase to within 2%.
        lstm = LSTMModel(width=312, num_layers=core.num_layers, dropout=core.dropout)
        models: dict[str, tuple[FamilyModel | LSTMModel, int]] = {}
        for name, row in paper_tables()[table].rows.items():
            step_size = STEP_SIZES.get(f"{group}/{row.model}")
            schedule = table_schedule(row, span=SPANS[group], step_size=step_size)
            models[name] = FamilyModel(core=core, schedule=schedule), row.num_updates
        models["lstm"] = lstm, facts.training.num_updates
        for name, (model, num_updates) in models.items():
            training = replace(facts.training, num_updates=num_updates)
            yield Recipe(name=f"{group}/{name}", task=task, model=model, training=training)
        for name, (model, _) in models.items():
            dropout = "model.core.dropout" if isinstance(model, FamilyModel) else "model.dropout"
            ours = our_training(f"{group}-fast")
            fast = Recipe(name=f"{group}-fast/{name}", task=task, model=model, training=ours)
            yield fast.override({dropout: 0.0})


def _language() -> Iterator[Recipe]:
    """All rows of the paper's language tables, and BASE; then those with our settings."""
    tables = {name: table.rows for name, table in paper_tables().items() if name not in SPANS}
    tables["base"] = {name: tables["reddit"][name] for name in BASE}
    known: list[tuple[str, FamilyModel | LSTMModel]] = []
    for table, rows in tables.items():
        corpus = "reddit" if table.startswith("reddit") else table
        form: Literal["stream", "episodic"] = "episodic" if table == "reddit-episodic" else "stream"
        facts = paper_training(corpus)
        for name, row in rows.items():
            num_layers = facts.core.num_layers
            if row.model == "Transformer-XL (2x)":
                num_layers *= 2
            elif row.model == "Universal Transformer":
                num_layers = 1
            step_size = STEP_SIZES.get(row.identifier)
            schedule = table_schedule(row, span=TEXT_SPAN, step_size=step_size)
            core = replace(facts.core, num_layers=num_layers)
            recipe = Recipe(
                name=f"{table}/{name}",
                task=CorpusChoice(folder=f"corpora/{corpus}", form=form),
                model=FamilyModel(core=core, schedule=schedule),
                training=facts.training,
            )
            yield recipe
            if table in OUR_TEXT:
                group, changes = OUR_TEXT[table]
                folder = f"corpora/{group.removesuffix('-fast')}"
                ours = replace(recipe, name=f"{group}/{name}", training=our_training(group))
                ours = ours.override({"task.folder": folder, "model.core": changes})
                # Reddit's tables share some models, under the names of the first.
                if (group, ours.model) not in known:
                    known.append((group, ours.model))
                    yield ours


def _beside(known: Mapping[str, Recipe]) -> Iterator[Recipe]:
    """A parallel loop, weights for 1 to 8 passes, and the record, beside rows of `enwik8-fast`."""
    loop = {"name": "parallel-loop", "num_passes": 4, "span": TEXT_SPAN}
    changes: dict[str, Any] = {"name": "enwik8-fast/parallel-loop-4", "model.schedule": loop}
    yield known["enwik8-fast/ladder-4"].override(changes)
    changes = {"name": "enwik8-depth/staircase", "training.passes.kind": "uniform"}
    yield known["enwik8-fast/staircase-n4-c64"].override(changes)
    # Found by trials (docs/training.md); its passes converge, so that any number of them will do.
    changes = {"name": "enwik8-depth/ladder", "model.core.injection": "normed"}
    dial = {"kind": "list", "choices": [3, 4, 4, 7], "hold": 8, "loss": "ends"}
    changes |= {"model.schedule.num_passes": 8, "training.passes": dial}
    yield known["enwik8-fast/ladder-4"].override(changes)
    modern = {"norm": "rms", "feed_forward": "swiglu", "bias": False}
    core = modern | {"dropout": 0.15, "attention_dropout": 0.0}
    record = replace(known["enwik8-fast/transformer-xl"], training=our_training("enwik8-record"))
    record = replace(record, name="enwik8-record/transformer-xl")
    yield record.override({"model.core": core, "model.schedule.span": 1024})


# By group: the task and its options.
SMALL_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "parity": ("permutations", {"group": "S2", "length": 24}),
    "permutations-small": ("permutations", {"group": "S3", "length": 24}),
    "random-walk-small": ("random-walk", {"length": 24, "height": 3, "width": 3}),
    "algorithm-small": ("algorithm", {"num_variables": 2, "num_statements": 10, "num_train": None}),
}


def small_models(
    core: CoreConfig, *, lstm_width: int, chunk_size: int, window: int, span: int, near: int
) -> dict[str, FamilyModel | LSTMModel]:
    """One core driven by several schedules, and an LSTM with about its parameters.

    `window` is that of the Cached Staircase, `near` the span of the Feedback Transformer.
    """
    schedules: dict[str, Schedule] = {
        "staircase": Staircase(chunk_size=chunk_size, num_passes=2),
        "cached-staircase": cached(chunk_size, window),
        "ladder": Ladder(num_passes=2, span=span),
        "transformer-xl": TransformerXL(span=span),
        "feedback": FeedbackTransformer(span=near),
    }
    family = {name: FamilyModel(core=core, schedule=one) for name, one in schedules.items()}
    return {**family, "lstm": LSTMModel(width=lstm_width, num_layers=core.num_layers)}


def _small() -> Iterator[Recipe]:
    tasks: dict[str, TaskChoice | CorpusChoice] = {
        group: TaskChoice(reference=reference, options=options)
        for group, (reference, options) in SMALL_TASKS.items()
    }
    tasks["enwik8-small"] = CorpusChoice(folder="corpora/enwik8")
    tasks["reddit-small"] = CorpusChoice(folder="corpora/reddit")
    tasks["reddit-episodic-small"] = CorpusChoice(folder="corpora/reddit", form="episodic")
    tasks["base-small"] = CorpusChoice(folder="corpora/base")
    for group, task in tasks.items():
        width, lstm_width, num_layers = (48, 59, 1) if group == "parity" else (64, 78, 2)
        sizes = {"chunk_size": 2, "window": 8, "span": 32, "near": 8}
        if isinstance(task, CorpusChoice):
            width, lstm_width = 128, 156
            sizes = {"chunk_size": 16, "window": 64, "span": 64, "near": 32}
        core = CoreConfig(width=width, num_layers=num_layers, num_heads=4)
        for row, model in small_models(core, lstm_width=lstm_width, **sizes).items():
            training = our_training(group)
            yield Recipe(name=f"{group}/{row}", task=task, model=model, training=training)
