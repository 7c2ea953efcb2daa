"""From a recipe to trained weights, with nothing lost on the way."""

from staircase_attention.training.recipe import (
    DivergenceConfig,
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)

__all__ = [
    "DivergenceConfig",
    "FamilyModel",
    "LSTMModel",
    "OptimizerConfig",
    "Recipe",
    "TaskChoice",
    "TrainingConfig",
]
