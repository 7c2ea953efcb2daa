"""Learned parameters: the Transformer core that every schedule drives. No timetables here."""

from typing import TYPE_CHECKING

from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
    from staircase_attention.layers.block import Block
    from staircase_attention.layers.config import CoreConfig
    from staircase_attention.layers.core import Core, Trip
    from staircase_attention.layers.keys_values import (
        Cache,
        JoinedCache,
        KeysValues,
        join,
        latest,
    )

__all__ = [
    "Block",
    "Cache",
    "Core",
    "CoreConfig",
    "JoinedCache",
    "KeysValues",
    "Trip",
    "join",
    "latest",
]
# A config, and so a recipe, can be read without PyTorch.
__getattr__ = lazy_names(
    __name__,
    {
        "block": ["Block"],
        "config": ["CoreConfig"],
        "core": ["Core", "Trip"],
        "keys_values": ["Cache", "JoinedCache", "KeysValues", "join", "latest"],
    },
)
