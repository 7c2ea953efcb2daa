"""Recipes for language modelling: the paper's tables, and small ones for two CPU cores.

The settings of the paper's tables are the appendix's as printed, with the width of 1024 that the
text gives for Reddit and BASE. What it leaves open is decided here:

- Transformer-XL and Universal Transformer get the Ladder's span of 256, a Feedback Transformer the
  step size that the tables print for it (for BASE, which prints none, Reddit's).
- The Cached Staircase of the main Reddit table has the step size of 384 that two other tables give
  for the same model; its own 256 is a slip of one table or the other.
- Corpora are in corpora/enwik8, corpora/reddit and corpora/base, where the docs tell `staircase
  prepare` to put them; `task.folder=...` names another folder.

The small recipes train on the same corpora. They are scored on the first part of the validation and
test data only, so that an evaluation takes seconds.
"""

from dataclasses import replace

from staircase_attention.checks import check_choice
from staircase_attention.experiments.paper import paper_training
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
from staircase_attention.training.recipe import (
    CorpusChoice,
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TrainingConfig,
)

SPAN = 256
"""S of Ladder, Transformer-XL and Universal Transformer."""


def cached(chunk_size: int, step_size: int) -> CachedStaircase:
    """A Cached Staircase (M = 1) whose window is the printed step size."""
    return CachedStaircase(
        chunk_size=chunk_size, num_window_chunks=step_size // chunk_size, num_passes=1
    )


def stairs(num_passes: int, chunk_size: int) -> Staircase:
    """A Staircase by the numbers in its row's name."""
    return Staircase(chunk_size=chunk_size, num_passes=num_passes)


TABLES: dict[str, dict[str, Schedule]] = {
    "enwik8": {
        "transformer-xl": TransformerXL(span=SPAN),
        "feedback": FeedbackTransformer(span=256),
        "cached-staircase-c4": cached(4, 260),
        "cached-staircase-c32": cached(32, 288),
        "cached-staircase-c64": cached(64, 320),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n2-c128": stairs(2, 128),
        "ladder-2": Ladder(num_passes=2, span=SPAN),
        "staircase-n4-c64": stairs(4, 64),
        "ladder-4": Ladder(num_passes=4, span=SPAN),
    },
    "reddit": {
        "transformer-xl": TransformerXL(span=SPAN),
        "transformer-xl-2x": TransformerXL(span=SPAN),
        "feedback": FeedbackTransformer(span=512),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n2-c128": stairs(2, 128),
        "ladder-2": Ladder(num_passes=2, span=SPAN),
        "universal-transformer-2": UniversalTransformer(num_passes=2, span=SPAN),
        "staircase-n4-c64": stairs(4, 64),
        "ladder-4": Ladder(num_passes=4, span=SPAN),
        "universal-transformer-4": UniversalTransformer(num_passes=4, span=SPAN),
        "staircase-n8-c32": stairs(8, 32),
        "ladder-8": Ladder(num_passes=8, span=SPAN),
        "universal-transformer-8": UniversalTransformer(num_passes=8, span=SPAN),
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
        "ab": TransformerXL(span=SPAN),
        "abcd": TransformerXL(span=SPAN),
        "abab": Ladder(num_passes=2, span=SPAN),
        "aabb": Ladder(num_passes=2, span=SPAN, order="AABB"),
        "abababab": Ladder(num_passes=4, span=SPAN),
        "aaaabbbb": Ladder(num_passes=4, span=SPAN, order="AABB"),
        "abababababababab": Ladder(num_passes=8, span=SPAN),
    },
    "reddit-episodic": {
        "transformer-xl": TransformerXL(span=SPAN),
        "cached-staircase-c32": cached(32, 256),
        "cached-staircase-c64": cached(64, 256),
        "cached-staircase-c128": cached(128, 256),
        "staircase-n2-c128": stairs(2, 128),
        "staircase-n4-c64": stairs(4, 64),
        "staircase-n8-c32": stairs(8, 32),
    },
    "base": {
        "transformer-xl": TransformerXL(span=SPAN),
        "feedback": FeedbackTransformer(span=512),
        "cached-staircase-c128": cached(128, 384),
        "staircase-n8-c32": stairs(8, 32),
        "ladder-8": Ladder(num_passes=8, span=SPAN),
    },
}
"""The models of each table, row by row."""
DOUBLE_DEPTH = {("reddit", "transformer-xl-2x"), ("reddit-layer-pattern", "abcd")}
"""Rows whose core has twice the layers."""


def language(table: str, row: str) -> Recipe:
    """A row of one of the paper's language tables.

    >>> language("enwik8", "staircase-n4-c64").model.schedule
    Staircase(chunk_size=64, num_passes=4)
    """
    check_choice("a language table", table, TABLES)
    check_choice(f"a row of {table}", row, TABLES[table])
    corpus = "reddit" if table.startswith("reddit") else table
    facts, schedule = paper_training(corpus), TABLES[table][row]
    core = facts.core()
    if (table, row) in DOUBLE_DEPTH:
        core = replace(core, num_layers=2 * core.num_layers)
    if isinstance(schedule, UniversalTransformer):
        core = replace(core, num_layers=1)
    task = CorpusChoice(folder=f"corpora/{corpus}")
    if table == "reddit-episodic":
        task = replace(task, form="episodic")
    return Recipe(
        name=f"{table}/{row}",
        task=task,
        model=FamilyModel(core=core, schedule=schedule),
        training=facts.config(num_updates=facts.num_updates),
    )


def language_recipes() -> list[Recipe]:
    """All rows of all language tables."""
    return [language(table, row) for table, rows in TABLES.items() for row in rows]


SMALL_CORPORA = {
    "enwik8-small": CorpusChoice(folder="corpora/enwik8"),
    "reddit-small": CorpusChoice(folder="corpora/reddit"),
    "reddit-episodic-small": CorpusChoice(folder="corpora/reddit", form="episodic"),
    "base-small": CorpusChoice(folder="corpora/base"),
}
"""What each group of small recipes trains on."""
SMALL_SCHEDULES: dict[str, Schedule] = {
    "staircase": Staircase(chunk_size=16, num_passes=2),
    "cached-staircase": CachedStaircase(chunk_size=16, num_window_chunks=4, num_passes=1),
    "ladder": Ladder(num_passes=2, span=64),
    "transformer-xl": TransformerXL(span=64),
    "feedback": FeedbackTransformer(span=32),
}
SMALL_MODELS: dict[str, FamilyModel | LSTMModel] = {
    name: FamilyModel(core=CoreConfig(width=128, num_layers=2, num_heads=4), schedule=schedule)
    for name, schedule in SMALL_SCHEDULES.items()
} | {"lstm": LSTMModel(width=156, num_layers=2)}


def small_language(group: str, row: str) -> Recipe:
    """A model of a group of small language recipes.

    >>> small_language("enwik8-small", "ladder").task.folder
    'corpora/enwik8'
    """
    check_choice("a group of small language recipes", group, SMALL_CORPORA)
    check_choice(f"a row of {group}", row, SMALL_MODELS)
    corpus = SMALL_CORPORA[group]
    return Recipe(
        name=f"{group}/{row}",
        task=corpus,
        model=SMALL_MODELS[row],
        training=TrainingConfig(
            num_updates=1_000,
            num_lanes=16,
            # An episode fills its segment.
            segment_length=256 if corpus.form == "episodic" else 64,
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
        ),
    )


def small_language_recipes() -> list[Recipe]:
    """All small language recipes."""
    return [small_language(group, row) for group in SMALL_CORPORA for row in SMALL_MODELS]
