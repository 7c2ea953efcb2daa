"""Recurrent attention models: the Staircase family, exact, streaming, with state you can trust."""

from staircase_attention.lazy import lazy_names

# PyTorch takes seconds to import; schedules, tasks and the command line work without it.
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
