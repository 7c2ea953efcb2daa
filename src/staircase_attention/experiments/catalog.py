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
- Corpora are in corpora/enwik8, corpora/reddit and corpora/base; `task.folder=...` names another
  folder.

State tracking has three groups per task. `random-walk` has the paper's models and settings,
`random-walk-fast` the same models with our settings, for far fewer tokens, and `random-walk-small`
models that train in minutes on two CPU cores. Small language recipes are scored on the first part
of the validation and test data, so that an evaluation takes seconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from staircase_attention.checks import check_choice, input_error, one_line
from staircase_attention.experiments.paper import paper_training
from staircase_attention.files import read_json
from staircase_attention.layers.config import CoreConfig
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Schedule,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.tasks import Growth
from staircase_attention.training.recipe import (
    CorpusChoice,
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)

# The models of a group of recipes, by row.
Models = dict[str, FamilyModel | LSTMModel]


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes: those of the paper's size first, then the small ones."""
    everything = [
        *_state_tracking(),
        *_language(),
        *_small_state_tracking(),
        *_small_language(),
    ]
    return MappingProxyType({recipe.name: recipe for recipe in everything})


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


def _models(core: CoreConfig, schedules: Mapping[str, Schedule], lstm: LSTMModel) -> Models:
    """One core driven by several schedules, and an LSTM to compare them with."""
    models: Models = {
        row: FamilyModel(core=core, schedule=schedule) for row, schedule in schedules.items()
    }
    return models | {"lstm": lstm}


def stairs(num_passes: int, chunk_size: int) -> Staircase:
    """A Staircase by the numbers in its row's name."""
    return Staircase(chunk_size=chunk_size, num_passes=num_passes)


def cached(chunk_size: int, step_size: int) -> CachedStaircase:
    """A Cached Staircase (M = 1) whose window is the printed step size."""
    num_chunks = step_size // chunk_size
    return CachedStaircase(chunk_size=chunk_size, num_window_chunks=num_chunks, num_passes=1)


# Muon, at a rate that decays to zero; a thirty-third of the paper's tokens. Walks grow late, which
# helps Cached Staircases and Ladders, and lanes restart often, which helps Ladders.
FAST_WALK = TrainingConfig(
    num_updates=3000,
    num_lanes=256,
    segment_length=128,
    restart_every=25,
    growth=Growth(first_tokens=64, first_updates=900, double_every=300, num_doublings=3),
    precision="bfloat16",
    optimizer=OptimizerConfig(
        kind="muon",
        learning_rate=5e-3,
        beta1=0.95,
        beta2=0.98,
        warm_up=300,
        decay="linear",
        gradient_clip=1.0,
    ),
    evaluate_every=500,
    evaluation_lanes=500,
)
# A lower rate, and shorter programs at first, of three or four statements; a thirty-third of the
# paper's tokens.
FAST_ALGORITHM = replace(
    FAST_WALK,
    growth=Growth(first_tokens=16, first_updates=600, double_every=200, num_doublings=5),
    optimizer=replace(FAST_WALK.optimizer, learning_rate=3e-3),
)
# Words of four elements for the first 900 updates: one product is a table of 14,400 entries. With
# START they are five tokens, so that words of any length cross the ends of segments.
FAST_PERMUTATIONS = replace(
    FAST_WALK,
    growth=Growth(first_tokens=5, first_updates=900, double_every=300, num_doublings=4),
    optimizer=replace(FAST_WALK.optimizer, learning_rate=1e-2, warm_up=100),
)


def _table_schedules(*, cached_size: int, feedback_span: int, span: int) -> dict[str, Schedule]:
    """The models of a state-tracking table, row by row; these sizes differ between the tables."""
    return {
        "transformer-xl": TransformerXL(span=span),
        "feedback": FeedbackTransformer(span=feedback_span),
        "staircase-n8-c8": stairs(8, 8),
        "staircase-n4-c16": stairs(4, 16),
        "staircase-n2-c32": stairs(2, 32),
        "cached-staircase-c4": cached(4, cached_size),
        "cached-staircase-c8": cached(8, cached_size),
        "cached-staircase-c16": cached(16, cached_size),
        "global-cached-staircase-c8": cached(8, span),
        "global-cached-staircase-c16": cached(16, span),
        "global-cached-staircase-c32": cached(32, span),
        "ladder-2": Ladder(num_passes=2, span=span),
        "ladder-4": Ladder(num_passes=4, span=span),
        "ladder-8": Ladder(num_passes=8, span=span),
    }


# For each task: the models, the task's options, and our own settings.
STATE_TRACKING: dict[str, tuple[dict[str, Schedule], dict[str, Any], TrainingConfig]] = {
    "random-walk": (
        _table_schedules(cached_size=256, feedback_span=64, span=512),
        {},
        FAST_WALK,
    ),
    "algorithm": (
        _table_schedules(cached_size=64, feedback_span=32, span=512),
        {},
        FAST_ALGORITHM,
    ),
    # Words have 64 elements, the task's default: few enough that learning begins soon, and far
    # more than a core of four layers can follow in one pass. A word is a sixth of a walk, so spans
    # are shorter: keys of other words distract from the first products.
    "permutations": (
        _table_schedules(cached_size=32, feedback_span=16, span=64),
        {"group": "S5", "length": 64},
        FAST_PERMUTATIONS,
    ),
}


