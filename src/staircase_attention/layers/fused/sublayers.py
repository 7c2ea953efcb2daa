"""The two sublayers of a fused step, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.kernels import activation, relative_attention
from staircase_attention.layers.fused.shared import SharedLayer
from staircase_attention.layers.keys_values import KeysValues, join


class Found(NamedTuple):
    """What attention found, and how."""

    projected: Float[Tensor, "rows projections"]
    keys: Float[Tensor, "batch heads keys size"]
    values: Float[Tensor, "batch heads keys size"]
    found: Float[Tensor, "rows width"]
    logsumexp: Float[Tensor, "batch heads queries"]


@dataclass(frozen=True, kw_only=True)
class Attending:
    """Queries that meet keys of their own and of the past."""

    table: Float[Tensor, "distances size"]
    table_sums: Float[Tensor, "programs distances size"]
    view: View
    num_heads: int
    attends_self: bool
    dropout: float

    def forward(
        self,
        layer: SharedLayer,
        normed: Float[Tensor, "rows width"],
        shape: torch.Size,
        past: Sequence[KeysValues],
        seed: Tensor | None,
    ) -> Found | None:
        """What the queries find; None where there is nothing to attend to."""
        if not self.attends_self and not past:
            return None
        projected = normed @ layer.projection.weight.T
        queries, *own = self._heads(projected, shape)
        pieces = [*past, KeysValues(*own)] if self.attends_self else list(past)
        keys, values = join(pieces)
        found, logsumexp = relative_attention.forward(
            queries, keys, values, self.table, **self._options(seed)
        )
        flat = found.transpose(1, 2).reshape(normed.shape)
        return Found(projected, keys, values, flat, logsumexp)

    def backward(
        self,
        kept: Found,
        d_found: Float[Tensor, "rows width"],
        d_context: Sequence[Tensor | None],
        shape: torch.Size,
        seed: Tensor | None,
    ) -> tuple[Float[Tensor, "rows projections"], KeysValues | None]:
        """Gradients of the projections, and of the past where there is one."""
        queries, *_ = self._heads(kept.projected, shape)
        d_projected = torch.empty_like(kept.projected)
        d_queries, *d_own = self._heads(d_projected, shape)
        num_past = kept.keys.shape[2] - (shape[1] if self.attends_self else 0)
        is_direct = num_past == 0 and len(d_own) > 0
        _, *d_seen = relative_attention.backward(
            self._one(d_found, shape),
            queries,
            kept.keys,
            kept.values,
            self.table,
            self._one(kept.found, shape),
            kept.logsumexp,
            **self._options(seed),
            table_sums=self.table_sums,
            d_queries=d_queries,
            d_keys=d_own[0] if is_direct else None,
            d_values=d_own[1] if is_direct else None,
        )
        for seen, given in zip(d_seen, d_context, strict=True):
            if given is not None:
                seen += given
        if is_direct:
            return d_projected, None
        if self.attends_self:
            for own, seen in zip(d_own, d_seen, strict=True):
                own.copy_(seen[:, :, num_past:])
        elif d_own:
            # Keys and values of queries that see only others come in through the past.
            for own in d_own:
                own.zero_()
        return d_projected, KeysValues(*d_seen)

    def _options(self, seed: Tensor | None) -> dict[str, Any]:
        return {
            "first_query": self.view.first_query,
            "span": self.view.span,
            "first_visible": self.view.first_visible,
            "dropout": self.dropout,
            "seed": None if seed is None else seed[:1],
        }

    def _heads(
        self, projected: Float[Tensor, "rows projections"], shape: torch.Size
    ) -> tuple[Float[Tensor, "batch heads time size"], ...]:
        """Queries alone, or queries, keys and values."""
        batch, time, width = shape
        parts = projected.view(batch, time, -1, self.num_heads, width // self.num_heads)
        return parts.permute(2, 0, 3, 1, 4).unbind()

    def _one(self, flat: Float[Tensor, "rows width"], shape: torch.Size) -> Tensor:
        (heads,) = self._heads(flat, shape)
        return heads


@dataclass(frozen=True)
class FeedingForward:
    """Two matrices with a ReLU between them; what comes of the second is left to its reader."""

    layer: SharedLayer
    dropout: float

    def forward(
        self, normed: Float[Tensor, "rows width"], seed: Tensor | None
    ) -> Float[Tensor, "rows inner"]:
        """dropout(ReLU(expand(x)))."""
        weight, bias = self.layer.expand.weight, self.layer.expand_bias
        if self.dropout == 0:
            return torch._addmm_activation(bias, normed, weight.T)
        assert seed is not None
        inner = normed @ weight.T
        return activation.relu_dropout_(inner, bias, dropout=self.dropout, seed=seed[1:])

    def backward(
        self,
        normed: Float[Tensor, "rows width"],
        inner: Float[Tensor, "rows inner"],
        d_output: Float[Tensor, "rows width"],
    ) -> Float[Tensor, "rows width"]:
        """To the norm below."""
        self.layer.contract.add(inner, d_output)
        d_inner = activation.relu_backward_(
            d_output @ self.layer.contract.weight,
            inner,
            scale=1 / (1 - self.dropout),
            sums=self.layer.expand_bias_sums,
        )
        self.layer.expand.add(normed, d_inner)
        return d_inner @ self.layer.expand.weight
