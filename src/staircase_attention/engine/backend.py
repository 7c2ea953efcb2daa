"""The fast backend of a model: where it applies, how it is installed, and how it is removed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from staircase_attention.layers.core import Core
from staircase_attention.layers.embedding import Embedding
from staircase_attention.layers.layer import Attention, FeedForward, Layer
from staircase_attention.layers.memory import LayerMix, Memory
from staircase_attention.layers.positions import RelativePositions, RotaryPositions
from staircase_attention.models.sequence_model import SequenceModel

if TYPE_CHECKING:
    from staircase_attention.engine.fused.core import FusedCore

KINDS = (
    SequenceModel,
    Embedding,
    nn.Embedding,
    Core,
    Layer,
    Attention,
    FeedForward,
    Memory,
    LayerMix,
    RelativePositions,
    RotaryPositions,
    nn.ModuleList,
    nn.Linear,
    nn.LayerNorm,
)
"""What a model is made of."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: nn.Module) -> bool:
    """Whether a module and all in it are of our own types, without hooks.

    The engine reads weights and calls no module. A hook, an adapter around a layer or a
    parametrised weight takes effect only where modules are called.
    """
    return all(
        type(one) in KINDS and not any(getattr(one, name) for name in HOOKS)
        for one in module.modules()
    )
