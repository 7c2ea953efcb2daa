"""Attention of a fused step: what its queries see, and where the gradients of that go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.engine.fused.cache import BufferSlot
from staircase_attention.engine.fused.weights import SharedCore, SharedLayer
from staircase_attention.engine.kernels import relative_attention, rotary
from staircase_attention.engine.kernels.relative_parts import Call, Gradients
from staircase_attention.engine.kernels.single_query import Notes
from staircase_attention.layers.keys_values import KeysValues

# Queries, and keys and values where queries see themselves (rows, projections); what attention
# found (rows, width); the logarithm of each softmax's divisor (batch, heads, queries).
Attended: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Route:
    """The layers that queries go through, and what they see there.

    Autograd's graph holds it, so it must hold neither a tap nor a handle.
    """

    shared: SharedCore
    layers: range
    shape: torch.Size
    """Of the queries: [batch, time, width]."""
    view: View
    slots: tuple[BufferSlot, ...]
    """Where the past lies in a buffer, for each layer or once; empty if it does not."""

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
        return [*pairs] * len(self.layers) if self.shared.shares_past else [*pairs]

    def attend(
        self,
        layer: SharedLayer,
        normed: Float[Tensor, "rows width"],
        past: KeysValues | None,
        seed: Tensor | None,
    ) -> Attended | None:
        """What the queries find; None where there is nothing to attend to."""
        if past is None and not self.shared.attends_self:
            return None
        # Queries, keys, values [rows, ...], or queries alone where all layers share the others.
        projected = normed @ layer.projection.weight.T
        found, logsumexp = relative_attention.forward(self._call(layer, projected, past, seed))
        return projected, found.transpose(1, 2).reshape(normed.shape), logsumexp

    def own_keys_values(self, attended: Attended | None) -> tuple[Tensor | None, Tensor | None]:
        """The queries' own keys and values, if they see themselves."""
        if not self.shared.attends_self or attended is None:
            return None, None
        _, keys, values = self._parts(attended[0])
        return keys, values

    def attend_backward(
        self,
        number: int,
        kept: Attended,
        d_found: Float[Tensor, "rows width"],
        d_own: Sequence[Tensor | None],
        seed: Tensor | None,
        pasts: "PastGradients",
    ) -> Float[Tensor, "rows projections"]:
        """Gradients of the projections; those of what a layer saw go to `pasts`.

        `d_own` are those of the queries' own keys and values that later steps found.
        """
        projected, found, logsumexp = kept
        call = self._call(self.own_layers[number], projected, pasts.seen[number], seed)
        # Kernels write the gradients of queries, keys and values side by side, ready for the
        # product with the weights of all three.
        d_projected = torch.empty_like(projected)
        d_queries, *d_keys_values = self._parts(d_projected)
        d_out, out = self._heads(d_found), self._heads(found)
        if not self.shared.attends_self:
            # Keys and values of these queries are seen by later ones only, through a cache.
            for unseen in d_keys_values:
                unseen.zero_()
            # The calls of all layers differ in tensors and dropout only.
            pasts.notes = pasts.notes or Notes(call, num_layers=len(self.layers))
            pasts.notes.add_query(number, call, d_out, out, logsumexp, d_queries)
            return d_projected
        keys, values = d_keys_values
        past = pasts.target(number) if call.past else None
        gradients = Gradients(
            queries=d_queries,
            keys=keys,
            values=values,
            past=past,
            adds_past=bool(self.slots),
            table_sums=None if call.table is None else self.shared.table_sums.parts,
        )
        if call.table is None:
            self._turned_backward(call, d_out, out, logsumexp, gradients, d_projected)
        else:
            relative_attention.backward(call, d_out, out, logsumexp, gradients)
        # Later steps saw the same keys and values as their past.
        for written, given in zip(d_keys_values, d_own, strict=True):
            if given is not None:
                written += given
        return d_projected

    def _call(
        self,
        layer: SharedLayer,
        projected: Float[Tensor, "rows projections"],
        past: KeysValues | None,
        seed: Tensor | None,
    ) -> Call:
        queries, *own = self._parts(projected)
        # Kernels put the past before the queries' own keys; without those, it takes their place.
        if not self.shared.attends_self:
            assert past is not None
            own, past = [*past], None
        keys, values = own
        if self.shared.table is None:
            # Places are counted from the oldest key. Keys without them are what later steps see.
            first, turns = self.view.first_query, self.shared.turns(self.view)
            both = self._with_places(projected)
            both = rotary.rotate(both, turns, first=first, out=_by_time(both))
            queries, keys = torch.split(both, [queries.shape[1], keys.shape[1]], dim=1)
            if past is not None:
                turned = rotary.rotate(past.keys, turns, first=0, out=_by_time(past.keys))
                past = KeysValues(turned, past.values)
        return Call(
            queries=queries,
            keys=keys,
            values=values,
            table=self.shared.table,
            past=past if past is not None and past.num_tokens else None,
            first_query=self.view.first_query,
            span=self.view.span,
            first_visible=self.view.first_visible,
            dropout=layer.attention_dropout,
            seed=None if seed is None else seed[:1],
        )

    def _turned_backward(
        self,
        call: Call,
        d_out: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        gradients: Gradients,
        d_projected: Float[Tensor, "rows projections"],
    ) -> None:
        """Gradients of queries and keys as the kernels saw them, turned back to their places."""
        past, both = gradients.past, self._with_places(d_projected)
        turned = None if past is None else (torch.zeros_like(past[0]), past[1])
        seen = replace(gradients, past=turned)
        relative_attention.backward(call, d_out, out, logsumexp, seen)
        turn_back = partial(rotary.rotate, turns=self.shared.turns(self.view), backwards=True)
        turn_back(both, first=self.view.first_query, out=both)
        if past is not None and seen.past is not None:
            oldest = call.num_past - gradients.num_stored
            turn_back(seen.past[0], first=oldest, out=past[0], adds=gradients.adds_past)

    def _parts(
        self, projected: Float[Tensor, "rows projections"]
    ) -> tuple[Float[Tensor, "batch heads time size"], ...]:
        """Queries alone, or queries, keys and values."""
        num_heads, num_groups = self.shared.num_heads, self.shared.num_groups
        every = self._heads(projected)
        if every.shape[1] == num_heads:
            return (every,)
        return torch.split(every, [num_heads, num_groups, num_groups], dim=1)

    def _with_places(
        self, projected: Float[Tensor, "rows projections"]
    ) -> Float[Tensor, "batch heads time size"]:
        """Queries and keys, side by side: what rotary positions turn."""
        return self._heads(projected)[:, : -self.shared.num_groups]

    def _heads(self, vectors: Float[Tensor, "rows ..."]) -> Float[Tensor, "batch heads time size"]:
        """A view of [batch, time, heads, size]: nothing is copied."""
        batch, time, width = self.shape
        return vectors.view(batch, time, -1, width // self.shared.num_heads).transpose(1, 2)


def _by_time(like: Float[Tensor, "batch heads time size"]) -> Tensor:
    """Room for such vectors, in memory as [batch, time, heads, size]."""
    by_time = like.transpose(1, 2)
    return torch.empty_like(by_time, memory_format=torch.contiguous_format).transpose(1, 2)


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

    def target(self, number: int) -> KeysValues | None:
        """Where the gradients of one past go; None where nobody wants them."""
        seen = self.seen[number]
        if seen is None or not self._is_wanted:
            return None
        if self._route.slots:
            slot = self._route.slots[number]
            return slot.buffer.gradients(slot)
        # A past may be a slice: kernels want its gradients in one piece.
        empty = partial(torch.empty_like, memory_format=torch.contiguous_format)
        self._new[number] = seen.map(empty)
        return self._new[number]

    def finish(self) -> list[Tensor | None]:
        """Sum up the notes; the gradients of all tensors of the past that autograd follows."""
        route = self._route
        num_layers, shares_past = len(route.layers), route.shared.shares_past
        numbers = range(1 if shares_past else num_layers)
        if self.notes is not None:
            for number in numbers:
                layers = range(num_layers) if shares_past else range(number, number + 1)
                seen, found = self.seen[number], self.target(number)
                if seen is not None and found is not None:
                    first = seen.num_tokens - found.num_tokens
                    self.notes.sum_keys(layers, *found, first_key=first, adds=bool(route.slots))
            self.notes.sum_table(route.shared.table_sums.parts)
        if route.slots or self.seen[0] is None:
            return []
        return [part for number in numbers for part in self._new.get(number, (None, None))]
