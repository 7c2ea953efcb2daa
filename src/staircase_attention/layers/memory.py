"""What is learned about cached tokens: a mixture of layers, and projections that layers share."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import KeysValues, split_heads


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


class Memory(nn.Module):
    """The learned parts of a memory: a mix of layers, and projections that layers share."""

    def __init__(self, config: CoreConfig, *, mixes_layers: bool, shares_keys_values: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.mix = LayerMix(num_layers=config.num_layers) if mixes_layers else None
        self.shares_keys_values = shares_keys_values
        if shares_keys_values:
            self.norm = nn.LayerNorm(config.width)
            self.key = nn.Linear(config.width, config.width, bias=False)
            self.value = nn.Linear(config.width, config.width, bias=False)

    def remember(
        self, levels: Sequence[Float[Tensor, "batch time width"]]
    ) -> Float[Tensor, "batch time width"]:
        """One vector per token: the mixture of its levels, or the last one where none is mixed."""
        if self.mix is None or len(levels) == 1:
            return levels[-1]
        mixed: Tensor = self.mix(levels)
        return mixed

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What these tokens offer to queries of every layer, by the shared projections."""
        normed = self.norm(hidden)
        return KeysValues(
            split_heads(self.key(normed), self.num_heads),
            split_heads(self.value(normed), self.num_heads),
        )
