from staircase_attention.layers.block import Block as Block
from staircase_attention.layers.config import CoreConfig as CoreConfig
from staircase_attention.layers.core import Core as Core
from staircase_attention.layers.core import Trip as Trip
from staircase_attention.layers.keys_values import Cache as Cache
from staircase_attention.layers.keys_values import KeysValues as KeysValues
from staircase_attention.layers.keys_values import join as join
from staircase_attention.layers.keys_values import latest as latest
