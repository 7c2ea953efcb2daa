"""A core whose steps are fused: the same function as `Core`, for one forward pass.

Forward and backward are written by hand. The output of a product is added where the next norm
reads it, so that the hidden state is written once per sublayer; the backward pass is cut at the
same points. Nothing waits for the device, so that a whole update can be captured. Shapes: `rows`
are all queries of all batch rows, one after another. Hidden states and their gradients are float32
(or the dtype they came in), products are in `SharedCore.dtype`, and the gradients of weights are
summed in float32.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.attention import View
from staircase_attention.engine.fused.cache import BufferedCache, Lent
from staircase_attention.engine.fused.route import Attended, PastGradients, Route
from staircase_attention.engine.fused.weights import FusedFreezing, Level, SharedCore, SharedLayer
from staircase_attention.engine.kernels import norm
from staircase_attention.layers.core import Core, Trip
from staircase_attention.layers.keys_values import Cache, KeysValues, join
from staircase_attention.models.backend import RecomputedCore


class FusedCore:
    """A core with its weights cast once; built for every forward pass."""

    def __init__(self, core: Core, *, dtype: torch.dtype, recompute: bool) -> None:
        self.core = core
        self.plain = RecomputedCore(core) if recompute else core
        self.shared = SharedCore(core, dtype=dtype, recompute=recompute)
        self.tap = self.shared.new_tap()

    def __call__(
        self,
        hidden: Float[Tensor, "batch queries width"],
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """Take queries through some layers, each with its own past: pieces in order of time."""
        if view.has_gaps or (view.num_queries > 1 and not self.core.attends_self):
            # The plain core's: keys with gaps between them, and several queries without their own.
            pieces = [[_tracked(piece) for piece in own] for own in past]
            return self.plain(hidden, layers=layers, past=pieces, view=view)
        # Where all layers see the same past, what is seen by one is seen by all.
        shares_past = self.shared.shares_past
        seen = [self._seen(pieces) for pieces in (past[:1] if shares_past else past) if pieces]
        lent = [pair for pair in seen if isinstance(pair, Lent)]
        flat = [] if lent else [part for pair in seen for part in pair]
        slots = tuple(pair.slot for pair in lent)
        route = Route(self.shared, layers, hidden.shape, view, slots)
        # By the handle autograd runs the backward of all readers before that of the write.
        handle = lent[0].handle if lent else None
        with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]
            outputs = FusedTrip.apply(route, self.tap, handle, hidden, *flat)  # type: ignore[no-untyped-call]
        levels, contexts = outputs[: len(layers)], outputs[len(layers) :]
        own = [
            [] if keys is None else [KeysValues(keys, values)]
            for keys, values in zip(contexts[::2], contexts[1::2], strict=True)
        ]
        if shares_past:
            seen = seen * len(layers)
        before = [[pair] for pair in seen] or [[] for _ in layers]
        return Trip([hidden, *levels], [[*old, *new] for old, new in zip(before, own, strict=True)])

    def _seen(self, pieces: Sequence[KeysValues]) -> KeysValues:
        """Pieces as one: in place, if there is only one and it lies in a buffer; else a copy."""
        if len(pieces) == 1 and isinstance(pieces[0], Lent):
            return pieces[0]
        joined = join([_tracked(piece) for piece in pieces])
        return joined.map(lambda tensor: tensor.to(self.shared.dtype))

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """The cache of a stream, to which at most `num_new` tokens will be added."""
        if not torch.is_grad_enabled():
            return Cache(held, positions)
        return BufferedCache(
            held, positions, num_new=num_new, dtype=self.shared.dtype, tap=self.tap
        )

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values of cached tokens: for each layer, or one pair for all."""
        remembered = self.core.memory.remember(levels)
        with torch.cuda.device_of(remembered):  # type: ignore[no-untyped-call]
            parts = FusedFreezing.apply(self.shared, self.tap, remembered)  # type: ignore[no-untyped-call]
        return [KeysValues(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def _tracked(piece: KeysValues) -> KeysValues:
    return piece.tracked() if isinstance(piece, Lent) else piece


# What the backward pass needs of one layer: the level below it, the level between its sublayers,
# what the feed-forward sublayer keeps, and what attention leaves, if there is anything to see.
Saved: TypeAlias = tuple[Level, Level, Tensor, Attended | None]
# Its tensors, and what stands for the last three where there is nothing to attend to.
SIZE, NOTHING = 12, (None, None, None)


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
        shared, layers = route.shared, route.own_layers
        seeds = None
        if any(one.attention_dropout + one.feed_forward.dropout for one in layers):
            # Two per layer, drawn on the device from the generator that all dropout shares.
            seeds = torch.randint(2**31, (len(layers), 2), device=hidden.device)
        outputs: list[Tensor] = []
        contexts: list[Tensor | None] = []
        kept: list[Tensor | None] = [seeds]
        flat = hidden.flatten(0, 1).contiguous()
        # total = hidden; normed = norm(total). What a layer adds to the total comes as `addend`
        # and is added by the norm of the next one: total = middle + addend + bias.
        level = layers[0].attention_norm.forward(flat)
        for number, (layer, seen) in enumerate(zip(layers, route.pasts(past), strict=True)):
            seed = None if seeds is None else seeds[number]
            (_, between, inner, attended), addend = _through(route, layer, level, seen, seed)
            # The rest can be computed from the hidden state below the layer again.
            rest = () if shared.recompute else (*level[1:], *between, inner, *(attended or NOTHING))
            kept += [level[0], *rest]
            contexts += route.own_keys_values(attended)
            if number + 1 < len(layers):
                level = layers[number + 1].attention_norm.forward(between[0], addend)
                total = level[0]
            else:
                total = norm.add(between[0], addend, layer.feed_forward.last_bias)
            outputs.append(total.view(hidden.shape))
        ctx.route, ctx.num_past = route, len(past)
        ctx.save_for_backward(*kept, *past)
        return *outputs, *contexts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the hidden states and the past; the weights' are added to their sums."""
        route: Route = ctx.route
        shared, layers = route.shared, route.own_layers
        shared.join_backward_pass()
        seeds, *kept = ctx.saved_tensors
        past = kept[len(kept) - ctx.num_past :]
        size = 1 if shared.recompute else SIZE
        levels, contexts = gradients[: len(layers)], gradients[len(layers) :]
        # Slots of a buffer are wanted through their handle, other pasts for themselves.
        wants_past = ctx.needs_input_grad[2] or any(ctx.needs_input_grad[4:])
        pasts = PastGradients(route, route.pasts(past), is_wanted=wants_past)
        d_total = torch.zeros_like(kept[0]) if levels[-1] is None else levels[-1]
        d_total = d_total.reshape(kept[0].shape)
        d_addend: Tensor | None = layers[-1].feed_forward.add_backward(d_total)
        for number in reversed(range(len(layers))):
            layer, own = layers[number], kept[number * size : (number + 1) * size]
            seed = None if seeds is None else seeds[number]
            if shared.recompute:
                level = layer.attention_norm.forward(*own)
                saved, _ = _through(route, layer, level, pasts.seen[number], seed)
            else:
                attended = None if own[9] is None else own[9:]
                saved = own[:4], own[4:8], own[8], attended
            # d_total: gradient of the hidden state [rows, width]; d_addend: its copy in the dtype
            # of products, from which those of this layer's weights are summed.
            assert d_addend is not None
            d_own = contexts[2 * number : 2 * number + 2]
            d_total, d_normed = _back(route, number, saved, d_total, d_addend, d_own, seed, pasts)
            # The level below is this layer's input and, above layer 0, an output of the trip.
            d_below = levels[number - 1] if number else None
            if d_below is not None:
                d_below = d_below.reshape(d_total.shape)
            if d_normed is not None:
                d_total, d_addend = layer.attention_norm.backward(
                    d_total, d_normed, saved[0], has_addend=number > 0, d_more=d_below
                )
            elif number:
                d_total = d_total if d_below is None else d_total + d_below
                d_addend = layers[number - 1].feed_forward.add_backward(d_total)
        return None, None, None, d_total.view(route.shape), *pasts.finish()


def _through(
    route: Route, layer: SharedLayer, level: Level, past: KeysValues | None, seed: Tensor | None
) -> tuple[Saved, Tensor]:
    """Both sublayers; what the second one adds is left to the reader of the sum."""
    attended = route.attend(layer, level[1], past, seed)
    addend = None if attended is None else attended[1] @ layer.output.weight.T
    between = layer.feed_forward_norm.forward(level[0], addend)
    inner, addend = layer.feed_forward.forward(between[1], None if seed is None else seed[1:])
    return (level, between, inner, attended), addend


def _back(
    route: Route,
    number: int,
    saved: Saved,
    d_total: Tensor,
    d_addend: Tensor,
    d_own: Sequence[Tensor | None],
    seed: Tensor | None,
    pasts: PastGradients,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the level below a layer and of its norm, from that of the layer's output.

    `d_total` is the gradient of the output, `d_addend` the same in the dtype of products, and
    `d_own` are those of the layer's own keys and values. None: there was nothing to attend to.
    """
    layer, (below, between, inner, attended) = route.own_layers[number], saved
    # y = total + out(attention(norm(total))); output = y + feed_forward(norm(y)): from the last
    # product to the first, each adds its weights' gradient and passes its input's on.
    d_normed = layer.feed_forward.backward(
        inner, between[1], d_addend, None if seed is None else seed[1:]
    )
    d_total, d_attended = layer.feed_forward_norm.backward(
        d_total, d_normed, between, has_addend=attended is not None
    )
    if attended is None or d_attended is None:
        return d_total, None
    layer.output.add(attended[1], d_attended)
    d_found = d_attended @ layer.output.weight
    d_projected = route.attend_backward(number, attended, d_found, d_own, seed, pasts)
    layer.projection.add(below[1], d_projected)
    return d_total, d_projected @ layer.projection.weight
