"""A step through the core with everything fused that can be, forward and backward by hand.

The output of a product is added where the next norm reads it, so that the hidden state is written
once per sublayer; the backward pass is cut at the same points. Nothing waits for the device, so
that a whole update can be captured. Shapes: `rows` are all queries of all batch rows, one after
another. Hidden states and their gradients are float32 (or the dtype they came in), products are in
`Route.dtype`, and the gradients of weights are summed in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.engine.fused.attending import Attended, Attending
from staircase_attention.engine.fused.cache import BufferSlot
from staircase_attention.engine.fused.weights import SharedCore, SharedLayer
from staircase_attention.engine.kernels import activation, norm
from staircase_attention.engine.kernels.activation import gated_product
from staircase_attention.engine.kernels.single_query import Notes
from staircase_attention.layers.keys_values import KeysValues


@dataclass(frozen=True, kw_only=True)
class Route:
    """The layers that queries go through, and how."""

    shared: SharedCore
    layers: range
    attending: Attending
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


class Saved(NamedTuple):
    """What the backward pass needs of one layer."""

    total: Float[Tensor, "rows width"]
    """The hidden state below the layer,"""
    mean: Float[Tensor, " rows"]
    scale: Float[Tensor, " rows"]
    normed: Float[Tensor, "rows width"]
    """and its norm."""
    middle: Float[Tensor, "rows width"]
    """The hidden state between the sublayers,"""
    middle_mean: Float[Tensor, " rows"]
    middle_scale: Float[Tensor, " rows"]
    middle_normed: Float[Tensor, "rows width"]
    """and its norm."""
    inner: Float[Tensor, "rows inner"]
    """Inside the feed-forward sublayer, after ReLU and dropout."""
    projected: Float[Tensor, "rows projections"] | None
    """Queries, keys and values; None where there was nothing to attend to."""
    found: Float[Tensor, "rows width"] | None
    """What attention found."""
    logsumexp: Float[Tensor, "batch heads queries"] | None
    """Of the scores."""

    @property
    def attended(self) -> Attended | None:
        """The last three."""
        if self.projected is None or self.found is None or self.logsumexp is None:
            return None
        return Attended(self.projected, self.found, self.logsumexp)


LEVEL = 3
"""Fields of `Saved` from which the others can be computed again."""


class FusedTrip(torch.autograd.Function):
    """Hidden states and what each layer sees of the past; to levels, and keys and values."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        route: Route,
        _tap: Tensor,
        _handle: Tensor | None,
        hidden: Float[Tensor, "batch queries width"],
        *past: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Every layer's output, then every layer's own keys and values; None where it has none."""
        ctx.set_materialize_grads(False)
        shape, layers = hidden.shape, route.own_layers
        seeds = new_seeds(route, hidden.device)
        outputs: list[Tensor] = []
        contexts: list[Tensor | None] = []
        kept: list[Tensor | None] = [seeds]
        level = _norm(layers[0], hidden.flatten(0, 1).contiguous(), None, None, route.dtype)
        for number, (layer, seen) in enumerate(zip(layers, route.pasts(past), strict=True)):
            seed = None if seeds is None else seeds[number]
            saved, addend = _through(route, layer, level, shape, seen, seed)
            kept += saved[:LEVEL] if route.recompute else saved
            contexts += route.attending.own(saved.projected, shape)
            if number + 1 < len(layers):
                level = _norm(
                    layers[number + 1], saved.middle, addend, layer.contract_bias, route.dtype
                )
                total = level[0]
            else:
                total = norm.add(saved.middle, addend, layer.contract_bias)
            outputs.append(total.view(shape))
        ctx.route, ctx.shape, ctx.num_past = route, shape, len(past)
        ctx.save_for_backward(*kept, *past)
        return *outputs, *contexts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the hidden states and the past; the weights' are added to their sums."""
        route, shape = ctx.route, ctx.shape
        layers = route.own_layers
        route.shared.join_backward_pass()
        seeds, *kept = ctx.saved_tensors
        past = kept[len(kept) - ctx.num_past :]
        size = LEVEL if route.recompute else len(Saved._fields)
        levels, contexts = gradients[: len(layers)], gradients[len(layers) :]
        wants_past = ctx.needs_input_grad[2] or any(ctx.needs_input_grad[4:])
        pasts = PastGradients(route, route.pasts(past), is_wanted=wants_past)
        d_total = torch.zeros_like(kept[0]) if levels[-1] is None else levels[-1]
        d_total = d_total.reshape(kept[0].shape)
        d_addend: Tensor | None = norm.add_backward(
            d_total, sums=layers[-1].contract_bias_sums.parts, addend_dtype=route.dtype
        )
        for number in reversed(range(len(layers))):
            layer, own = layers[number], kept[number * size : (number + 1) * size]
            seed = None if seeds is None else seeds[number]
            if route.recompute:
                total, normed, *_ = _norm(layer, own[0], None, None, route.dtype)
                level = (total, normed, *own[1:])
                saved, _ = _through(route, layer, level, shape, pasts.seen[number], seed)
            else:
                saved = Saved(*own)
            assert d_addend is not None
            d_own = contexts[2 * number : 2 * number + 2]
            d_total, d_normed = _back(
                route, number, saved, d_total, d_addend, d_own, shape, seed, pasts
            )
            # The level below is this layer's input and, above layer 0, an output of the trip.
            d_below = levels[number - 1] if number else None
            if d_below is not None:
                d_below = d_below.reshape(d_total.shape)
            addend_dtype = route.dtype if number else None
            if d_normed is not None:
                d_total, d_addend = norm.backward(
                    d_total,
                    d_normed,
                    saved.total,
                    layer.layer.attention_norm.weight,
                    saved.mean,
                    saved.scale,
                    sums=layer.attention_norm_sums.parts,
                    addend_dtype=addend_dtype,
                    d_more=d_below,
                )
            elif addend_dtype is not None:
                d_total = d_total if d_below is None else d_total + d_below
                d_addend = norm.add_backward(
                    d_total,
                    sums=layers[number - 1].contract_bias_sums.parts,
                    addend_dtype=addend_dtype,
                )
        return None, None, None, d_total.view(shape), *pasts.finish()


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
        if seen[0] is not None and not route.attending.attends_self:
            self.notes = route.attending.new_notes(seen[0], len(route.layers))

    def target(self, number: int) -> KeysValues | None:
        """Where the gradients of one past go; None where nobody wants them."""
        seen = self.seen[number]
        if seen is None or not self._is_wanted:
            return None
        if self._route.slots:
            return self._route.slots[number].gradients
        empty = partial(torch.empty_like, memory_format=torch.contiguous_format)
        self._new[number] = seen.map(empty)
        return self._new[number]

    def finish(self) -> list[Tensor | None]:
        """Sum up the notes; the gradients of all tensors of the past that autograd follows."""
        route = self._route
        numbers = range(1 if route.shares_past else len(route.layers))
        if self.notes is not None:
            for number in numbers:
                layers = (
                    range(len(route.layers)) if route.shares_past else range(number, number + 1)
                )
                seen, found = self.seen[number], self.target(number)
                if seen is not None and found is not None:
                    first = seen.num_tokens - found.num_tokens
                    self.notes.sum_keys(layers, *found, first_key=first, adds=bool(route.slots))
            self.notes.sum_table(route.shared.table_sums.parts)
        if route.slots or self.seen[0] is None:
            return []
        return [part for number in numbers for part in self._new.get(number, (None, None))]


