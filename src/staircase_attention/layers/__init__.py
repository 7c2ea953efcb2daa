"""Learned parameters: the Transformer core that every schedule drives. No timetables here."""

from staircase_attention.layers.cache import Cache, JoinedCache
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.core import Core, Trip
from staircase_attention.layers.keys_values import KeysValues, join, latest

__all__ = ["Cache", "Core", "CoreConfig", "JoinedCache", "KeysValues", "Trip", "join", "latest"]
