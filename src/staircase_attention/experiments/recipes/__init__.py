"""Which runs exist: every recipe by its name, complete and typed."""

from staircase_attention.experiments.recipes.registry import find_recipe, recipes

__all__ = ["find_recipe", "recipes"]
