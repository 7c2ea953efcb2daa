"""Attention of a fused step: what its queries see, and where the gradients of that go."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.engine.fused.cache import BufferSlot
from staircase_attention.engine.fused.weights import SharedCore, SharedLayer
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
class Route:
    """The layers that queries go through, what they see there, and how attention is computed.

    Autograd's graph holds it, so it must hold neither a tap nor a handle.
    """

    shared: SharedCore
    layers: range
    shape: torch.Size
    """Of the queries: [batch, time, width]."""
    view: View
    num_heads: int
    attends_self: bool
    """Whether queries see themselves, besides the past."""
    dropout: float
    slots: tuple[BufferSlot, ...]
    """Where the past lies in a buffer, for each layer or once; empty if it does not."""
    shares_past: bool
    """Whether all layers see the same past."""
    dtype: torch.dtype
    """Of products."""
    recompute: bool
    """Whether the backward pass computes again what lies between two layers' outputs."""

    @property
    def own_layers(self) -> list[SharedLayer]:
        """The weights of its layers."""
        return [self.shared.layers[index] for index in self.layers]

    def pasts(self, flat: Sequence[Tensor]) -> list[KeysValues | None]:
        """What each layer sees of the past, given the tensors that autograd follows."""
        pairs = [slot.held for slot in self.slots]
        pairs = pairs or [KeysValues(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        if not pairs:
            return [None] * len(self.layers)
        return [*pairs] * len(self.layers) if self.shares_past else [*pairs]

    def attend(
        self,
        layer: SharedLayer,
        normed: Float[Tensor, "rows width"],
        past: KeysValues | None,
        seed: Tensor | None,
    ) -> Attended | None:
        """What the queries find; None where there is nothing to attend to."""
        if past is None and not self.attends_self:
            return None
        # [rows, 3 * width], or [rows, width] where all layers share keys and values.
        projected = normed @ layer.projection.weight.T
        queries, *own = self._heads(projected)
        # Kernels put the past before the queries' own keys; without those, it takes their place.
        keys, values = own if self.attends_self or past is None else past
        found, logsumexp = relative_attention.forward(
            queries, keys, values, self.shared.table, **self._options(past, seed)
        )
        flat = found.transpose(1, 2).reshape(normed.shape)
        return Attended(projected, flat, logsumexp)

    def own_keys_values(
        self, projected: Float[Tensor, "rows projections"] | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The queries' own keys and values, if they see themselves."""
        if not self.attends_self or projected is None:
            return None, None
        _, keys, values = self._heads(projected)
        return keys, values

    def attend_backward(
        self,
        kept: Attended,
        past: KeysValues | None,
        d_found: Float[Tensor, "rows width"],
        d_own: Sequence[Tensor | None],
        seed: Tensor | None,
        *,
        d_past: KeysValues | None,
        adds: bool,
    ) -> Float[Tensor, "rows projections"]:
        """Gradients of the projections of queries that see themselves.

        Those of the past are written to `d_past`, if it is given. With `adds` they are added to
        what is there, and `d_past` may be that of the last tokens only.
        """
        # Kernels write the gradients of queries, keys and values side by side, ready for the
        # product with the weights of all three.
        d_projected = torch.empty_like(kept.projected)
        queries, keys, values = self._heads(kept.projected)
        d_queries, d_keys, d_values = self._heads(d_projected)
        relative_attention.backward(
            self._one(d_found),
            queries,
            keys,
            values,
            self.shared.table,
            self._one(kept.found),
            kept.logsumexp,
            table_sums=self.shared.table_sums.parts,
            d_queries=d_queries,
            d_keys=d_keys,
            d_values=d_values,
            d_past=d_past,
            adds_past=adds,
            **self._options(past, seed),
        )
        # Later steps saw the same keys and values as their past.
        for written, given in zip((d_keys, d_values), d_own, strict=True):
            if given is not None:
                written += given
        return d_projected

    def noting_backward(
        self,
        kept: Attended,
        past: KeysValues,
        d_found: Float[Tensor, "rows width"],
        seed: Tensor | None,
        *,
        notes: Notes,
        number: int,
    ) -> Float[Tensor, "rows projections"]:
        """Gradients of the projections of queries that see only the past; the rest is noted."""
        d_projected = torch.empty_like(kept.projected)
        d_queries, *d_unseen = self._heads(d_projected)
        for unseen in d_unseen:
            # Keys and values of these queries are seen by later ones only, through a cache.
            unseen.zero_()
        notes.add_query(
            number,
            self._one(d_found),
            self._heads(kept.projected)[0],
            *past,
            self._one(kept.found),
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
        self, projected: Float[Tensor, "rows projections"]
    ) -> tuple[Float[Tensor, "batch heads time size"], ...]:
        """Queries alone, or queries, keys and values."""
        batch, time, width = self.shape
        # Views of [batch, time, 1 or 3, heads, size]: nothing is copied.
        parts = projected.view(batch, time, -1, self.num_heads, width // self.num_heads)
        return parts.permute(2, 0, 3, 1, 4).unbind()

    def _one(self, flat: Float[Tensor, "rows width"]) -> Tensor:
        (heads,) = self._heads(flat)
        return heads


class PastGradients:
    """Where the gradients of the past go in one backward pass of a trip.

    Those of a buffer are added to its own gradients; others are new tensors. Queries that see only
    the past leave notes, from which gradients are summed at the end, once for all layers that see
    the same past.
    """

    def __init__(self, route: Route, seen: Sequence[KeysValues | None], *, is_wanted: bool) -> None:
        self.seen = seen
        self._route, self._is_wanted = route, is_wanted
        self._new: dict[int, KeysValues] = {}
        self.notes: Notes | None = None
        view = route.view
        if seen[0] is not None and not route.attends_self:
            self.notes = Notes(
                seen[0].keys,
                route.shared.table,
                num_layers=len(route.layers),
                first_query=view.first_query,
                span=view.span,
                first_visible=view.first_visible,
            )

    def target(self, number: int) -> KeysValues | None:
        """Where the gradients of one past go; None where nobody wants them."""
        seen = self.seen[number]
        if seen is None or not self._is_wanted:
            return None
        if self._route.slots:
            return self._route.slots[number].gradients
        # A past may be a slice: kernels want its gradients in one piece.
        empty = partial(torch.empty_like, memory_format=torch.contiguous_format)
        self._new[number] = seen.map(empty)
        return self._new[number]

    def finish(self) -> list[Tensor | None]:
        """Sum up the notes; the gradients of all tensors of the past that autograd follows."""
        route = self._route
        num_layers = len(route.layers)
        numbers = range(1 if route.shares_past else num_layers)
        if self.notes is not None:
            for number in numbers:
                layers = range(num_layers) if route.shares_past else range(number, number + 1)
                seen, found = self.seen[number], self.target(number)
                if seen is not None and found is not None:
                    first = seen.num_tokens - found.num_tokens
                    self.notes.sum_keys(layers, *found, first_key=first, adds=bool(route.slots))
            self.notes.sum_table(route.shared.table_sums.parts)
        if route.slots or self.seen[0] is None:
            return []
        return [part for number in numbers for part in self._new.get(number, (None, None))]