def _state_tracking() -> Iterator[Recipe]:
    """Each table with the paper's settings, then the same with ours and without dropout."""
    for group, (schedules, options, ours) in STATE_TRACKING.items():
        # Permutations, which are not in the paper, are trained like Random Walk.
        facts = paper_training("algorithm" if group == "algorithm" else "random-walk")
        # The paper ran no LSTM. Of this width, it has the parameters of a Staircase to within 2%.
        lstm = LSTMModel(width=312, num_layers=facts.num_layers, dropout=facts.dropout)
        plain_core = replace(facts.core(), dropout=0.0, embedding_dropout=0.0)
        task = TaskChoice(reference=group, options=options)
        for row, model in _models(facts.core(), schedules, lstm).items():
            # 'Since they need longer to converge.'
            num_updates = 400_000 if row.startswith("global") else facts.num_updates
            training = facts.config(num_updates=num_updates)
            yield Recipe(name=f"{group}/{row}", task=task, model=model, training=training)
        for row, model in _models(plain_core, schedules, replace(lstm, dropout=0.0)).items():
            yield Recipe(name=f"{group}-fast/{row}", task=task, model=model, training=ours)


TEXT_SPAN = 256
# The models of each language table, row by row.
LANGUAGE: dict[str, dict[str, Schedule]] = {
    "enwik8": {
        "transformer-xl": TransformerXL(span=TEXT_SPAN),
        "feedback": FeedbackTransformer(span=256),
        "cached-staircase-c4": cached(4, 260),
        "cached-staircase-c32": cached(32, 288),
        "cached-staircase-c64": cached(64, 320),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n2-c128": stairs(2, 128),
        "ladder-2": Ladder(num_passes=2, span=TEXT_SPAN),
        "staircase-n4-c64": stairs(4, 64),
        "ladder-4": Ladder(num_passes=4, span=TEXT_SPAN),
    },
    "reddit": {
        "transformer-xl": TransformerXL(span=TEXT_SPAN),
        "transformer-xl-2x": TransformerXL(span=TEXT_SPAN),
        "feedback": FeedbackTransformer(span=512),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n2-c128": stairs(2, 128),
        "ladder-2": Ladder(num_passes=2, span=TEXT_SPAN),
        "universal-transformer-2": UniversalTransformer(num_passes=2, span=TEXT_SPAN),
        "staircase-n4-c64": stairs(4, 64),
        "ladder-4": Ladder(num_passes=4, span=TEXT_SPAN),
        "universal-transformer-4": UniversalTransformer(num_passes=4, span=TEXT_SPAN),
        "staircase-n8-c32": stairs(8, 32),
        "ladder-8": Ladder(num_passes=8, span=TEXT_SPAN),
        "universal-transformer-8": UniversalTransformer(num_passes=8, span=TEXT_SPAN),
    },
    "reddit-step-size": {
        "cached-staircase-c32": cached(32, 288),
        "cached-staircase-c64": cached(64, 320),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n2-c64": stairs(2, 64),
        "staircase-n2-c128": stairs(2, 128),
        "staircase-n4-c32": stairs(4, 32),
        "staircase-n4-c64": stairs(4, 64),
    },
    "reddit-layer-pattern": {
        "ab": TransformerXL(span=TEXT_SPAN),
        "abcd": TransformerXL(span=TEXT_SPAN),
        "abab": Ladder(num_passes=2, span=TEXT_SPAN),
        "aabb": Ladder(num_passes=2, span=TEXT_SPAN, order="AABB"),
        "abababab": Ladder(num_passes=4, span=TEXT_SPAN),
        "aaaabbbb": Ladder(num_passes=4, span=TEXT_SPAN, order="AABB"),
        "abababababababab": Ladder(num_passes=8, span=TEXT_SPAN),
    },
    "reddit-episodic": {
        "transformer-xl": TransformerXL(span=TEXT_SPAN),
        "cached-staircase-c32": cached(32, 256),
        "cached-staircase-c64": cached(64, 256),
        "cached-staircase-c128": cached(128, 256),
        "staircase-n2-c128": stairs(2, 128),
        "staircase-n4-c64": stairs(4, 64),
        "staircase-n8-c32": stairs(8, 32),
    },
    "base": {
        "transformer-xl": TransformerXL(span=TEXT_SPAN),
        "feedback": FeedbackTransformer(span=512),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n8-c32": stairs(8, 32),
        "ladder-8": Ladder(num_passes=8, span=TEXT_SPAN),
    },
}


