"""A step through the core with everything fused that can be, forward and backward by hand.

What a product gives is added where the next norm reads it, so that the hidden state is written
once a sublayer; the backward keeps to the same joints. Nothing waits for the device, so that a
whole update can be captured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.attention import View
from staircase_attention.engine.fused.buffer import Place
from staircase_attention.engine.fused.shared import SharedCore, SharedLayer
from staircase_attention.engine.fused.sublayers import Attending, FeedingForward, Found
from staircase_attention.engine.kernels import norm
from staircase_attention.engine.kernels.single_query import Notes
from staircase_attention.layers.keys_values import KeysValues


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where a trip goes, and how."""

    shared: SharedCore
    layers: range
    view: View
    num_heads: int
    attends_self: bool
    has_past: bool
    """Whether layers see keys and values of a past."""
    lent: tuple[Place, ...]
    """Where these lie in a buffer; empty if they do not."""
    shares_past: bool
    """Whether all layers see the same ones."""
    dropout: float
    dtype: torch.dtype
    """The numbers of products."""
    recompute: bool
    """Whether the backward computes anew what lies between two layers' outputs."""

    @property
    def own_layers(self) -> list[SharedLayer]:
        """The layers it goes through."""
        return [self.shared.layers[index] for index in self.layers]

    @property
    def attending(self) -> Attending:
        """How its attention is done."""
        return Attending(
            table=self.shared.table,
            table_sums=self.shared.table_sums,
            view=self.view,
            num_heads=self.num_heads,
            attends_self=self.attends_self,
            dropout=self.dropout,
        )

    def new_notes(self, past: Sequence[Tensor]) -> Notes | None:
        """For a backward in which queries see only the past; None where they see themselves too."""
        seen = self.past_of(0, past)
        if self.attends_self or seen is None:
            return None
        return self.attending.new_notes(seen, len(self.layers))

    def past_of(self, number: int, past: Sequence[Tensor]) -> KeysValues | None:
        """What the layer of this number, counted on the way, sees of the past."""
        if self.lent:
            return self.lent[self.number_of(number)].held
        return KeysValues(*past[self.places_of(number)]) if self.has_past else None

    def number_of(self, number: int) -> int:
        """Which of the different pasts a layer sees."""
        return 0 if self.shares_past else number

    def places_of(self, number: int) -> slice:
        """Where the past of a layer stands among all layers'."""
        first = 2 * self.number_of(number)
        return slice(first, first + 2)


class Level(NamedTuple):
    """The hidden state between two layers, and its norm."""

    total: Float[Tensor, "rows width"]
    mean: Float[Tensor, " rows"]
    scale: Float[Tensor, " rows"]


class Between(NamedTuple):
    """What the backward needs of a layer's forward, besides the level below it."""

    normed: Float[Tensor, "rows width"]
    middle: Level
    """The hidden state between the sublayers."""
    middle_normed: Float[Tensor, "rows width"]
    inner: Float[Tensor, "rows inner"]
    found: Found | None
    """What attention found; None where there was nothing to attend to."""

    @property
    def flat(self) -> list[Tensor | None]:
        """All of it as tensors in a row."""
        found = [None] * len(Found._fields) if self.found is None else list(self.found)
        return [self.normed, *self.middle, self.middle_normed, self.inner, *found]

    @classmethod
    def of(cls, flat: Sequence[Tensor]) -> "Between":
        """The inverse of `flat`."""
        normed, total, mean, scale, middle_normed, inner, *found = flat
        middle = Level(total, mean, scale)
        return cls(
            normed, middle, middle_normed, inner, None if found[0] is None else Found(*found)
        )


