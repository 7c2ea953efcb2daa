"""The core at the hardware's speed: the same function, fused steps, gradients by hand."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from staircase_attention.layers.core import Core
from staircase_attention.layers.layer import Attention, FeedForward, Layer
from staircase_attention.layers.memory import LayerMix, Memory
from staircase_attention.layers.plainness import are_untouched
from staircase_attention.layers.positions import RelativePositions

if TYPE_CHECKING:
    from staircase_attention.engine.fused.core import FusedCore

KINDS = (
    Core,
    Layer,
    Attention,
    FeedForward,
    Memory,
    LayerMix,
    RelativePositions,
    nn.ModuleList,
    nn.Linear,
    nn.LayerNorm,
)
"""What a core is made of."""
HEAD_SIZES = (16, 32, 64, 128)
"""Those that the kernels are written for."""


def fused_core(core: Core, hidden: Tensor, *, recompute: bool) -> "FusedCore | None":
    """The core in its fused form, where that serves these hidden states."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    kinds = (torch.float32, torch.bfloat16)
    if dtype not in kinds or hidden.dtype not in kinds or not is_served(hidden.device):
        return None
    positions = core.positions
    if not isinstance(positions, RelativePositions) or positions.table.shape[1] not in HEAD_SIZES:
        return None
    if core.memory.shares_keys_values and core.attends_self:
        return None
    if not are_untouched(core, KINDS):
        return None
    # Triton is imported where it is used: it is not there on every machine.
    from staircase_attention.engine.fused.core import FusedCore

    return FusedCore(core, dtype=dtype, recompute=recompute)


def is_served(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device."""
    return device.type == "cuda" and find_spec("triton") is not None
