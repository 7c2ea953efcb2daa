"""Which runs exist: every recipe by its name, complete and typed."""

from staircase_attention.experiments.recipes.registry import find_recipe, recipes
from staircase_attention.experiments.recipes.small import parity, small
from staircase_attention.experiments.recipes.state_tracking import (
    algorithm,
    permutations,
    random_walk,
    random_walk_fast,
)

__all__ = [
    "algorithm",
    "find_recipe",
    "parity",
    "permutations",
    "random_walk",
    "random_walk_fast",
    "recipes",
    "small",
]
