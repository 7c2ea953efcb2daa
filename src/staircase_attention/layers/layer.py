"""One pre-norm Transformer layer, and what all layers may share about cached tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.attention import View, attend
from staircase_attention.layers.block import Block, Remembering
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import KeysValues, join, split_heads
from staircase_attention.layers.positions import RelativePositions, RotaryPositions

NORM_EPSILON = 1e-5


class RMSNorm(nn.RMSNorm):
    """PyTorch's, whose weight follows the dtype of what comes: heads are normed under autocast."""

    def forward(self, vectors: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Vectors x: x / sqrt(mean(x²) + eps) * weight."""
        weight = self.weight.to(vectors.dtype)
        # Only the latest ONNX has an operator for it.
        if torch.onnx.is_in_onnx_export():
            spread = vectors.square().mean(-1, keepdim=True) + NORM_EPSILON
            return vectors * torch.rsqrt(spread) * weight
        return functional.rms_norm(vectors, self.normalized_shape, weight, self.eps)


def make_norm(config: CoreConfig, size: int) -> nn.LayerNorm | nn.RMSNorm:
    """A norm over vectors of this size, of the kind that the core has."""
    if config.norm == "rms":
        return RMSNorm(size, eps=NORM_EPSILON)
    return nn.LayerNorm(size, eps=NORM_EPSILON, bias=config.bias)


class KeysValuesProjection(nn.Module):
    """What turns normed tokens into keys and values: in a layer's attention, or for all layers."""

    def add_keys_values(self, config: CoreConfig) -> None:
        """Make the parameters, when it is their turn."""
        self.num_key_value_heads = config.key_value_heads
        self.key = nn.Linear(config.width, config.key_value_width, bias=False)
        self.value = nn.Linear(config.width, config.key_value_width, bias=False)
        self.key_norm = make_norm(config, config.head_size) if config.qk_norm else None

    def keys_values(self, normed: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries."""
        keys = split_heads(self.key(normed), self.num_key_value_heads)
        values = split_heads(self.value(normed), self.num_key_value_heads)
        return KeysValues(keys if self.key_norm is None else self.key_norm(keys), values)


class Attention(KeysValuesProjection):
    """Multi-head attention; its keys and values may come from elsewhere."""

    def __init__(self, config: CoreConfig, *, owns_keys_values: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.weight_dropout
        self.owns_keys_values = owns_keys_values
        self.query = nn.Linear(config.width, config.width, bias=False)
        # Parameters are made in this order; see Core.
        if owns_keys_values:
            self.add_keys_values(config)
        self.output = nn.Linear(config.width, config.width, bias=False)
        self.query_norm = make_norm(config, config.head_size) if config.qk_norm else None

    @property
    def projections(self) -> list[nn.Linear]:
        """Those that make queries, and keys and values where it has its own."""
        return [self.query, self.key, self.value] if self.owns_keys_values else [self.query]

    def forward(
        self,
        normed: Float[Tensor, "batch queries width"],
        context: KeysValues,
        *,
        view: View,
        positions: RelativePositions | RotaryPositions,
        projects: bool = True,
    ) -> Float[Tensor, "batch queries width"]:
        """What the queries find in the context; without the two projections if not `projects`."""
        queries = self.query(normed) if projects else normed
        queries, keys = self.placed(queries, context.keys, view, positions)
        found = attend(
            queries,
            keys,
            context.values,
            table=positions.table,
            view=view,
            dropout=self.dropout if self.training else 0.0,
        )
        output = found.transpose(1, 2).flatten(-2)  # [batch, queries, width]: heads side by side
        return self.output(output) if projects else output

    def placed(
        self, queries: Tensor, keys: Tensor, view: View, positions: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """What scores are computed from: queries by head, and keys, turned by their positions."""
        queries = split_heads(queries, self.num_heads)
        if self.query_norm is not None:
            queries = self.query_norm(queries)
        if isinstance(positions, RotaryPositions):
            queries, keys = positions.place(queries, keys, view)
        return queries, keys


class FeedForward(nn.Module):
    """Two matrices and an activation between them, or three with a gate; token by token."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.kind = config.feed_forward
        self.expand = nn.Linear(config.width, config.inner_width, bias=config.bias)
        self.contract = nn.Linear(config.inner_width, config.width, bias=config.bias)
        if self.kind == "swiglu":
            self.gate = nn.Linear(config.width, config.inner_width, bias=config.bias)

    def forward(
        self, normed: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        """contract(dropout(activation(expand(x)))); SwiGLU: silu(gate(x)) * expand(x) inside."""
        inner: Tensor = self.expand(normed)
        if self.kind == "swiglu":
            inner = functional.silu(self.gate(normed)) * inner
        else:
            inner = functional.relu(inner) if self.kind == "relu" else functional.gelu(inner)
        output: Tensor = self.contract(functional.dropout(inner, self.dropout, self.training))
        return output


class LayerMix(nn.Module):
    """A softmax-weighted sum of a token's embedding and all layers' outputs (Fan et al. 2020)."""

    def __init__(self, *, num_layers: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_layers + 1))

    def forward(
        self, levels: Sequence[Float[Tensor, "batch time width"]]
    ) -> Float[Tensor, "batch time width"]:
        """Σ softmax(logits)_l x^l, the embedding being x^0."""
        weights = self.logits.softmax(0)
        # Stacked in front, each level and its gradient are contiguous.
        return torch.einsum("l,lbtw->btw", weights, torch.stack(tuple(levels)))


class Memory(KeysValuesProjection):
    """The learned parts of a memory: a mix of layers, and projections that layers share."""

    def __init__(self, config: CoreConfig, *, mixes_layers: bool, shares_keys_values: bool) -> None:
        super().__init__()
        self.mix = LayerMix(num_layers=config.num_layers) if mixes_layers else None
        self.shares_keys_values = shares_keys_values
        if shares_keys_values:
            self.norm = make_norm(config, config.width)
            self.add_keys_values(config)

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of all layers, through one norm."""
        return super().keys_values(self.norm(hidden))

    def remember(
        self, levels: Sequence[Float[Tensor, "batch time width"]]
    ) -> Float[Tensor, "batch time width"]:
        """One vector per token: the mixture of its levels, or the last one where none is mixed."""
        if self.mix is None or len(levels) == 1:
            return levels[-1]
        mixed: Tensor = self.mix(levels)
        return mixed


class Layer(Block):
    """h + Attention(norm(h)), then + FeedForward(norm(·))."""

    def __init__(self, config: CoreConfig, *, owns_keys_values: bool) -> None:
        super().__init__()
        self.width = config.width
        self.attention_norm = make_norm(config, config.width)
        self.attention = Attention(config, owns_keys_values=owns_keys_values)
        self.feed_forward_norm = make_norm(config, config.width)
        self.feed_forward = FeedForward(config)
        # What each sublayer adds starts small, so that the sum over all of them keeps its scale.
        for projection in (self.attention.output, self.feed_forward.contract):
            projection.weight.data.div_(math.sqrt(2 * sum(config.depth)))

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of this layer, through its norm and projections."""
        return self.attention.keys_values(self.attention_norm(hidden))

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
        """As in `Block`, by one norm for queries and keys."""
        assert positions is not None
        normed = self.attention_norm(hidden)
        pieces = list(past)
        # Own keys and values come last: they are the latest in time.
        if attends_self and shared is not None:
            pieces.append(shared(hidden))
        elif attends_self:
            pieces.append(self.attention.keys_values(normed))
        context = [join(pieces)] if pieces else []
        # Attention to nothing is zero: the first token of a Feedback Transformer skips it.
        if context:
            hidden = hidden + self.attention(normed, *context, view=view, positions=positions)
        hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return hidden, context
