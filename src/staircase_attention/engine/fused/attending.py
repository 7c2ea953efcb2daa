"""Attention of a fused step: projections, kernels, and their gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.engine.fused.weights import PartialSums, SharedLayer
from staircase_attention.engine.kernels import relative_attention
from staircase_attention.engine.kernels.single_query import Notes
from staircase_attention.layers.keys_values import KeysValues


class Attended(NamedTuple):
    """What attention found, and what its backward pass needs."""

    projected: Float[Tensor, "rows projections"]
    """Queries, and keys and values where queries see themselves."""
    found: Float[Tensor, "rows width"]
    logsumexp: Float[Tensor, "batch heads queries"]


@dataclass(frozen=True, kw_only=True)
class Attending:
    """Attention of queries to the past and, with `attends_self`, to themselves."""

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
    ) -> Attended | None:
        """What the queries find; None where there is nothing to attend to."""
        if past is None and not self.attends_self:
            return None
        projected = normed @ layer.projection.weight.T
        queries, *own = self._heads(projected, shape)
        # Kernels put the past before the queries' own keys; without those, it takes their place.
        keys, values = own if self.attends_self or past is None else past
        found, logsumexp = relative_attention.forward(
            queries, keys, values, self.table, **self._options(past, seed)
        )
        flat = found.transpose(1, 2).reshape(normed.shape)
        return Attended(projected, flat, logsumexp)

    def own(
        self, projected: Float[Tensor, "rows projections"] | None, shape: torch.Size
    ) -> tuple[Tensor | None, Tensor | None]:
        """The queries' own keys and values, if they see themselves."""
        if not self.attends_self or projected is None:
            return None, None
        _, keys, values = self._heads(projected, shape)
        return keys, values

    def backward(
        self,
        kept: Attended,
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
        what is there, and `d_past` may be that of the last tokens only.
        """
        d_projected = torch.empty_like(kept.projected)
        queries, keys, values = self._heads(kept.projected, shape)
        d_queries, d_keys, d_values = self._heads(d_projected, shape)
        relative_attention.backward(
            self._one(d_found, shape),
            queries,
            keys,
            values,
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
        kept: Attended,
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
            # Keys and values of these queries are seen by later ones only, through a cache.
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
