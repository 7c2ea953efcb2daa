"""Recipes for two CPU cores: minutes instead of days, small chunks, short episodes.

A segment is as long as an episode where episodes have one length, so that a batch holds whole ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staircase_attention.checks import check_choice
from staircase_attention.layers import CoreConfig
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Schedule,
    Staircase,
    TransformerXL,
)
from staircase_attention.training import (
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallSize:
    """What the small recipes of one task share."""

    task: str
    options: Mapping[str, Any]
    segment_length: int
    num_updates: int
    width: int = 64
    num_layers: int = 2
    lstm_width: int = 78
    """With as many layers, the parameters of a Staircase to within 5%."""
    learning_rate: float = 2e-3
    evaluate_every: int = 100
    schedules: Mapping[str, Schedule] = field(
        default_factory=lambda: {
            "staircase": Staircase(chunk_size=2, num_passes=2),
            "cached-staircase": CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=1),
            "ladder": Ladder(num_passes=2, span=32),
            "transformer-xl": TransformerXL(span=32),
            "feedback": FeedbackTransformer(span=8),
        }
    )


SIZES: dict[str, SmallSize] = {
    "parity": SmallSize(
        task="permutations",
        options={"group": "S2", "length": 24},
        segment_length=25,
        num_updates=1_000,
        evaluate_every=50,
        width=48,
        num_layers=1,
        lstm_width=59,
        learning_rate=3e-3,
    ),
    "permutations-small": SmallSize(
        task="permutations",
        options={"group": "S3", "length": 24},
        segment_length=25,
        num_updates=1_000,
    ),
    "random-walk-small": SmallSize(
        task="random-walk",
        options={"length": 24, "height": 3, "width": 3},
        segment_length=25,
        num_updates=3_000,
    ),
    "algorithm-small": SmallSize(
        task="algorithm",
        options={"num_variables": 2, "num_statements": 10, "num_train": None},
        segment_length=48,
        num_updates=3_000,
    ),
}
"""Groups of small recipes."""

LSTM = "lstm"


def small(group: str, row: str) -> Recipe:
    """A model of a group of small recipes.

    >>> small("random-walk-small", "ladder").name
    'random-walk-small/ladder'
    """
    check_choice("a group of small recipes", group, SIZES)
    size = SIZES[group]
    check_choice(f"a row of {group}", row, (*size.schedules, LSTM))
    return Recipe(
        name=f"{group}/{row}",
        task=TaskChoice(reference=size.task, options=size.options),
        model=_model(size, row),
        training=_training(size),
    )


def small_recipes() -> list[Recipe]:
    """All small recipes."""
    return [small(group, row) for group, size in SIZES.items() for row in (*size.schedules, LSTM)]


def _model(size: SmallSize, row: str) -> FamilyModel | LSTMModel:
    if row == LSTM:
        return LSTMModel(width=size.lstm_width, num_layers=size.num_layers)
    # Training data is endless, so there is nothing that dropout would have to prevent.
    core = CoreConfig(width=size.width, num_layers=size.num_layers, num_heads=4)
    return FamilyModel(core=core, schedule=size.schedules[row])


def _training(size: SmallSize) -> TrainingConfig:
    """A high rate, which a short memory of squared gradients (beta2) makes safe."""
    return TrainingConfig(
        num_updates=size.num_updates,
        num_lanes=64,
        segment_length=size.segment_length,
        optimizer=OptimizerConfig(
            kind="adam",
            learning_rate=size.learning_rate,
            beta2=0.98,
            warm_up=100,
            decay="linear",
            final_fraction=0.1,
            gradient_clip=1.0,
        ),
        log_every=20,
        evaluate_every=size.evaluate_every,
        checkpoint_every=100,
    )
