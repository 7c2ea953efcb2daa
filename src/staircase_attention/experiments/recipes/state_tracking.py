"""Recipes of the paper's size: every row of its Random Walk and Algorithm tables, and their kin.

The groups whose names end in `-fast` have the same models and settings of our own, for far fewer
tokens.

The settings are the appendix's as they stand. What it leaves open is decided here:

- Transformer-XL gets the span of 512 that the table of best settings gives for the Ladder, so that
  the two differ in nothing but their passes.
- A Feedback Transformer's span is the step size that the tables print for it.
- A Cached Staircase has as many chunks in its window as make up the printed step size, and M = 1.
- A Global Cached Staircase has the window of the printed step size, 512, which hardly an episode
  outgrows. Without an end to it, the state of a lane would grow from update to update until memory
  is full.
- The optimiser is Adam with PyTorch's betas and a constant rate after the warm-up; the appendix
  names neither.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from staircase_attention.checks import check_choice
from staircase_attention.experiments.paper import PaperTraining, paper_training
from staircase_attention.layers import CoreConfig
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Schedule,
    Staircase,
    TransformerXL,
)
from staircase_attention.tasks import Growth
from staircase_attention.training import (
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)

SPAN = 512
"""S of Ladder and Transformer-XL, and the step size that the tables print for the Global Cached
Staircase."""
GLOBAL = "global-cached-staircase"
GLOBAL_UPDATES = 400_000
"""Updates of the Global Cached Staircase, 'since they need longer to converge'."""
LSTM = "lstm"
LSTM_WIDTH = 312
"""With four layers, like the core, the parameters are those of a Staircase to within 2%."""

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
"""Muon, at a rate that falls to zero; a thirty-third of the paper's tokens. Walks grow late,
for Cached Staircases and Ladders, and lanes begin anew often, for Ladders."""
FAST_ALGORITHM = dataclasses.replace(
    FAST_WALK,
    growth=Growth(first_tokens=16, first_updates=600, double_every=200, num_doublings=5),
    optimizer=dataclasses.replace(FAST_WALK.optimizer, learning_rate=3e-3),
)
"""A lower rate, and shorter programs at first, of three or four statements; a thirty-third of the
paper's tokens."""
FAST_PERMUTATIONS = dataclasses.replace(
    FAST_WALK,
    growth=Growth(first_tokens=5, first_updates=900, double_every=300, num_doublings=4),
    optimizer=dataclasses.replace(FAST_WALK.optimizer, learning_rate=1e-2, warm_up=100),
)
"""Words of four elements at first, and for long: one product is a table of 14,400 entries. With
START they are five tokens, so that words of any length go over the ends of segments."""


def random_walk(row: str) -> Recipe:
    """A row of the paper's Random Walk table, or `lstm`."""
    schedules = table_schedules(cached_step_size=256, feedback_span=64, span=SPAN)
    return _recipe("random-walk", row, schedules, paper_training("random-walk"))


def algorithm(row: str) -> Recipe:
    """A row of the paper's Algorithm table, or `lstm`."""
    schedules = table_schedules(cached_step_size=64, feedback_span=32, span=SPAN)
    return _recipe("algorithm", row, schedules, paper_training("algorithm"))


def permutations(row: str) -> Recipe:
    """The word problem of S5 with the models and settings of the Random Walk table.

    Words have 64 elements, the task's own default: few enough that learning begins soon, and far
    more than a core of four layers can follow in one pass. As they are a sixth of a walk, spans are
    shorter: what a model sees of other words is in the way of the first products.
    """
    schedules = table_schedules(cached_step_size=32, feedback_span=16, span=64)
    options = {"group": "S5", "length": 64}
    return _recipe("permutations", row, schedules, paper_training("random-walk"), options)


def full_size_recipes() -> list[Recipe]:
    """All recipes of the paper's size: each table, and the same with settings of our own."""
    tables: tuple[tuple[Callable[[str], Recipe], TrainingConfig], ...] = (
        (random_walk, FAST_WALK),
        (algorithm, FAST_ALGORITHM),
        (permutations, FAST_PERMUTATIONS),
    )
    found: list[Recipe] = []
    for maker, training in tables:
        usual = [maker(row) for row in ROWS]
        found += [*usual, *(fast(recipe, training) for recipe in usual)]
    return found


def fast(recipe: Recipe, training: TrainingConfig) -> Recipe:
    """A row with settings of our own, and without dropout."""
    model = recipe.model
    if isinstance(model, FamilyModel):
        core = dataclasses.replace(model.core, dropout=0.0, embedding_dropout=0.0)
        model = dataclasses.replace(model, core=core)
    else:
        model = dataclasses.replace(model, dropout=0.0)
    group, row = recipe.name.split("/")
    return dataclasses.replace(recipe, name=f"{group}-fast/{row}", model=model, training=training)


def table_schedules(*, cached_step_size: int, feedback_span: int, span: int) -> dict[str, Schedule]:
    """The models of a table, row by row; these sizes differ between the tables."""
    windows = [("cached-staircase", cached_step_size, chunk) for chunk in (4, 8, 16)]
    windows += [(GLOBAL, span, chunk) for chunk in (8, 16, 32)]
    cached = {
        f"{name}-c{chunk}": CachedStaircase(
            chunk_size=chunk, num_window_chunks=step_size // chunk, num_passes=1
        )
        for name, step_size, chunk in windows
    }
    return {
        "transformer-xl": TransformerXL(span=span),
        "feedback": FeedbackTransformer(span=feedback_span),
        "staircase-n8-c8": Staircase(chunk_size=8, num_passes=8),
        "staircase-n4-c16": Staircase(chunk_size=16, num_passes=4),
        "staircase-n2-c32": Staircase(chunk_size=32, num_passes=2),
        **cached,
        "ladder-2": Ladder(num_passes=2, span=span),
        "ladder-4": Ladder(num_passes=4, span=span),
        "ladder-8": Ladder(num_passes=8, span=span),
    }


ROWS = (*table_schedules(cached_step_size=64, feedback_span=32, span=SPAN), LSTM)
"""Rows that every group of recipes has."""


def _recipe(
    group: str,
    row: str,
    schedules: Mapping[str, Schedule],
    facts: PaperTraining,
    options: Mapping[str, Any] | None = None,
) -> Recipe:
    check_choice(f"a row of {group}", row, ROWS)
    model = _lstm(facts) if row == LSTM else _family_model(schedules[row], facts)
    return Recipe(
        name=f"{group}/{row}",
        task=TaskChoice(reference=group, options=options or {}),
        model=model,
        training=TrainingConfig(
            num_updates=GLOBAL_UPDATES if row.startswith(GLOBAL) else facts.num_updates,
            num_lanes=facts.num_lanes,
            segment_length=facts.segment_length,
            optimizer=OptimizerConfig(
                kind="adam",
                learning_rate=facts.learning_rate,
                warm_up=facts.warm_up,
                gradient_clip=facts.gradient_clip,
            ),
        ),
    )


def _family_model(schedule: Schedule, facts: PaperTraining) -> FamilyModel:
    core = CoreConfig(
        width=facts.width,
        num_layers=facts.num_layers,
        num_heads=facts.num_heads,
        dropout=facts.dropout,
        embedding_dropout=facts.embedding_dropout,
    )
    return FamilyModel(core=core, schedule=schedule)


def _lstm(facts: PaperTraining) -> LSTMModel:
    """The paper ran none; like its other models, it has the same parameters and settings."""
    return LSTMModel(width=LSTM_WIDTH, num_layers=facts.num_layers, dropout=facts.dropout)
