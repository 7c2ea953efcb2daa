"""Weights that many steps of one forward pass share: cast once, their gradients summed once.

A step's backward adds to sums that live here and returns none to autograd. Every step takes in a
*tap*, a scalar that depends on all parameters; its own backward comes after those of all steps and
returns the finished sums. Sums are in float32, made by products or by a fixed number of programs
in a fixed order: the same inputs give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from staircase_attention.engine.kernels import activation, norm, relative_attention
from staircase_attention.engine.kernels.cross_entropy import add_product
from staircase_attention.layers.core import Core
from staircase_attention.layers.keys_values import split_heads
from staircase_attention.layers.layer import Layer, Memory
from staircase_attention.layers.positions import RelativePositions

# Rows that are worth a product's launch; fewer wait for others.
ENOUGH_ROWS = 4096


class SharedMatrix:
    """A matrix of weights, and the sum of its gradients."""

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        self.weight = weight
        self._total: Float[Tensor, "outputs inputs"] | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._num_waiting = 0

    def add(
        self, inputs: Float[Tensor, "rows inputs"], gradients: Float[Tensor, "rows outputs"]
    ) -> None:
        """Add gradientsᵀ @ inputs: soon, together with others."""
        self._waiting.append((inputs, gradients))
        self._num_waiting += len(inputs)
        if self._num_waiting >= ENOUGH_ROWS:
            self._sum_up()

    def take(self) -> Float[Tensor, "outputs inputs"]:
        """The gradient, when all of it has come; the next one starts from zero."""
        if self._waiting or self._total is None:
            self._sum_up()
        assert self._total is not None
        total, self._total = self._total, None
        return total

    def _sum_up(self) -> None:
        if self._total is None:
            self._total = torch.zeros_like(self.weight, dtype=torch.float32)
        if self._waiting:
            inputs, gradients = (
                parts[0] if len(parts) == 1 else torch.cat(parts)
                for parts in zip(*self._waiting, strict=True)
            )
            # [outputs, rows] · [rows, inputs], added in float32 whatever the dtype of both.
            add_product(self._total, gradients.T, inputs)
        self._waiting, self._num_waiting = [], 0


class PartialSums:
    """The gradient of vectors, one part per program; allocated by the first backward step."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._parts: Tensor | None = None

    @property
    def parts(self) -> Float[Tensor, "programs ..."]:
        """What kernels add to."""
        if self._parts is None:
            self._parts = self._make()
        return self._parts

    def take(self) -> Float[Tensor, "..."]:
        """The gradient, when all of it has come; the next one starts from zero."""
        parts, self._parts = self.parts, None
        return parts.sum(0)


