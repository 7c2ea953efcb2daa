"""One pre-norm Transformer layer: attention and feed-forward sublayers."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.attention import View, attend
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import KeysValues, join, merge_heads, split_heads
from staircase_attention.layers.memory import Memory
from staircase_attention.layers.positions import RelativePositions, RotaryPositions


class Attention(nn.Module):
    """Multi-head attention; its keys and values may come from elsewhere."""

    def __init__(self, config: CoreConfig, *, owns_keys_values: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.query = nn.Linear(config.width, config.width, bias=False)
        if owns_keys_values:
            self.key = nn.Linear(config.width, config.width, bias=False)
            self.value = nn.Linear(config.width, config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    @property
    def projections(self) -> list[nn.Linear]:
        """Those that make queries, and keys and values where it has its own."""
        names = [name for name in ("query", "key", "value") if hasattr(self, name)]
        return [getattr(self, name) for name in names]

    def keys_values(self, normed: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of this layer."""
        return KeysValues(
            split_heads(self.key(normed), self.num_heads),
            split_heads(self.value(normed), self.num_heads),
        )

    def forward(
        self,
        normed: Float[Tensor, "batch queries width"],
        context: KeysValues,
        *,
        view: View,
        positions: RelativePositions | RotaryPositions,
    ) -> Float[Tensor, "batch queries width"]:
        """What the queries find in the context."""
        queries = split_heads(self.query(normed), self.num_heads)
        queries, keys = positions.place(queries, context.keys, view)
        found = (positions.kernel or attend)(
            queries,
            keys,
            context.values,
            table=positions.table,
            view=view,
            dropout=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.output(merge_heads(found))
        return output


class FeedForward(nn.Module):
    """Two matrices with biases and a ReLU between them, token by token."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.expand = nn.Linear(config.width, config.inner_width)
        self.contract = nn.Linear(config.inner_width, config.width)

    def forward(
        self, normed: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        """contract(dropout(ReLU(expand(x))))."""
        inner = functional.relu(self.expand(normed))
        output: Tensor = self.contract(functional.dropout(inner, self.dropout, self.training))
        return output


class Layer(nn.Module):
    """h + Attention(norm(h)), then + FeedForward(norm(·))."""

    def __init__(self, config: CoreConfig, *, owns_keys_values: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config, owns_keys_values=owns_keys_values)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        # What each sublayer adds starts small, so that the sum over all of them keeps its scale.
        for projection in (self.attention.output, self.feed_forward.contract):
            projection.weight.data.div_(math.sqrt(2 * config.num_layers))

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of this layer, through its norm and projections."""
        return self.attention.keys_values(self.attention_norm(hidden))

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        past: Sequence[KeysValues],
        *,
        view: View,
        positions: RelativePositions | RotaryPositions,
        memory: Memory,
        attends_self: bool,
    ) -> tuple[Float[Tensor, "batch queries width"], list[KeysValues]]:
        """The queries after this layer, and all keys and values that they saw.

        Where `attends_self`, their own follow the past, by the memory's projections if it has any.
        """
        normed = self.attention_norm(hidden)
        pieces = list(past)
        if attends_self and memory.shares_keys_values:
            pieces.append(memory.keys_values(hidden))
        elif attends_self:
            pieces.append(self.attention.keys_values(normed))
        context = [join(pieces)] if pieces else []
        # Attention to nothing is zero: the first token of a Feedback Transformer skips it.
        if context:
            hidden = hidden + self.attention(normed, *context, view=view, positions=positions)
        hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return hidden, context
