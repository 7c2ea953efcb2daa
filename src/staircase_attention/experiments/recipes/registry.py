"""Recipes by name."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from staircase_attention.checks import check_choice
from staircase_attention.experiments.recipes.language import language_recipes
from staircase_attention.experiments.recipes.small import small_recipes
from staircase_attention.experiments.recipes.small_language import small_language_recipes
from staircase_attention.experiments.recipes.state_tracking import full_size_recipes
from staircase_attention.training import Recipe


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes: those of the paper's size first, then the small ones."""
    everything = [
        *full_size_recipes(),
        *language_recipes(),
        *small_recipes(),
        *small_language_recipes(),
    ]
    return MappingProxyType({recipe.name: recipe for recipe in everything})


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or a one-line error that points at the nearest.

    >>> find_recipe("random-walk/ladder-8").training.num_updates
    50000
    """
    known = recipes()
    check_choice("a recipe", name, known)
    return known[name]
