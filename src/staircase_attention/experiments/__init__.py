"""Which runs exist: recipes, the paper's numbers as data, comparisons and their reports."""

from staircase_attention.lazy import lazy_names

# Recipes can be listed without PyTorch.
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