def new_seeds(route: Route, device: torch.device) -> Tensor | None:
    """Two seeds per layer, drawn on the device from the generator that all dropout shares."""
    if route.attending.dropout == 0:
        return None
    return torch.randint(2**31, (len(route.layers), 2), device=device)


def _norm(
    layer: SharedLayer,
    hidden: Tensor,
    addend: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of what comes in, and a layer's first norm of it: total, normed, mean, scale."""
    own = layer.layer.attention_norm
    return norm.forward(hidden, addend, bias, own.weight, own.bias, eps=own.eps, dtype=dtype)


def _through(
    route: Route,
    layer: SharedLayer,
    level: tuple[Tensor, Tensor, Tensor, Tensor],
    shape: torch.Size,
    past: KeysValues | None,
    seed: Tensor | None,
) -> tuple[Saved, Tensor]:
    """Both sublayers; what the second one adds is left to the reader of the sum."""
    total, normed, mean, scale = level
    attended = route.attending.forward(layer, normed, shape, past, seed)
    addend = None if attended is None else attended.found @ layer.output.weight.T
    own, dropout = layer.layer.feed_forward_norm, route.attending.dropout
    middle, middle_normed, *middle_norm = norm.forward(
        total, addend, None, own.weight, own.bias, eps=own.eps, dtype=route.dtype
    )
    # What lies inside the feed-forward sublayer is dropout(ReLU(expand(x))).
    if dropout == 0:
        inner = torch._addmm_activation(layer.expand_bias, middle_normed, layer.expand.weight.T)
    else:
        assert seed is not None
        inner = middle_normed @ layer.expand.weight.T
        activation.relu_dropout_(inner, layer.expand_bias, dropout=dropout, seed=seed[1:])
    saved = Saved(
        *(total, mean, scale, normed),
        *(middle, *middle_norm, middle_normed, inner),
        *(attended or (None, None, None)),
    )
    return saved, inner @ layer.contract.weight.T


def _back(
    route: Route,
    number: int,
    saved: Saved,
    d_total: Tensor,
    d_addend: Tensor,
    d_own: Sequence[Tensor | None],
    shape: torch.Size,
    seed: Tensor | None,
    pasts: PastGradients,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the level below a layer and of its norm, from that of the layer's output.

    `d_total` is the gradient of the output, `d_addend` the same in the dtype of products, and
    `d_own` are those of the layer's own keys and values. None: there was nothing to attend to.
    """
    layer, attending = route.own_layers[number], route.attending
    layer.contract.add(saved.inner, d_addend)
    d_inner = gated_product(
        d_addend,
        layer.contract.weight,
        saved.inner,
        scale=1 / (1 - attending.dropout),
        sums=layer.expand_bias_sums.parts,
    )
    layer.expand.add(saved.middle_normed, d_inner)
    attended = saved.attended
    d_total, d_attended = norm.backward(
        d_total,
        d_inner @ layer.expand.weight,
        saved.middle,
        layer.layer.feed_forward_norm.weight,
        saved.middle_mean,
        saved.middle_scale,
        sums=layer.feed_forward_norm_sums.parts,
        addend_dtype=None if attended is None else route.dtype,
    )
    if attended is None or d_attended is None:
        return d_total, None
    layer.output.add(attended.found, d_attended)
    d_found, past = d_attended @ layer.output.weight, pasts.seen[number]
    if pasts.notes is None:
        d_projected = attending.backward(
            attended,
            past,
            d_found,
            d_own,
            shape,
            seed,
            d_past=pasts.target(number),
            adds=bool(route.slots),
        )
    else:
        assert past is not None
        d_projected = attending.noting_backward(
            attended, past, d_found, shape, seed, notes=pasts.notes, number=number
        )
    layer.projection.add(saved.normed, d_projected)
    return d_total, d_projected @ layer.projection.weight
