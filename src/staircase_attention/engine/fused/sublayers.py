"""The two sublayers of a fused step, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.engine.fused.shared import PartialSums, SharedLayer
from staircase_attention.engine.kernels import activation, relative_attention
from staircase_attention.engine.kernels.activation import gated_product
from staircase_attention.engine.kernels.single_query import Notes
from staircase_attention.layers.keys_values import KeysValues


class Found(NamedTuple):
    """What attention found, and how."""

    projected: Float[Tensor, "rows projections"]
    found: Float[Tensor, "rows width"]
    logsumexp: Float[Tensor, "batch heads queries"]


@dataclass(frozen=True, kw_only=True)
class Attending:
    """Queries that meet keys of their own and of the past."""

    table: Float[Tensor, "distances size"]
    table_sums: PartialSums
    view: View
    num_heads: int
    attends_self: bool
    dropout: float

    def forward(
        self,
        layer: SharedLayer,
        normed: Float[Tensor, "rows width"],
        shape: torch.Size,
        past: KeysValues | None,
        seed: Tensor | None,
    ) -> Found | None:
        """What the queries find; None where there is nothing to attend to."""
        if not self.attends_self and past is None:
            return None
        projected = normed @ layer.projection.weight.T
        queries, *_ = self._heads(projected, shape)
        found, logsumexp = relative_attention.forward(
            queries, *self._seen(projected, shape, past), self.table, **self._options(past, seed)
        )
        flat = found.transpose(1, 2).reshape(normed.shape)
        return Found(projected, flat, logsumexp)

    def own(self, found: Found, shape: torch.Size) -> KeysValues:
        """The queries' own keys and values."""
        return KeysValues(*self._heads(found.projected, shape)[1:])

    def backward(
        self,
        kept: Found,
        past: KeysValues | None,
        d_found: Float[Tensor, "rows width"],
        d_own: Sequence[Tensor | None],
        shape: torch.Size,
        seed: Tensor | None,
        *,
        d_past: KeysValues | None,
        adds: bool,
    ) -> Float[Tensor, "rows projections"]:
        """Gradients of the projections of queries that see themselves.

        Those of the past are written to `d_past`, if it is given. With `adds` they are added to
        what is there, and may be wanted of the last tokens only.
        """
        d_projected = torch.empty_like(kept.projected)
        d_queries, d_keys, d_values = self._heads(d_projected, shape)
        relative_attention.backward(
            self._one(d_found, shape),
            self._heads(kept.projected, shape)[0],
            *self.own(kept, shape),
            self.table,
            self._one(kept.found, shape),
            kept.logsumexp,
            table_sums=self.table_sums.parts,
            d_queries=d_queries,
            d_keys=d_keys,
            d_values=d_values,
            d_past=d_past,
            adds_past=adds,
            **self._options(past, seed),
        )
        for written, given in zip((d_keys, d_values), d_own, strict=True):
            if given is not None:
                written += given
        return d_projected

    def new_notes(self, past: KeysValues, num_layers: int) -> Notes:
        """Room for notes on queries that see only such a past."""
        return Notes(
            past.keys,
            self.table,
            num_layers=num_layers,
            first_query=self.view.first_query,
            span=self.view.span,
            first_visible=self.view.first_visible,
        )

    def noting_backward(
        self,
        kept: Found,
        past: KeysValues,
        d_found: Float[Tensor, "rows width"],
        shape: torch.Size,
        seed: Tensor | None,
        *,
        notes: Notes,
        number: int,
    ) -> Float[Tensor, "rows projections"]:
        """Gradients of the projections of queries that see only the past; the rest is noted."""
        d_projected = torch.empty_like(kept.projected)
        d_queries, *d_unseen = self._heads(d_projected, shape)
        for unseen in d_unseen:
            # Their own keys and values come in through a past, if at all.
            unseen.zero_()
        notes.add_query(
            number,
            self._one(d_found, shape),
            self._heads(kept.projected, shape)[0],
            *past,
            self._one(kept.found, shape),
            kept.logsumexp,
            d_queries=d_queries,
            dropout=self.dropout,
            seed=None if seed is None else seed[:1],
        )
        return d_projected

    def _seen(
        self,
        projected: Float[Tensor, "rows projections"],
        shape: torch.Size,
        past: KeysValues | None,
    ) -> KeysValues:
        """The keys and values behind those of the past; the past's, where there are no others."""
        if self.attends_self:
            return KeysValues(*self._heads(projected, shape)[1:])
        assert past is not None
        return past

    def _options(self, past: KeysValues | None, seed: Tensor | None) -> dict[str, Any]:
        return {
            "past": past if self.attends_self else None,
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
        d_inner = gated_product(
            d_output,
            self.layer.contract.weight,
            inner,
            scale=1 / (1 - self.dropout),
            sums=self.layer.expand_bias_sums.parts,
        )
        self.layer.expand.add(normed, d_inner)
        return d_inner @ self.layer.expand.weight
