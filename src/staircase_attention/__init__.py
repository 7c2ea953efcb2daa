"""Recurrent attention models: the Staircase family, exact, streaming, with state you can trust."""

from staircase_attention.layers import CoreConfig
from staircase_attention.models import SequenceModel, State, load_state, save_state
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)

__all__ = [
    "CachedStaircase",
    "CoreConfig",
    "FeedbackTransformer",
    "GlobalCachedStaircase",
    "Ladder",
    "MemoryNetwork",
    "SequenceModel",
    "Staircase",
    "State",
    "TransformerXL",
    "UniversalTransformer",
    "load_state",
    "save_state",
]
