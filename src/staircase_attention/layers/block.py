"""The protocol of a block: what one layer of a core takes, returns and remembers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.attention import View
from staircase_attention.checks import input_error
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import KeysValues, join
from staircase_attention.layers.positions import RelativePositions, RotaryPositions
from staircase_attention.references import check_options, load_reference

# Settings that only blocks read.
OF_BLOCKS = (
    *("feed_forward_width", "dropout", "attention_dropout", "positions", "max_distance"),
    *("feed_forward", "num_key_value_heads", "qk_norm"),
)
# Makes the keys and values of tokens.
Remembering: TypeAlias = Callable[[Tensor], KeysValues]


class Block(nn.Module, ABC):
    """One layer of a core. A block of your own defines `width`, `keys_values` and `transform`.

    * It takes vectors of neighbouring tokens, the queries; a context, the keys and values of all
      tokens that any of them sees, in order of time; and a view: how far each key lies behind each
      query (`view.distances`), and which keys a query must not see (`view.hidden`).
    * It returns the queries' vectors after the block.
    * It remembers keys and values of every token. The executor carries them from step to step,
      caches them, drops them, resets them and saves them; nothing else outlives a call. They carry
      no positions, since a stream has no end: those are applied in `transform`, by the view.
    """

    width: int
    """Size of a token's vector."""

    @abstractmethod
    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of this block, each token for itself."""

    def transform(
        self,
        hidden: Float[Tensor, "batch queries width"],
        context: KeysValues | None,
        *,
        view: View,
    ) -> Float[Tensor, "batch queries width"]:
        """The queries after this block; without a context they see nothing, not even themselves."""
        raise NotImplementedError(f"{type(self).__name__} must define transform")

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        past: Sequence[KeysValues],
        *,
        view: View,
        attends_self: bool,
        shared: Remembering | None,
        positions: RelativePositions | RotaryPositions | None,
    ) -> tuple[Float[Tensor, "batch queries width"], list[KeysValues]]:
        """The queries after this block, and all keys and values that they saw.

        Where `attends_self`, their own follow the past, by `shared` where layers share them.
        `positions` are those of the core's own layers, which override this to project only once.
        """
        del positions
        if shared in (None, self.keys_values):
            # Where weights are sharded, the instance's method would free them before `transform`.
            shared = partial(type(self).keys_values, self)
        own = [shared(hidden)] if attends_self else []
        context = [join([*past, *own])] if past or own else []
        out = self.transform(hidden, context[0] if context else None, view=view)
        if out.shape != hidden.shape:
            rule = f"{type(self).__name__}.transform must return vectors as it takes them"
            received = f"{tuple(out.shape)} for {tuple(hidden.shape)}"
            raise input_error(rule, received, "return batch x queries x width")
        return out, context


def make_blocks(config: CoreConfig) -> list[Block]:
    """A core's blocks, by settings that their class takes, and by the options."""
    assert config.reference is not None
    kind = load_reference(config.reference, Block)  # type: ignore[type-abstract]
    names = signature(kind).parameters
    given: dict[str, Any] = {}
    for setting in fields(config):
        value = getattr(config, setting.name)
        if setting.name in names and value is not None:
            given[setting.name] = value
        elif setting.name in OF_BLOCKS and value != setting.default:
            rule = f"a setting of the core must be one that {config.reference} takes"
            raise input_error(rule, f"{setting.name}={value}", "leave it out, or add it there")
    given |= config.options
    check_options(config.reference, kind, given)
    return [kind(**given) for _ in range(sum(config.depth))]


def checked_blocks(blocks: object) -> list[Block]:
    """The same blocks, unless they are none, or of several widths."""
    given = list(blocks) if isinstance(blocks, list | tuple | nn.ModuleList) else []
    widths = {getattr(one, "width", None) for one in given if isinstance(one, Block)}
    if not all(isinstance(one, Block) for one in given) or len(widths) != 1 or None in widths:
        rule = "core must be a CoreConfig, or a list of blocks (layers.Block) of one width"
        received = [type(one).__name__ for one in given] or repr(blocks)
        raise input_error(rule, received, "use for example CoreConfig(width=8, ...)")
    return given


@torch.no_grad()
def memory_shape(block: Block) -> tuple[int, int, int]:
    """What a block remembers of a token: heads, and the sizes of a key and of a value."""
    like = next(block.parameters(), torch.empty(0))
    shapes = [tuple(part.shape) for part in block.keys_values(like.new_zeros(1, 2, block.width))]
    if [(len(shape), *shape[:1], *shape[2:3]) for shape in shapes] != [(4, 1, 2)] * 2:
        rule = "keys_values of a block must give keys and values, batch x heads x time x size each"
        raise input_error(rule, f"{shapes} for one row of 2 tokens", "transpose them")
    return shapes[0][1], shapes[0][3], shapes[1][3]
