"""From a recipe to trained weights: recipes, runs, checkpoints, packed runs."""

from staircase_attention.lazy import lazy_names

# Recipes can be read without PyTorch.
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