SIZE_OF_BETWEEN = 6 + len(Found._fields)
"""Tensors in a row that make one."""


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
        layers = route.own_layers
        seeds = new_seeds(route, hidden.device)
        total = hidden.flatten(0, 1).contiguous()
        normed, level = _norm(layers[0], total, None, None, route.dtype)
        outputs: list[Tensor] = []
        contexts: list[Tensor | None] = []
        kept: list[Tensor | None] = [seeds]
        for number, layer in enumerate(layers):
            seed = None if seeds is None else seeds[number]
            between, addend = _through(
                route, layer, level, normed, hidden.shape, route.past_of(number, past), seed
            )
            kept += level if route.recompute else (*level, *between.flat)
            found = between.found
            if found is None or not route.attends_self:
                contexts += [None, None]
            else:
                contexts += route.attending.own(found, hidden.shape)
            if number + 1 < len(layers):
                normed, level = _norm(
                    layers[number + 1],
                    between.middle.total,
                    addend,
                    layer.contract_bias,
                    route.dtype,
                )
                total = level.total
            else:
                total = norm.add(between.middle.total, addend, layer.contract_bias)
            outputs.append(total.view(hidden.shape))
        ctx.route, ctx.shape, ctx.num_past = route, hidden.shape, len(past)
        ctx.save_for_backward(*kept, *past)
        return *outputs, *contexts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients for the hidden states and the past; the weights' go to their sums."""
        route, layers = ctx.route, ctx.route.own_layers
        route.shared.join_backward_pass()
        seeds, *kept = ctx.saved_tensors
        past = kept[len(kept) - ctx.num_past :]
        size = len(Level._fields) + (0 if route.recompute else SIZE_OF_BETWEEN)
        levels, contexts = gradients[: len(layers)], gradients[len(layers) :]
        d_past: list[Tensor | None] = [None] * ctx.num_past
        wants_past = ctx.needs_input_grad[2] or any(ctx.needs_input_grad[4:])
        notes = route.new_notes(past)
        d_total = _whole(levels[-1], ctx.shape, kept[0])
        d_addend: Tensor | None = norm.add_backward(
            d_total, sums=layers[-1].contract_bias_sums.parts, addend_dtype=route.dtype
        )
        for number in reversed(range(len(layers))):
            layer, own = layers[number], kept[number * size : (number + 1) * size]
            level, seed = Level(*own[:3]), None if seeds is None else seeds[number]
            if route.recompute:
                normed, _ = _norm(layer, level.total, None, None, route.dtype)
                seen = route.past_of(number, past)
                between, _ = _through(route, layer, level, normed, ctx.shape, seen, seed)
            else:
                between = Between.of(own[3:])
            own_pair = slice(2 * number, 2 * number + 2)
            assert d_addend is not None
            d_seen = None
            if wants_past and notes is None:
                d_seen = _past_gradients(route, number, past, d_past)
            d_total, d_normed = _back(
                route,
                number,
                between,
                d_total,
                d_addend,
                contexts[own_pair],
                route.past_of(number, past),
                seed,
                shape=ctx.shape,
                d_seen=d_seen,
                notes=notes,
            )
            d_below = levels[number - 1] if number else None
            if d_below is not None:
                d_below = d_below.reshape(d_total.shape)
            addend_dtype = route.dtype if number else None
            if d_normed is not None:
                d_total, d_addend = norm.backward(
                    d_total,
                    d_normed,
                    level.total,
                    layer.layer.attention_norm.weight,
                    level.mean,
                    level.scale,
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
        if notes is not None:
            if wants_past:
                _sum_past(route, notes, past, d_past)
            notes.sum_table(route.shared.table_sums.parts)
        return None, None, None, d_total.view(ctx.shape), *d_past


def new_seeds(route: Route, device: torch.device) -> Tensor | None:
    """Two seeds a layer, drawn on the device from the generator that all dropout has in common."""
    if route.dropout == 0:
        return None
    return torch.randint(2**31, (len(route.layers), 2), device=device)


def _norm(
    layer: SharedLayer,
    hidden: Tensor,
    addend: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Level]:
    """The first norm of a layer, over the sum of what comes in."""
    own = layer.layer.attention_norm
    total, normed, mean, scale = norm.forward(
        hidden, addend, bias, own.weight, own.bias, eps=own.eps, dtype=dtype
    )
    return normed, Level(total, mean, scale)


def _through(
    route: Route,
    layer: SharedLayer,
    level: Level,
    normed: Tensor,
    shape: torch.Size,
    past: KeysValues | None,
    seed: Tensor | None,
) -> tuple[Between, Tensor]:
    """Both sublayers; what the second one adds is left to whoever reads the sum."""
    attended = None
    found = route.attending.forward(layer, normed, shape, past, seed)
    if found is not None:
        attended = found.found @ layer.output.weight.T
    own = layer.layer.feed_forward_norm
    middle, middle_normed, mean, scale = norm.forward(
        level.total, attended, None, own.weight, own.bias, eps=own.eps, dtype=route.dtype
    )
    inner = FeedingForward(layer, route.dropout).forward(middle_normed, seed)
    between = Between(normed, Level(middle, mean, scale), middle_normed, inner, found)
    return between, inner @ layer.contract.weight.T


def _back(
    route: Route,
    number: int,
    between: Between,
    d_total: Tensor,
    d_addend: Tensor,
    d_own: Sequence[Tensor | None],
    past: KeysValues | None,
    seed: Tensor | None,
    *,
    shape: torch.Size,
    d_seen: KeysValues | None,
    notes: Notes | None,
) -> tuple[Tensor, Tensor | None]:
    """From what a layer gave, to the level below it and its norm; the past's are put in place.

    With notes, these are left to them.
    """
    layer = route.own_layers[number]
    d_middle_normed = FeedingForward(layer, route.dropout).backward(
        between.middle_normed, between.inner, d_addend
    )
    d_total, d_attended = norm.backward(
        d_total,
        d_middle_normed,
        between.middle.total,
        layer.layer.feed_forward_norm.weight,
        between.middle.mean,
        between.middle.scale,
        sums=layer.feed_forward_norm_sums.parts,
        addend_dtype=None if between.found is None else route.dtype,
    )
    if between.found is None or d_attended is None:
        return d_total, None
    layer.output.add(between.found.found, d_attended)
    d_found = d_attended @ layer.output.weight
    if notes is None:
        d_projected = route.attending.backward(
            between.found, past, d_found, d_own, shape, seed, d_past=d_seen, adds=bool(route.lent)
        )
    else:
        assert past is not None
        d_projected = route.attending.noting_backward(
            between.found, past, d_found, shape, seed, notes=notes, number=number
        )
    layer.projection.add(between.normed, d_projected)
    return d_total, d_projected @ layer.projection.weight


def _past_gradients(
    route: Route, number: int, past: Sequence[Tensor], d_past: list[Tensor | None]
) -> KeysValues | None:
    """Where a layer's gradients of its past go: to those in a buffer they are added."""
    if route.lent:
        return route.lent[route.number_of(number)].gradients
    seen = route.past_of(number, past)
    if seen is None:
        return None
    found = seen.map(partial(torch.empty_like, memory_format=torch.contiguous_format))
    d_past[route.places_of(number)] = found
    return found


def _sum_past(
    route: Route, notes: Notes, past: Sequence[Tensor], d_past: list[Tensor | None]
) -> None:
    """Put gradients of the past in place: once for all layers, where these see the same one."""
    numbers = range(len(route.layers))
    shares = [numbers] if route.shares_past else [numbers[one : one + 1] for one in numbers]
    for layers in shares:
        seen = route.past_of(layers.start, past)
        found = _past_gradients(route, layers.start, past, d_past)
        if seen is not None and found is not None:
            first = seen.num_tokens - found.num_tokens
            notes.sum_keys(layers, *found, first_key=first, adds=bool(route.lent))


def _whole(gradient: Tensor | None, shape: torch.Size, like: Tensor) -> Tensor:
    """The gradient of the last level, row by row; nothing may have come."""
    if gradient is None:
        return torch.zeros_like(like)
    return gradient.reshape(-1, shape[-1])