def _language() -> Iterator[Recipe]:
    """All rows of the paper's language tables."""
    for table, rows in LANGUAGE.items():
        corpus = "reddit" if table.startswith("reddit") else table
        form: Literal["stream", "episodic"] = "episodic" if table == "reddit-episodic" else "stream"
        facts = paper_training(corpus)
        for row, schedule in rows.items():
            num_layers = facts.num_layers
            if row in ("transformer-xl-2x", "abcd"):
                num_layers *= 2
            elif isinstance(schedule, UniversalTransformer):
                num_layers = 1
            core = replace(facts.core(), num_layers=num_layers)
            yield Recipe(
                name=f"{table}/{row}",
                task=CorpusChoice(folder=f"corpora/{corpus}", form=form),
                model=FamilyModel(core=core, schedule=schedule),
                training=facts.config(num_updates=facts.num_updates),
            )


def _small_schedules(*, chunk_size: int, span: int, feedback_span: int) -> dict[str, Schedule]:
    return {
        "staircase": stairs(2, chunk_size),
        "cached-staircase": cached(chunk_size, 4 * chunk_size),
        "ladder": Ladder(num_passes=2, span=span),
        "transformer-xl": TransformerXL(span=span),
        "feedback": FeedbackTransformer(span=feedback_span),
    }


def _small_state_tracking() -> Iterator[Recipe]:
    """Segments are as long as episodes where these have one length: a batch holds whole ones."""
    yield from _small_group(
        "parity",
        TaskChoice(reference="permutations", options={"group": "S2", "length": 24}),
        CoreConfig(width=48, num_layers=1, num_heads=4),
        lstm_width=59,
        num_updates=1_000,
        segment_length=25,
        learning_rate=3e-3,
        evaluate_every=50,
    )
    yield from _small_group(
        "permutations-small",
        TaskChoice(reference="permutations", options={"group": "S3", "length": 24}),
        num_updates=1_000,
        segment_length=25,
    )
    yield from _small_group(
        "random-walk-small",
        TaskChoice(reference="random-walk", options={"length": 24, "height": 3, "width": 3}),
        num_updates=3_000,
        segment_length=25,
    )
    programs = {"num_variables": 2, "num_statements": 10, "num_train": None}
    yield from _small_group(
        "algorithm-small",
        TaskChoice(reference="algorithm", options=programs),
        num_updates=3_000,
        segment_length=48,
    )


def _small_group(
    group: str,
    task: TaskChoice,
    # Training data is endless, so there is nothing that dropout would have to prevent.
    core: CoreConfig = CoreConfig(width=64, num_layers=2, num_heads=4),  # noqa: B008
    *,
    lstm_width: int = 78,
    num_updates: int,
    segment_length: int,
    learning_rate: float = 2e-3,
    evaluate_every: int = 100,
) -> Iterator[Recipe]:
    training = TrainingConfig(
        num_updates=num_updates,
        num_lanes=64,
        segment_length=segment_length,
        optimizer=OptimizerConfig(
            kind="adam",
            learning_rate=learning_rate,
            # A short average of squared gradients makes the high rate safe.
            beta2=0.98,
            warm_up=100,
            decay="linear",
            final_fraction=0.1,
            gradient_clip=1.0,
        ),
        log_every=20,
        evaluate_every=evaluate_every,
        checkpoint_every=100,
    )
    schedules = _small_schedules(chunk_size=2, span=32, feedback_span=8)
    # The width makes its parameters those of a Staircase to within 5%.
    lstm = LSTMModel(width=lstm_width, num_layers=core.num_layers)
    for row, model in _models(core, schedules, lstm).items():
        yield Recipe(name=f"{group}/{row}", task=task, model=model, training=training)


SMALL_TEXT = TrainingConfig(
    num_updates=1_000,
    num_lanes=16,
    segment_length=64,
    optimizer=OptimizerConfig(
        kind="adamw",
        learning_rate=2e-3,
        beta2=0.98,
        warm_up=50,
        decay="cosine",
        final_fraction=0.1,
        gradient_clip=1.0,
    ),
    log_every=20,
    evaluate_every=100,
    checkpoint_every=100,
    evaluation_lanes=16,
    evaluation_tokens=16_384,
)


def _small_language() -> Iterator[Recipe]:
    core = CoreConfig(width=128, num_layers=2, num_heads=4)
    schedules = _small_schedules(chunk_size=16, span=64, feedback_span=32)
    models = _models(core, schedules, LSTMModel(width=156, num_layers=2))
    for group in ("enwik8", "reddit", "reddit-episodic", "base"):
        task, training = CorpusChoice(folder=f"corpora/{group}"), SMALL_TEXT
        if group == "reddit-episodic":
            # An episode fills its segment.
            task = CorpusChoice(folder="corpora/reddit", form="episodic")
            training = replace(SMALL_TEXT, segment_length=256)
        for row, model in models.items():
            yield Recipe(name=f"{group}-small/{row}", task=task, model=model, training=training)
