"""A model's weights as the decoding kernels read them."""

import operator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.engine.decoding.layout import Layout
from staircase_attention.layers.layer import Layer
from staircase_attention.layers.positions import ROTARY_BASE, RelativePositions
from staircase_attention.models.sequence_model import SequenceModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """Layer norms of one kind, one under another."""

    gain: Float[Tensor, "layers width"]
    shift: Float[Tensor, "layers width"]
    epsilon: float

    @classmethod
    def of(cls, norms: list[nn.LayerNorm]) -> "Norm":
        """Side by side, in float32."""
        return cls(
            gain=torch.stack([norm.weight.detach().float() for norm in norms]),
            shift=torch.stack([norm.bias.detach().float() for norm in norms]),
            epsilon=norms[0].eps,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Copies of all weights, those that are read together side by side.

    They are a snapshot: `are_current` says whether the model has changed since.
    """

    embedding: Float[Tensor, "vocab width"]
    attention_norm: Norm
    projections: Float[Tensor, "layers projected width"]
    """Queries, then keys and values where each layer has its own."""
    output: Float[Tensor, "layers width width"]
    feed_forward_norm: Norm
    expand: Float[Tensor, "layers inner width"]
    expand_bias: Float[Tensor, "layers inner"]
    contract: Float[Tensor, "layers width inner"]
    contract_bias: Float[Tensor, "layers width"]
    last_norm: Norm
    logits: Float[Tensor, "output width"]
    logits_bias: Float[Tensor, " output"]
    table: Float[Tensor, "distances size"] | None
    """Vectors of distances, or"""
    turns: Float[Tensor, "2 distances half"] | None
    """cosine and sine of the angles by which a query turns."""
    shared_norm: Norm | None
    shared: Float[Tensor, "projected width"] | None
    """Keys and values of all layers, where they share them."""
    mix: Float[Tensor, " levels"] | None
    """What embedding and layers weigh in a memory."""
    dtype: torch.dtype
    sources: tuple[Tensor, ...]
    """The model's own parameters."""
    version: int
    """Changes that these had had."""

    @classmethod
    def of(cls, model: SequenceModel, dtype: torch.dtype) -> "Weights":
        """A snapshot of a model's weights in the numbers that products are made of."""

        def cast(parameters: list[Tensor]) -> Tensor:
            return torch.stack([one.detach().to(dtype) for one in parameters]).contiguous()

        layers = model.core.typed_layers
        memory, positions = model.core.memory, model.core.positions
        shares = memory.shares_keys_values
        forward = [layer.feed_forward for layer in layers]
        table = None
        if isinstance(positions, RelativePositions):
            table = positions.table.detach().to(dtype).contiguous()
        mix = None if memory.mix is None else memory.mix.logits.detach().float().softmax(0)
        return cls(
            embedding=model.embedding.weight.detach().to(dtype).contiguous(),
            attention_norm=Norm.of([layer.attention_norm for layer in layers]),
            projections=cast([_projections(layer, shares=shares) for layer in layers]),
            output=cast([layer.attention.output.weight for layer in layers]),
            feed_forward_norm=Norm.of([layer.feed_forward_norm for layer in layers]),
            expand=cast([one.expand.weight for one in forward]),
            expand_bias=torch.stack([one.expand.bias.detach().float() for one in forward]),
            contract=cast([one.contract.weight for one in forward]),
            contract_bias=torch.stack([one.contract.bias.detach().float() for one in forward]),
            last_norm=Norm.of([model.output_norm]),
            logits=model.output.weight.detach().to(dtype).contiguous(),
            logits_bias=model.output.bias.detach().float().contiguous(),
            table=table,
            turns=_turns(model) if table is None else None,
            shared_norm=Norm.of([memory.norm]) if shares else None,
            shared=cast([memory.key.weight, memory.value.weight]).flatten(0, 1) if shares else None,
            mix=mix,
            dtype=dtype,
            sources=tuple(model.parameters()),
            version=version_of(tuple(model.parameters())),
        )

    @property
    def are_current(self) -> bool:
        """Whether the model's parameters are what they were."""
        return self.version == version_of(self.sources)

    def are_of(self, model: SequenceModel) -> bool:
        """Whether a model has these weights still: quick to tell, and asked for every token."""
        return self.sources[-1] is model.output.bias and self.are_current

    def serve(self, model: SequenceModel, dtype: torch.dtype) -> bool:
        """Whether they are what this model's would be."""
        here = tuple(model.parameters())
        is_same = len(here) == len(self.sources) and all(map(operator.is_, here, self.sources))
        is_near = self.logits.device == model.output.weight.device
        return is_same and is_near and self.dtype == dtype and self.are_current

    @property
    def num_layers(self) -> int:
        """L."""
        return self.output.shape[0]

    @property
    def bytes_a_pass(self) -> int:
        """What each pass of a token through the core must read."""
        names = ("projections", "output", "expand", "contract")
        return sum(_bytes(getattr(self, name)) for name in names)


def version_of(parameters: tuple[Tensor, ...]) -> int:
    """How often parameters have been changed in place; tensors of inference do not tell."""
    return sum(one._version for one in parameters if not one.is_inference())


def _projections(layer: Layer, *, shares: bool) -> Tensor:
    attention = layer.attention
    parts = [attention.query] if shares else [attention.query, attention.key, attention.value]
    return torch.cat([part.weight.detach() for part in parts])


def _turns(model: SequenceModel) -> Float[Tensor, "2 distances half"]:
    """Cosine and sine of the angle of every distance that can come up."""
    layout = Layout.of(model.schedule, model.config.num_layers)
    assert layout is not None
    size = model.config.head_size
    pairs = torch.arange(size // 2, dtype=torch.float64)
    distances = torch.arange(max(layout.capacity, layout.num_cached) + 1, dtype=torch.float64)
    angles = distances[:, None] * torch.pow(ROTARY_BASE, -2 * pairs / size)
    turns = torch.stack([angles.cos(), angles.sin()]).float()
    return turns.to(model.output.weight.device)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
