"""Learned parameters: the Transformer core that every schedule drives. No timetables here."""

from staircase_attention.lazy import lazy_names

# A config, and so a recipe, can be read without PyTorch.
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
