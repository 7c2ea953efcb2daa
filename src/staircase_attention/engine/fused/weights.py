"""Weights that many steps of one forward pass share: cast once, their gradients summed once.

A step's backward adds to sums that live here and returns none to autograd. Every step takes in a
*tap*, a scalar that depends on all parameters; its own backward comes after those of all steps and
returns the finished sums. Sums are in float32, made by products or by a fixed number of programs
in a fixed order: the same inputs give the same bits.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from staircase_attention.attention import View
from staircase_attention.engine.kernels import activation, norm, relative_attention
from staircase_attention.engine.kernels.activation import gated_product
from staircase_attention.engine.kernels.cross_entropy import add_product
from staircase_attention.layers.core import Core
from staircase_attention.layers.keys_values import split_heads
from staircase_attention.layers.layer import FeedForward, Layer
from staircase_attention.layers.positions import RotaryPositions

# A product is launched for at least this many rows; fewer are collected first.
ENOUGH_ROWS = 4096

# A sum, its norm, and the mean (of layer norms) and scale of every row.
Level = tuple[Tensor, Tensor, Tensor | None, Tensor]


class SharedMatrix:
    """Matrices of weights below one another, and the sum of their gradients."""

    def __init__(
        self, parameters: Sequence[Tensor], weight: Float[Tensor, "outputs inputs"]
    ) -> None:
        self.weight = weight
        """The parameters, in the dtype of products."""
        self._parameters = parameters
        self._total: Float[Tensor, "outputs inputs"] | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._num_waiting = 0

    @classmethod
    def of(cls, parameters: Sequence[Tensor], dtype: torch.dtype) -> "SharedMatrix":
        """Parameters, cast."""
        return cls(parameters, _joined([one.to(dtype) for one in parameters]))

    def add(
        self, inputs: Float[Tensor, "rows inputs"], gradients: Float[Tensor, "rows outputs"]
    ) -> None:
        """Add gradientsᵀ @ inputs, later and together with others."""
        self._waiting.append((inputs, gradients))
        self._num_waiting += len(inputs)
        if self._num_waiting >= ENOUGH_ROWS:
            self._sum_up()

    def take(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Parameters and finished gradients; the next ones start from zero."""
        self._sum_up()
        assert self._total is not None
        parts = torch.split(self._total, [len(one) for one in self._parameters])
        self._total = None
        return zip(self._parameters, parts, strict=True)

    def _sum_up(self) -> None:
        if self._total is None:
            self._total = torch.zeros_like(self.weight, dtype=torch.float32)
        if self._waiting:
            inputs, gradients = map(_joined, zip(*self._waiting, strict=True))
            # [outputs, rows] · [rows, inputs], added in float32 whatever the dtype of both.
            add_product(self._total, gradients.T, inputs)
        self._waiting, self._num_waiting = [], 0


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class PartialSums:
    """The gradients of parameters of one size, one part per program.

    Allocated by the first backward step. In place of a parameter, None: nobody wants that one.
    """

    def __init__(
        self, parameters: Sequence[Tensor | None], *shape: int, device: torch.device
    ) -> None:
        self._parameters = parameters
        self._new = partial(torch.zeros, shape, dtype=torch.float32, device=device)
        self._parts: Tensor | None = None

    @property
    def parts(self) -> Float[Tensor, "programs ..."]:
        """What kernels add to."""
        if self._parts is None:
            self._parts = self._new()
        return self._parts

    def take(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Parameters and finished gradients; the next ones start from zero."""
        if all(one is None for one in self._parameters):
            return []
        totals = self.parts.sum(0).flatten().chunk(len(self._parameters))
        self._parts = None
        pairs = zip(self._parameters, totals, strict=True)
        return [(one, total.view(one.shape)) for one, total in pairs if one is not None]


Sums = SharedMatrix | PartialSums


class SharedNorm:
    """A norm of a sum, whose last addend comes with a bias of its own, and all gradients."""

    def __init__(
        self, own: nn.LayerNorm | nn.RMSNorm, dtype: torch.dtype, added: Tensor | None = None
    ) -> None:
        bias: Tensor | None = own.bias if isinstance(own, nn.LayerNorm) else None
        assert own.eps is not None
        self._forward = partial(
            norm.forward,
            weight=own.weight,
            bias=bias,
            eps=own.eps,
            dtype=dtype,
            centres=isinstance(own, nn.LayerNorm),
        )
        self._weight, self._added, self._dtype = own.weight, added, dtype
        shape, device = (norm.NUM_PROGRAMS, 3, len(own.weight)), own.weight.device
        self.sums = PartialSums([own.weight, bias, added], *shape, device=device)

    def forward(
        self, hidden: Float[Tensor, "rows width"], addend: Float[Tensor, "rows width"] | None = None
    ) -> Level:
        """Total (the sum of what is given), normed (in the dtype of products), mean and scale."""
        return self._forward(hidden, addend, None if addend is None else self._added)

    def backward(
        self,
        d_total: Tensor | None,
        d_normed: Tensor,
        level: Level,
        *,
        has_addend: bool,
        d_more: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of hidden and addend, from those of the total and of its norm."""
        total, _, mean, scale = level
        return norm.backward(
            *(d_total, d_normed, total, self._weight, mean, scale),
            sums=self.sums.parts,
            addend_dtype=self._dtype if has_addend else None,
            d_more=d_more,
        )


class Freezing(NamedTuple):
    """What turns cached tokens into keys and values."""

    norm: SharedNorm
    matrix: SharedMatrix


class SharedFeedForward:
    """The products of a feed-forward sublayer, what is between them, and all gradients.

    The last bias is added where the next norm reads the sum.
    """

    def __init__(self, own: FeedForward, dtype: torch.dtype) -> None:
        self.kind, self.dropout = own.kind, own.dropout if own.training else 0.0
        first = [own.gate, own.expand] if own.kind == "swiglu" else [own.expand]
        self.expand = SharedMatrix.of([one.weight for one in first], dtype)
        self.contract = SharedMatrix.of([own.contract.weight], dtype)
        self.last_bias: Tensor | None = own.contract.bias
        biases = [one.bias for one in first if one.bias is not None]
        self._bias = _joined([one.to(dtype) for one in biases]) if biases else None
        (inner, width), device = self.expand.weight.shape, self.expand.weight.device
        self._sums = PartialSums(biases, activation.NUM_PROGRAMS, inner, device=device)
        self._last_sums = PartialSums([self.last_bias], norm.NUM_PROGRAMS, width, device=device)
        self.sums: list[Sums] = [self.expand, self.contract, self._sums, self._last_sums]

    def forward(
        self, normed: Float[Tensor, "rows width"], seed: Tensor | None
    ) -> tuple[Float[Tensor, "rows inner"], Float[Tensor, "rows width"]]:
        """What the backward pass needs, and the addend: contract(dropout(activation(expand(x)))).

        Behind a ReLU, whose sign is all that it needs of ReLU and dropout; before a smooth one.
        """
        if self.kind == "relu" and self.dropout == 0 and self._bias is not None:
            inner = torch._addmm_activation(self._bias, normed, self.expand.weight.T)
            return inner, inner @ self.contract.weight.T
        before = normed @ self.expand.weight.T
        inner = activation.forward(before, self._bias, **self._options(seed))
        return before, inner @ self.contract.weight.T

    def backward(
        self,
        kept: Float[Tensor, "rows inner"],
        normed: Float[Tensor, "rows width"],
        d_addend: Float[Tensor, "rows width"],
        seed: Tensor | None,
    ) -> Float[Tensor, "rows width"]:
        """The gradient of the norm; those of the weights are added to their sums."""
        weight = self.contract.weight
        if self.kind == "relu":
            inner, parts = kept, self._sums.parts
            d_before = gated_product(d_addend, weight, kept, dropout=self.dropout, sums=parts)
        else:
            sums = None if self._bias is None else self._sums.parts
            inner, d_before = activation.backward(
                d_addend @ weight, kept, self._bias, sums=sums, **self._options(seed)
            )
        self.contract.add(inner, d_addend)
        self.expand.add(normed, d_before)
        return d_before @ self.expand.weight

    def add_backward(self, d_total: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """The gradient of the addend where no norm reads the sum; the last bias's is summed."""
        sums = None if self.last_bias is None else self._last_sums.parts
        return norm.add_backward(d_total, sums=sums, addend_dtype=self.contract.weight.dtype)

    def _options(self, seed: Tensor | None) -> dict[str, Any]:
        return {"kind": self.kind, "dropout": self.dropout, "seed": seed}


class SharedLayer:
    """One layer's weights in the dtype of products, and their gradients."""

    def __init__(self, layer: Layer, dtype: torch.dtype, added: Tensor | None) -> None:
        attention = layer.attention
        self.attention_dropout = attention.dropout if attention.training else 0.0
        projections = [one.weight for one in attention.projections]
        # It reads the sum to which the layer below adds; attention's output has no bias.
        self.attention_norm = SharedNorm(layer.attention_norm, dtype, added)
        self.projection = SharedMatrix.of(projections, dtype)
        self.output = SharedMatrix.of([attention.output.weight], dtype)
        self.feed_forward_norm = SharedNorm(layer.feed_forward_norm, dtype)
        self.feed_forward = SharedFeedForward(layer.feed_forward, dtype)
        # Frozen tokens have keys and values only.
        own = SharedMatrix(projections[1:], self.projection.weight[len(projections[0]) :])
        self.freezing = Freezing(self.attention_norm, own)
        norms = [self.attention_norm.sums, self.feed_forward_norm.sums]
        self.sums: list[Sums] = [*norms, self.projection, own, self.output, *self.feed_forward.sums]


class SharedCore:
    """A core's weights and settings for one forward pass, and the backward pass that follows it."""

    def __init__(self, core: Core, *, dtype: torch.dtype, recompute: bool) -> None:
        positions, config = core.positions, core.config
        assert positions is not None
        self.attends_self = core.attends_self
        """Whether queries see themselves, besides the past."""
        self.shares_past = core.memory.shares_keys_values
        """Whether all layers see the same past."""
        self.num_heads, self.num_groups = config.num_heads, config.key_value_heads
        """Heads of queries, and of keys and values."""
        self.dtype = dtype
        """Of products."""
        self.recompute = recompute
        """Whether the backward pass computes again what lies between two layers' outputs."""
        with torch.no_grad():
            self.layers: list[SharedLayer] = []
            for layer in core.typed_layers:
                added = self.layers[-1].feed_forward.last_bias if self.layers else None
                self.layers.append(SharedLayer(layer, dtype, added))
            self._sums = [sums for layer in self.layers for sums in layer.sums]
            self.freezings = [layer.freezing for layer in self.layers[: config.num_layers]]
            """One for each layer, or one for all."""
            if self.shares_past:
                own = [core.memory.key.weight, core.memory.value.weight]
                matrix = SharedMatrix.of(own, dtype)
                self.freezings = [Freezing(SharedNorm(core.memory.norm, dtype), matrix)]
                self._sums += [self.freezings[0].norm.sums, matrix]
            self.table = None if positions.table is None else positions.table.to(dtype)
        """None where positions are rotary."""
        self._positions, self._turns = positions, torch.empty(2, 0)
        if self.table is not None:
            shape = (relative_attention.NUM_TABLE_SUMS, *self.table.shape)
            self.table_sums = PartialSums([positions.table], *shape, device=self.table.device)
            self._sums.append(self.table_sums)
        self._backward_pass: int | None = None
        """Autograd's number of the pass whose gradients are being summed."""
        self._parameters = list(core.parameters())
        self._versions = self._current_versions()

    def turns(self, view: View) -> Float[Tensor, "2 places half"]:
        """Cosine and sine of the rotary angles, of at least as many places as a view has."""
        assert isinstance(self._positions, RotaryPositions)
        if self._turns.shape[1] < view.num_distances:
            self._turns = self._positions.turns(view).float()
        return self._turns

    def new_tap(self) -> Tensor:
        """What every step takes in. Not kept here: autograd's graph holds these weights already."""
        tap: Tensor = _Tap.apply(self, *self._parameters)  # type: ignore[no-untyped-call]
        return tap

    def join_backward_pass(self) -> None:
        """Begin to add a step's gradients; drop sums that are left of another pass.

        A pass that asks for other gradients only, or that fails, leaves its sums behind.
        """
        this = torch._C._current_graph_task_id()
        if self._backward_pass == this:
            return
        pairs = zip(self._parameters, self._versions, self._current_versions(), strict=True)
        for parameter, before, now in pairs:
            # As autograd raises for tensors that it saved.
            if before != now:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: a parameter of shape {list(parameter.shape)} is at "
                    f"version {now}; expected version {before} instead; run the backward pass "
                    "before the optimizer's step, or detach the state between segments"
                )
        if self._backward_pass is not None:
            # Of a pass that did not finish: discarded.
            self.take_gradients()
        self._backward_pass = this

    def _current_versions(self) -> list[int]:
        # Inference tensors count no changes, and take no gradients.
        return [0 if one.is_inference() else one._version for one in self._parameters]

    def take_gradients(self) -> list[Tensor | None]:
        """Those of all parameters, when every step has added its own; None: autograd finds it."""
        found: dict[Tensor, Tensor] = {}
        for sums in self._sums:
            for parameter, gradient in sums.take():
                # In two places: tied, added as a bias, or for keys and values of frozen tokens.
                if parameter in found:
                    found[parameter] += gradient
                else:
                    found[parameter] = gradient
        return [found[one].to(one.dtype) if one in found else None for one in self._parameters]


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shared: SharedCore, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        ctx.shared = shared
        ctx.set_materialize_grads(False)
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # Every step depends on the tap, so autograd gets here after all of them.
        ctx.shared.join_backward_pass()
        return None, *ctx.shared.take_gradients()


class FusedFreezing(torch.autograd.Function):
    """Keys and values of cached tokens, of every layer or one pair for all: project(norm(x)).

    The tokens [batch * time, width] and, for each pair, their norms are saved for the backward.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        shared: SharedCore,
        _tap: Tensor,
        remembered: Float[Tensor, "batch time width"],
    ) -> tuple[Tensor, ...]:
        """Keys and values, layer by layer."""
        ctx.set_materialize_grads(False)
        flat = remembered.flatten(0, 1).contiguous()
        outputs, kept = [], []
        for freezing in shared.freezings:
            weight = freezing.matrix.weight
            _, normed, mean, scale = freezing.norm.forward(flat)
            kept += [normed, mean, scale]
            projected = (normed @ weight.T).view(*remembered.shape[:2], -1)
            outputs += [split_heads(part, shared.num_groups) for part in projected.chunk(2, dim=-1)]
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
            level = (flat, *kept[3 * number : 3 * number + 3])
            d_heads = [torch.zeros_like(given[0]) if one is None else one for one in pair]
            by_time = torch.cat([one.transpose(1, 2) for one in d_heads], dim=2)
            d_flat = by_time.flatten(2).flatten(0, 1)
            freezing.matrix.add(level[1], d_flat)
            d_normed = d_flat @ freezing.matrix.weight
            d_total, _ = freezing.norm.backward(d_total, d_normed, level, has_addend=False)
        return None, None, None if d_total is None else d_total.view(ctx.shape)
