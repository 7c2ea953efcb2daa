"""Keys and values of cached tokens that stay where they are, and their gradients.

Memory is made once for all tokens that a forward pass will hold. Autograd does not follow what is
written to it. What must come before what is told by a handle, a scalar that is never read: writing
takes one in and gives the next, and whoever reads takes the latest. So the backward of a write
comes after those of all readers, which have added to gradients that lie here too, and takes out
those of its own tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.layers.keys_values import KeysValues


class Buffer:
    """Room for keys and values of all layers, or for one pair, and for their gradients.

    Handles are kept elsewhere: autograd's graph holds buffers, and must not be held by them.
    """

    def __init__(self, like: Sequence[KeysValues], *, capacity: int, dtype: torch.dtype) -> None:
        batch, heads, _, size = like[0].keys.shape
        shape = (2 * len(like), batch, heads, capacity, size)
        self._held: Float[Tensor, "parts batch heads capacity size"] = torch.empty(
            shape, dtype=dtype, device=like[0].keys.device
        )
        self.num_pairs = len(like)
        self.first_tracked = 0
        """Tokens before this one came from a state that takes no gradients."""
        self._gradients: Float[Tensor, "parts batch heads tracked size"] | None = None
        self._backward_pass: int | None = None

    def put(self, tensors: Sequence[Tensor], start: int) -> None:
        """Write keys and values, pair by pair, from one token on."""
        for place, tensor in zip(self._held, tensors, strict=True):
            place[:, :, start : start + tensor.shape[2]].copy_(tensor)

    def part(self, number: int, start: int, stop: int) -> KeysValues:
        """One pair's keys and values of some tokens, where they lie."""
        keys, values = self._held[2 * number : 2 * number + 2, :, :, start:stop]
        return KeysValues(keys, values)

    def gradients(self, number: int, start: int, stop: int) -> KeysValues | None:
        """Where gradients of `part` are to be added: those of the last tokens, if not of all."""
        first = max(start, self.first_tracked)
        if first >= stop:
            return None
        self._join_backward_pass()
        if self._gradients is None:
            batch, heads, capacity, size = self._held.shape[1:]
            shape = (len(self._held), batch, heads, capacity - self.first_tracked, size)
            self._gradients = self._held.new_zeros(shape)
        keys, values = self._gradients[2 * number : 2 * number + 2]
        return KeysValues(keys, values).part(first - self.first_tracked, stop - self.first_tracked)

    def take_gradients(self, start: int, stop: int) -> list[Tensor | None]:
        """Those of all keys and values of some tokens, when every reader has added its own."""
        self._join_backward_pass()
        if self._gradients is None or start < self.first_tracked:
            return [None] * len(self._held)
        found = self._gradients[:, :, :, start - self.first_tracked : stop - self.first_tracked]
        return list(found.unbind())

    def forget_gradients(self) -> None:
        """Give their memory back."""
        self._gradients = None

    def _join_backward_pass(self) -> None:
        """Begin anew in every backward pass: some do not come to their end."""
        this = torch._C._current_graph_task_id()
        if self._backward_pass != this:
            self._gradients = None
        self._backward_pass = this


@dataclass(frozen=True)
class Place:
    """One pair's tokens from `start` to `stop` - 1 in a buffer."""

    buffer: Buffer
    number: int
    start: int
    stop: int

    @property
    def held(self) -> KeysValues:
        """What lies there."""
        return self.buffer.part(self.number, self.start, self.stop)

    @property
    def gradients(self) -> KeysValues | None:
        """Where a backward pass adds the gradients of its last tokens; None where it need not."""
        return self.buffer.gradients(self.number, self.start, self.stop)


class Lent(KeysValues):
    """Keys and values in a buffer, where autograd does not follow them.

    Who reads them takes in the handle, and adds their gradients at their place.
    """

    place: Place
    handle: Tensor

    @classmethod
    def at(cls, place: Place, handle: Tensor) -> "Lent":
        """What lies at a place, with the handle under which it was written."""
        lent = cls(*place.held)
        lent.place, lent.handle = place, handle
        return lent

    def tracked(self) -> KeysValues:
        """A copy that is as any other tensor."""
        (pair,) = read([self.place], self.handle)
        return pair


def load(buffer: Buffer, tap: Tensor, pairs: Sequence[KeysValues]) -> Tensor:
    """Write what a state brought; the first handle.

    The tap lets autograd come by in every backward pass, even if the state takes no gradients.
    """
    flat = [part for pair in pairs for part in pair]
    if pairs and not any(tensor.requires_grad for tensor in flat):
        buffer.first_tracked = pairs[0].num_tokens
    handle: Tensor = _Load.apply(buffer, tap, *flat)  # type: ignore[no-untyped-call]
    return handle


def write(buffer: Buffer, start: int, handle: Tensor, pairs: Sequence[KeysValues]) -> Tensor:
    """Write new tokens; the next handle."""
    flat = [part for pair in pairs for part in pair]
    following: Tensor = _Write.apply(buffer, start, handle, *flat)  # type: ignore[no-untyped-call]
    return following


def read(places: Sequence[Place], handle: Tensor) -> Iterator[KeysValues]:
    """Copies of what lies at some places, which autograd follows."""
    flat = _Read.apply(places, handle)  # type: ignore[no-untyped-call]
    return map(KeysValues, flat[::2], flat[1::2])


class _Load(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, buffer: Buffer, tap: Tensor, *tensors: Tensor) -> Tensor:  # noqa: ANN401
        ctx.set_materialize_grads(False)
        ctx.buffer, ctx.dtypes = buffer, [tensor.dtype for tensor in tensors]
        ctx.num_tokens = tensors[0].shape[2] if tensors else 0
        if tensors:
            buffer.put(tensors, 0)
        return torch.empty_like(tap)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        found = ctx.buffer.take_gradients(0, ctx.num_tokens)
        ctx.buffer.forget_gradients()
        return None, None, *in_kinds(found, ctx.dtypes)


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        buffer: Buffer,
        start: int,
        handle: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.buffer, ctx.dtypes = buffer, [tensor.dtype for tensor in tensors]
        ctx.start, ctx.stop = start, start + tensors[0].shape[2]
        buffer.put(tensors, start)
        return torch.empty_like(handle)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        found = ctx.buffer.take_gradients(ctx.start, ctx.stop)
        return None, None, None, *in_kinds(found, ctx.dtypes)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: Sequence[Place], _handle: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.set_materialize_grads(False)
        ctx.places = places
        kept = torch.contiguous_format
        return tuple(part.clone(memory_format=kept) for place in places for part in place.held)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:  # noqa: ANN401
        for number, place in enumerate(ctx.places):
            pair = gradients[2 * number : 2 * number + 2]
            for total, gradient in zip(place.gradients or (), pair, strict=False):
                if gradient is not None:
                    total += gradient[:, :, gradient.shape[2] - total.shape[2] :]
        return None, None


def in_kinds(
    gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]
) -> list[Tensor | None]:
    """Gradients in the numbers of what they are gradients of; no more than those."""
    pairs = zip(gradients, dtypes, strict=False)
    return [None if one is None else one.to(dtype) for one, dtype in pairs]
