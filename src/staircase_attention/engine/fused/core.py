"""A core whose steps are fused: the same function as `Core`, for one forward pass."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.attention import View
from staircase_attention.engine.fused.attending import Attending
from staircase_attention.engine.fused.cache import BufferedCache, Lent
from staircase_attention.engine.fused.trip import FusedTrip, Route
from staircase_attention.engine.fused.weights import SharedCore
from staircase_attention.engine.kernels import norm
from staircase_attention.layers.core import Core, Trip
from staircase_attention.layers.keys_values import Cache, JoinedCache, KeysValues, join, split_heads
from staircase_attention.models.backend import RecomputedCore


class FusedCore:
    """A core with its weights cast once; built for every forward pass."""

    def __init__(self, core: Core, *, dtype: torch.dtype, recompute: bool) -> None:
        self.core = core
        self.plain = RecomputedCore(core) if recompute else core
        self.attends_self = core.attends_self
        self.shares_past = core.memory.shares_keys_values
        self.dtype = dtype
        self.recompute = recompute
        self.shared = SharedCore(core, dtype)
        self.tap = self.shared.new_tap()
        attention = core.typed_layers[0].attention
        self.num_heads = attention.num_heads
        self.dropout = attention.dropout if core.training else 0.0

    def __call__(
        self,
        hidden: Float[Tensor, "batch queries width"],
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """Take queries through some layers, each with its own past: pieces in order of time."""
        if view.has_gaps:
            # The kernels take keys that are neighbours in time; all others are the plain core's.
            pieces = [[_tracked(piece) for piece in own] for own in past]
            return self.plain(hidden, layers=layers, past=pieces, view=view)
        # Where all layers see the same past, what is seen by one is seen by all.
        different = past[:1] if self.shares_past else past
        seen = [self._seen(pieces) for pieces in different if pieces]
        lent = [pair for pair in seen if isinstance(pair, Lent)]
        flat = [] if lent else [part for pair in seen for part in pair]
        route = Route(
            shared=self.shared,
            layers=layers,
            attending=Attending(
                table=self.shared.table,
                table_sums=self.shared.table_sums,
                view=view,
                num_heads=self.num_heads,
                attends_self=self.attends_self,
                dropout=self.dropout,
            ),
            slots=tuple(pair.slot for pair in lent),
            shares_past=self.shares_past,
            dtype=self.dtype,
            recompute=self.recompute,
        )
        handle = lent[0].handle if lent else None
        with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]
            outputs = FusedTrip.apply(route, self.tap, handle, hidden, *flat)  # type: ignore[no-untyped-call]
        levels, contexts = outputs[: len(layers)], outputs[len(layers) :]
        own = [
            [] if keys is None else [KeysValues(keys, values)]
            for keys, values in zip(contexts[::2], contexts[1::2], strict=True)
        ]
        if self.shares_past:
            seen = seen * len(layers)
        before = [[pair] for pair in seen] or [[] for _ in layers]
        return Trip([hidden, *levels], [[*old, *new] for old, new in zip(before, own, strict=True)])

    def _seen(self, pieces: Sequence[KeysValues]) -> KeysValues:
        """Pieces as one: in place, if there is only one and it lies in a buffer; else a copy."""
        if len(pieces) == 1 and isinstance(pieces[0], Lent):
            return pieces[0]
        return join([_tracked(piece) for piece in pieces]).map(self._cast)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype)

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """The cache of a stream, to which at most `num_new` tokens will be added."""
        if not torch.is_grad_enabled():
            return JoinedCache(held, positions)
        return BufferedCache(held, positions, num_new=num_new, dtype=self.dtype, tap=self.tap)

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values of cached tokens: for each layer, or one pair for all."""
        remembered = self.core.memory.remember(levels)
        with torch.cuda.device_of(remembered):  # type: ignore[no-untyped-call]
            parts = FusedFreezing.apply(self.shared, self.tap, remembered, self.num_heads)  # type: ignore[no-untyped-call]
        return [KeysValues(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def _tracked(piece: KeysValues) -> KeysValues:
    return piece.tracked() if isinstance(piece, Lent) else piece


class FusedFreezing(torch.autograd.Function):
    """Keys and values of cached tokens, of every layer or one pair for all: project(norm(x))."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        shared: SharedCore,
        _tap: Tensor,
        remembered: Float[Tensor, "batch time width"],
        num_heads: int,
    ) -> tuple[Tensor, ...]:
        """Keys and values, layer by layer."""
        ctx.set_materialize_grads(False)
        flat = remembered.flatten(0, 1).contiguous()
        outputs, kept = [], []
        for freezing in shared.freezings:
            own = freezing.norm
            _, normed, mean, scale = norm.forward(
                flat,
                None,
                None,
                own.weight,
                own.bias,
                eps=own.eps,
                dtype=freezing.matrix.weight.dtype,
            )
            kept += [normed, mean, scale]
            projected = (normed @ freezing.matrix.weight.T).view(*remembered.shape[:2], -1)
            outputs += [split_heads(part, num_heads) for part in projected.chunk(2, dim=-1)]
        ctx.shared, ctx.shape = shared, remembered.shape
        ctx.save_for_backward(flat, *kept)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The gradient of the tokens; the weights' are added to their sums."""
        ctx.shared.join_backward_pass()
        flat, *kept = ctx.saved_tensors
        d_total: Tensor | None = None
        for number, freezing in enumerate(ctx.shared.freezings):
            pair = gradients[2 * number : 2 * number + 2]
            given = [gradient for gradient in pair if gradient is not None]
            if not given:
                continue
            normed, mean, scale = kept[3 * number : 3 * number + 3]
            d_heads = [torch.zeros_like(given[0]) if one is None else one for one in pair]
            by_time = torch.cat([one.transpose(1, 2) for one in d_heads], dim=2)
            d_flat = by_time.flatten(2).flatten(0, 1)
            freezing.matrix.add(normed, d_flat)
            d_total, _ = norm.backward(
                d_total,
                d_flat @ freezing.matrix.weight,
                flat,
                freezing.norm.weight,
                mean,
                scale,
                sums=freezing.norm_sums.parts,
                addend_dtype=None,
            )
        return None, None, None if d_total is None else d_total.view(ctx.shape), None