def add_and_norm(
    hidden: Float[Tensor, "rows width"],
    addend: Float[Tensor, "rows width"] | None,
    bias: Float[Tensor, " width"] | None,
    own: nn.LayerNorm,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Total (the sum of what is given), normed (in the dtype of products), mean and scale."""
    return norm.forward(hidden, addend, bias, own.weight, own.bias, eps=own.eps, dtype=dtype)


@dataclass(frozen=True)
class Freezing:
    """The norm and the projections that turn cached tokens into keys and values."""

    norm: nn.LayerNorm
    matrix: SharedMatrix
    norm_sums: PartialSums


class SharedLayer:
    """One layer's weights in the dtype of products, and their gradients."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        self.layer = layer
        attention, feed_forward = layer.attention, layer.feed_forward
        self.width = attention.output.weight.shape[0]
        projections = [one.weight.to(dtype) for one in attention.projections]
        self.projection = SharedMatrix(torch.cat(projections))
        self.output = SharedMatrix(attention.output.weight.to(dtype))
        self.expand = SharedMatrix(feed_forward.expand.weight.to(dtype))
        self.contract = SharedMatrix(feed_forward.contract.weight.to(dtype))
        self.expand_bias = feed_forward.expand.bias.to(dtype)
        self.contract_bias = feed_forward.contract.bias
        device = self.contract_bias.device
        new_norm_sums = partial(norm.new_sums, self.width, device=device)
        self.attention_norm_sums = PartialSums(new_norm_sums)
        self.feed_forward_norm_sums = PartialSums(new_norm_sums)
        # Frozen tokens have keys and values only.
        self.freezing = Freezing(
            layer.attention_norm,
            SharedMatrix(self.projection.weight[self.width :]),
            self.attention_norm_sums,
        )
        self.contract_bias_sums = PartialSums(partial(norm.new_add_sums, self.width, device=device))
        self.expand_bias_sums = PartialSums(
            partial(activation.new_sums, len(self.expand_bias), device=device)
        )

    @property
    def owns_keys_values(self) -> bool:
        """Whether it projects keys and values too."""
        return len(self.projection.weight) > self.width

    @property
    def parameters(self) -> list[Tensor]:
        """In the order of `take_gradients`."""
        attention, feed_forward = self.layer.attention, self.layer.feed_forward
        norms = (self.layer.attention_norm, self.layer.feed_forward_norm)
        return [
            *(one.weight for one in attention.projections),
            attention.output.weight,
            feed_forward.expand.weight,
            feed_forward.contract.weight,
            *(part for one in norms for part in (one.weight, one.bias)),
            feed_forward.expand.bias,
            feed_forward.contract.bias,
        ]

    def take_gradients(
        self, d_contract_bias: Float[Tensor, " width"]
    ) -> tuple[list[Tensor], Float[Tensor, " width"]]:
        """Those of `parameters`, and a part of that of the last bias of the layer below.

        That bias is added where this layer's first norm reads it. `d_contract_bias` is what the
        layer above found in this way.
        """
        projection = self.projection.take()
        if self.owns_keys_values:
            projection[self.width :] += self.freezing.matrix.take()
        # Sums of a norm are [3, width]: its weight, its bias, and the bias added before it.
        *attention_norm, d_below = self.attention_norm_sums.take()
        # Attention's output has no bias.
        *feed_forward_norm, _ = self.feed_forward_norm_sums.take()
        gradients = [
            *torch.split(projection, self.width),
            self.output.take(),
            self.expand.take(),
            self.contract.take(),
            *attention_norm,
            *feed_forward_norm,
            self.expand_bias_sums.take(),
            self.contract_bias_sums.take() + d_contract_bias,
        ]
        return gradients, d_below


class SharedMemory:
    """The weights that give all layers the same keys and values, and their gradients."""

    def __init__(self, memory: Memory, dtype: torch.dtype) -> None:
        projections = [memory.key.weight, memory.value.weight]
        self.parameters = [*projections, memory.norm.weight, memory.norm.bias]
        """In the order of `take_gradients`."""
        width, device = len(memory.norm.weight), memory.norm.weight.device
        self.freezing = Freezing(
            memory.norm,
            SharedMatrix(torch.cat([one.to(dtype) for one in projections])),
            PartialSums(partial(norm.new_sums, width, device=device)),
        )

    def take_gradients(self) -> list[Tensor]:
        """Those of `parameters`."""
        *d_norm, _ = self.freezing.norm_sums.take()
        return [*self.freezing.matrix.take().chunk(2), *d_norm]


class SharedCore:
    """A core's weights for one forward pass, and for the backward pass that follows it."""

    def __init__(self, core: Core, dtype: torch.dtype) -> None:
        positions = core.positions
        assert isinstance(positions, RelativePositions)
        with torch.no_grad():
            self.layers = [SharedLayer(layer, dtype) for layer in core.typed_layers]
            self.memory = (
                SharedMemory(core.memory, dtype) if core.memory.shares_keys_values else None
            )
            self.table = positions.table.to(dtype)
        self.table_sums = PartialSums(partial(relative_attention.new_table_sums, self.table))
        self._backward_pass: int | None = None
        """Autograd's number of the pass whose gradients are being summed."""
        self.parameters = [
            positions.table,
            *(one for layer in self.layers for one in layer.parameters),
            *([] if self.memory is None else self.memory.parameters),
        ]
        self._versions = self._current_versions()

    @property
    def freezings(self) -> list[Freezing]:
        """One for each layer, or one for all."""
        if self.memory is not None:
            return [self.memory.freezing]
        return [layer.freezing for layer in self.layers]

    def new_tap(self) -> Tensor:
        """What every step takes in. Not kept here: autograd's graph holds these weights already."""
        tap: Tensor = _Tap.apply(self, *self.parameters)  # type: ignore[no-untyped-call]
        return tap

    def join_backward_pass(self) -> None:
        """Announce that a step adds its gradients now; sums that are left of another pass go.

        A pass that asks for other gradients only, or that fails, leaves its sums behind.
        """
        this = torch._C._current_graph_task_id()
        if self._backward_pass == this:
            return
        self._check_versions()
        if self._backward_pass is not None:
            # Of a pass that did not come to its end: taken, and thrown away.
            self.take_gradients()
        self._backward_pass = this

    def _current_versions(self) -> list[int]:
        # Inference tensors count no changes, and take no gradients.
        return [0 if one.is_inference() else one._version for one in self.parameters]

    def _check_versions(self) -> None:
        """Raise, as autograd does for tensors that it saved, if weights are not the forward's."""
        pairs = zip(self.parameters, self._versions, self._current_versions(), strict=True)
        for parameter, before, now in pairs:
            if before != now:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: a parameter of shape {list(parameter.shape)} is at "
                    f"version {now}; expected version {before} instead; run the backward pass "
                    "before the optimizer's step, or detach the state between segments"
                )

    def take_gradients(self) -> list[Tensor]:
        """Those of `parameters`, when every step has added its own."""
        by_layer: list[list[Tensor]] = []
        d_bias = torch.zeros_like(self.layers[-1].contract_bias, dtype=torch.float32)
        for layer in reversed(self.layers):
            found, d_bias = layer.take_gradients(d_bias)
            by_layer.insert(0, found)
        if self.memory is not None:
            by_layer.append(self.memory.take_gradients())
        gradients = [self.table_sums.take(), *(one for found in by_layer for one in found)]
        return [
            gradient.to(parameter.dtype)
            for gradient, parameter in zip(gradients, self.parameters, strict=True)
        ]


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shared: SharedCore, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        ctx.shared = shared
        ctx.set_materialize_grads(False)
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # Every step took in the tap, so that autograd comes here after all of them.
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
        num_heads: int,
    ) -> tuple[Tensor, ...]:
        """Keys and values, layer by layer."""
        ctx.set_materialize_grads(False)
        flat = remembered.flatten(0, 1).contiguous()
        outputs, kept = [], []
        for freezing in shared.freezings:
            weight = freezing.matrix.weight
            _, normed, mean, scale = add_and_norm(flat, None, None, freezing.norm, weight.dtype)
            kept += [normed, mean, scale]
            projected = (normed @ weight.T).view(*remembered.shape[:2], -1)
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
