"""A model's weights as the decoding kernels read them."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.layers.positions import RelativePositions
from staircase_attention.models.sequence_model import SequenceModel


class Norm(NamedTuple):
    """Norms of one kind."""

    weights: Float[Tensor, "layers 2 width"]
    """Gains and shifts, in float32."""
    epsilon: float
    centres: bool
    """Layer norms do, RMS norms do not."""

    @classmethod
    def of(cls, norms: Sequence[nn.LayerNorm | nn.RMSNorm]) -> "Norm":
        """The norms of several layers as one."""
        pairs = []
        for norm in norms:
            bias = getattr(norm, "bias", None)
            shifts = torch.zeros_like(norm.weight) if bias is None else bias
            pairs.append(torch.stack([norm.weight, shifts]).detach().float())
        epsilon, centres = norms[0].eps, isinstance(norms[0], nn.LayerNorm)
        assert epsilon is not None
        return cls(torch.stack(pairs), epsilon, centres)

    def of_layers(self, layers: slice) -> "Norm":
        """The norms of some layers."""
        return self._replace(weights=self.weights[layers])


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """All weights; those of different layers lie behind one another, in copies.

    Matrices are in the dtype of products, norms and biases in float32. What belongs to no layer
    may be the model's own: a change of its weights asks for new ones.
    """

    embedding: Float[Tensor, "vocab width"]
    attention_norm: Norm
    projections: Float[Tensor, "layers projected width"]
    """Queries, then keys and values where each layer has its own."""
    output: Float[Tensor, "layers width width"]
    feed_forward_norm: Norm
    feed_forward: str
    expand: Float[Tensor, "layers expanded width"]
    """Of SwiGLU gates, then values."""
    expand_bias: Float[Tensor, "layers expanded"] | None
    contract: Float[Tensor, "layers width inner"]
    contract_bias: Float[Tensor, "layers width"] | None
    last_norm: Norm
    logits: Float[Tensor, "output width"]
    logits_bias: Float[Tensor, " output"]
    table: Float[Tensor, "distances size"] | None
    """Vectors of distances; None where positions are rotary."""
    shared_norm: Norm | None
    shared: Float[Tensor, "projected width"] | None
    """Keys and values of all layers, where layers share them."""
    mix: Float[Tensor, " levels"] | None
    """Weights of the embedding and of each layer in what is cached."""
    num_recurring: int
    """L: layers that recur come first; others are a prelude's and a coda's."""
    injection: str
    state_norm: Norm | None
    """Of `normed` injections."""
    gate: tuple[Float[Tensor, "width width"], Float[Tensor, " width"]] | None
    """Of `gated` ones: what lets in what entered the recurrence."""
    dtype: torch.dtype
    sources: tuple[Tensor, ...]
    """The model's own parameters."""
    version: int
    """How often these had been changed when they were read."""

    @classmethod
    def of(cls, model: SequenceModel, dtype: torch.dtype) -> "Weights":
        """A model's weights for products in `dtype`."""

        def cast(parameters: list[Tensor]) -> Tensor:
            return torch.stack([one.detach().to(dtype) for one in parameters]).contiguous()

        def floats(parameters: list[Tensor]) -> Tensor:
            return torch.stack([one.detach().float() for one in parameters])

        layers = model.core.typed_layers
        memory, positions = model.core.memory, model.core.positions
        shares = memory.shares_keys_values
        forward = [layer.feed_forward for layer in layers]
        kind, gate, state_norm = model.config.feed_forward, model.core.gate, model.core.state_norm
        expands = [[one.gate, one.expand] if kind == "swiglu" else [one.expand] for one in forward]
        has_bias = model.config.bias
        projections = [[one.weight for one in layer.attention.projections] for layer in layers]
        table = None
        if isinstance(positions, RelativePositions):
            table = positions.table.detach().to(dtype).contiguous()
        mix = None if memory.mix is None else memory.mix.logits.detach().float().softmax(0)
        return cls(
            embedding=model.embedding.weight.detach().to(dtype).contiguous(),
            attention_norm=Norm.of([layer.attention_norm for layer in layers]),
            projections=cast([torch.cat(parts) for parts in projections]),
            output=cast([layer.attention.output.weight for layer in layers]),
            feed_forward_norm=Norm.of([layer.feed_forward_norm for layer in layers]),
            feed_forward=kind,
            expand=cast([torch.cat([one.weight for one in many]) for many in expands]),
            expand_bias=floats([torch.cat([one.bias for one in many]) for many in expands])
            if has_bias
            else None,
            contract=cast([one.contract.weight for one in forward]),
            contract_bias=floats([one.contract.bias for one in forward]) if has_bias else None,
            last_norm=Norm.of([model.output_norm]),
            logits=model.output.weight.detach().to(dtype).contiguous(),
            logits_bias=model.output.bias.detach().float().contiguous(),
            table=table,
            shared_norm=Norm.of([memory.norm]) if shares else None,
            shared=cast([memory.key.weight, memory.value.weight]).flatten(0, 1) if shares else None,
            mix=mix,
            num_recurring=model.config.num_layers,
            injection=model.config.injection,
            state_norm=None if state_norm is None else Norm.of([state_norm]),
            gate=None if gate is None else (gate.weight.detach().to(dtype), gate.bias.float()),
            dtype=dtype,
            sources=tuple(model.parameters()),
            version=version_of(tuple(model.parameters())),
        )

    @property
    def are_current(self) -> bool:
        """Whether the model's parameters have not changed since."""
        return self.version == version_of(self.sources)

    def are_of(self, model: SequenceModel) -> bool:
        """Whether a model still has these weights; a quick check for every token."""
        return self.sources[-1] is model.output.bias and self.are_current

    def serve(self, model: SequenceModel, dtype: torch.dtype) -> bool:
        """Whether those of this model, read now, would be the same."""
        here = tuple(model.parameters())
        is_same = len(here) == len(self.sources) and all(map(operator.is_, here, self.sources))
        is_near = self.logits.device == model.output.weight.device
        return is_same and is_near and self.dtype == dtype and self.are_current


def version_of(parameters: tuple[Tensor, ...]) -> int:
    """How often parameters have been changed in place; inference tensors do not count that."""
    return sum(one._version for one in parameters if not one.is_inference())
