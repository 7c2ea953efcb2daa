"""Recurrent attention models: the Staircase family, exact, streaming, with state you can trust."""

from typing import TYPE_CHECKING

from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
    from staircase_attention.layers import CoreConfig
    from staircase_attention.models import SequenceModel, State, load_state, save_state
    from staircase_attention.schedules import (
        CachedStaircase,
        FeedbackTransformer,
        GlobalCachedStaircase,
        Ladder,
        MemoryNetwork,
        ParallelLoop,
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
    "ParallelLoop",
    "SequenceModel",
    "Staircase",
    "State",
    "TransformerXL",
    "UniversalTransformer",
    "load_state",
    "save_state",
]
_TORCH = {
    "layers": ["CoreConfig"],
    "models": ["SequenceModel", "State", "load_state", "save_state"],
}
_PLAIN = {*__all__} - {name for names in _TORCH.values() for name in names}
# PyTorch takes seconds to import; schedules, tasks and the command line work without it.
__getattr__ = lazy_names(__name__, {**_TORCH, "schedules": _PLAIN})
