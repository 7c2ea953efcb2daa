"""Weights that many steps of one forward pass share: cast once, their gradients summed once.

A step's backward adds to sums that live here and gives autograd nothing. A tap, which every step
takes in, tells autograd that the parameters are involved; its own backward comes after all of
theirs and hands the finished sums over.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.kernels import activation, norm, relative_attention
from staircase_attention.kernels.products import add_product
from staircase_attention.layers.core import Core
from staircase_attention.layers.layer import Layer
from staircase_attention.layers.positions import RelativePositions

ENOUGH_ROWS = 4096
"""Rows from which on a product is worth its launch; fewer wait for others to join them."""


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
        """Add the gradient of one product: soon, together with others."""
        self._waiting.append((inputs, gradients))
        self._num_waiting += len(inputs)
        if self._num_waiting >= ENOUGH_ROWS:
            self._sum_up()

    def total(self) -> Float[Tensor, "outputs inputs"]:
        """The gradient, when all of it has come."""
        if self._waiting or self._total is None:
            self._sum_up()
        assert self._total is not None
        return self._total

    def _sum_up(self) -> None:
        if self._total is None:
            self._total = torch.zeros_like(self.weight, dtype=torch.float32)
        if self._waiting:
            inputs, gradients = (
                parts[0] if len(parts) == 1 else torch.cat(parts)
                for parts in zip(*self._waiting, strict=True)
            )
            add_product(self._total, gradients.T, inputs)
        self._waiting, self._num_waiting = [], 0


class SharedLayer:
    """One layer's weights, in the numbers that products are made in, and their gradients."""

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
        # Frozen tokens have keys and values only.
        self.freezing = SharedMatrix(self.projection.weight[self.width :])
        device = self.contract_bias.device
        self.attention_norm_sums = norm.new_sums(self.width, device=device)
        self.feed_forward_norm_sums = norm.new_sums(self.width, device=device)
        self.contract_bias_sums = norm.new_add_sums(self.width, device=device)
        self.expand_bias_sums = activation.new_sums(len(self.expand_bias), device=device)

    @property
    def owns_keys_values(self) -> bool:
        """Whether it projects keys and values too."""
        return len(self.projection.weight) > self.width

    @property
    def parameters(self) -> list[Tensor]:
        """In the order of `gradients`."""
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

    def gradients(self, above: "SharedLayer | None") -> list[Tensor]:
        """Those of `parameters`; what the layer above read has summed the last bias's."""
        projection = self.projection.total()
        if self.owns_keys_values:
            projection[self.width :] += self.freezing.total()
        attention_norm, feed_forward_norm = (
            sums.sum(0) for sums in (self.attention_norm_sums, self.feed_forward_norm_sums)
        )
        contract_bias = self.contract_bias_sums.sum(0)
        if above is not None:
            contract_bias += above.attention_norm_sums[:, 2].sum(0)
        return [
            *torch.split(projection, self.width),
            self.output.total(),
            self.expand.total(),
            self.contract.total(),
            *attention_norm[:2],
            *feed_forward_norm[:2],
            self.expand_bias_sums.sum(0),
            contract_bias,
        ]


class SharedCore:
    """A core's weights for one forward pass, and for the backward pass that follows it."""

    def __init__(self, core: Core, dtype: torch.dtype) -> None:
        positions = core.positions
        assert isinstance(positions, RelativePositions)
        with torch.no_grad():
            self.layers = [SharedLayer(layer, dtype) for layer in core.typed_layers]
            self.table = positions.table.to(dtype)
            self.table_sums = relative_attention.new_table_sums(self.table)
        self.parameters = [
            positions.table,
            *(one for layer in self.layers for one in layer.parameters),
        ]

    def new_tap(self) -> Tensor:
        """What every step takes in. Not kept here: autograd's graph holds these weights already."""
        tap: Tensor = _Tap.apply(self, *self.parameters)  # type: ignore[no-untyped-call]
        return tap

    def gradients(self) -> list[Tensor]:
        """Those of `parameters`, when every step has added its own."""
        above: Sequence[SharedLayer | None] = [*self.layers[1:], None]
        found = [self.table_sums.sum(0)]
        for layer, next_layer in zip(self.layers, above, strict=True):
            found += layer.gradients(next_layer)
        return [
            gradient.to(parameter.dtype)
            for gradient, parameter in zip(found, self.parameters, strict=True)
        ]


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shared: SharedCore, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        ctx.shared = shared
        ctx.set_materialize_grads(False)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return None, *ctx.shared.gradients()
