"""The fast backend of a model: where it applies, how it is installed, and how it is removed.

Triton is imported where it is used: not every machine has it, and its import is slow.
"""

import os
from importlib.util import find_spec
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.layers.core import Core
from staircase_attention.layers.embedding import Embedding
from staircase_attention.layers.layer import (
    Attention,
    FeedForward,
    Layer,
    LayerMix,
    Memory,
    RMSNorm,
)
from staircase_attention.layers.positions import RelativePositions, RotaryPositions
from staircase_attention.models.backend import CoreRunner, PlainBackend
from staircase_attention.models.exits import ExitBackend
from staircase_attention.models.sequence_model import SequenceModel

Model = TypeVar("Model", bound=nn.Module)

# What a model is made of.
KINDS = (
    *(SequenceModel, Embedding, Core, Layer, Attention, FeedForward, Memory, LayerMix, RMSNorm),
    *(RelativePositions, RotaryPositions, nn.Embedding, nn.ModuleList, nn.Linear, nn.LayerNorm),
)
# Those that the kernels of training are written for.
HEAD_SIZES = (16, 32, 64, 128)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def accelerate(model: Model) -> Model:
    """Let a model use kernels wherever they apply; the same model, changed in place.

    They apply on a GPU, in float32 and bfloat16, to models of the family whose settings `can_fuse`
    names. Everywhere else, and for other models, nothing changes.
    """
    # Exits gather tokens, which no kernel does.
    if isinstance(model, SequenceModel) and not isinstance(model.backend, ExitBackend):
        model.backend = FusedBackend()
    return model


def plain(model: Model) -> Model:
    """Undo `accelerate`: the model consists of PyTorch's operations alone."""
    if isinstance(model, SequenceModel) and isinstance(model.backend, FusedBackend):
        model.backend = PlainBackend()
    return model


class FusedBackend:
    """The fused core where it applies, the plain one elsewhere."""

    def runner(
        self, core: Core, embedded: Float[Tensor, "rows time width"], *, recompute: bool
    ) -> CoreRunner:
        """The core that takes these tokens, in the fastest form that computes the same."""
        if not can_fuse(core, embedded):
            return PlainBackend().runner(core, embedded, recompute=recompute)
        from staircase_attention.engine.fused.core import FusedCore

        return FusedCore(core, dtype=compute_dtype(embedded), recompute=recompute)


def can_fuse(core: Core, embedded: Tensor) -> bool:
    """Whether the fused core computes what this core does."""
    config = core.config
    # Layers that see themselves and layers that do not need other kernels, and so do a table and
    # groups of heads.
    sees_alike = core.attends_self or (
        config.positions == "relative" and sum(config.depth) == config.num_layers
    )
    return (
        can_run_on(embedded.device)
        and {compute_dtype(embedded), embedded.dtype} <= {torch.float32, torch.bfloat16}
        and config.head_size in HEAD_SIZES
        and sees_alike
        and (config.positions == "rotary" or config.key_value_heads == config.num_heads)
        and not config.qk_norm
        and not (core.memory.shares_keys_values and core.attends_self)
        and is_plain(core)
        # Transformations such as torch.func.grad cannot follow gradients written by hand.
        and not torch._C._are_functorch_transforms_active()
    )


def compute_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products with such a tensor: autocast's, or its own."""
    if torch.is_autocast_enabled(like.device.type):
        return torch.get_autocast_dtype(like.device.type)
    return like.dtype


def can_run_on(device: torch.device) -> bool:
    """Whether kernels run on a device; on a CPU only Triton's interpreter runs them."""
    if find_spec("triton") is None:
        return False
    return device.type == "cuda" or (
        device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    )


def is_plain(module: nn.Module) -> bool:
    """Whether a module and everything in it has a type of this package, without hooks.

    The engine reads weights and calls no module. A hook, an adapter around a layer, a `forward`
    put in place of it or a parametrised weight takes effect only where modules are called.
    """
    return all(
        type(one) in KINDS and not any(vars(one).get(name) for name in ("forward", *HOOKS))
        for one in module.modules()
    )
