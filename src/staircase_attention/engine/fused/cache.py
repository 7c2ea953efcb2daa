"""Cached keys and values for training: written once, read in place, with their gradients.

Memory is allocated once for all tokens that a forward pass will hold. Autograd does not follow what
is written to it. The order of operations is given to autograd by a handle, a scalar that is never
read: writing takes one in and returns the next, and every reader takes the latest. So the backward
of a write comes after those of all its readers, which have added to gradients that lie here too,
and returns those of its own tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.layers.keys_values import Cache, KeysValues, join, places_among
from staircase_attention.schedules import joined, overlap


class Buffer:
    """Room for keys and values of all layers, or for one pair, and for their gradients.

    Handles are kept elsewhere: autograd's graph holds buffers, and must not be held by them.
    """

    def __init__(self, like: Sequence[KeysValues], *, capacity: int, dtype: torch.dtype) -> None:
        batch, heads, _, size = like[0].keys.shape
        shape = (2 * len(like), batch, heads, capacity, size)
        self.held: Float[Tensor, "parts batch heads capacity size"] = torch.empty(
            shape, dtype=dtype, device=like[0].keys.device
        )
        self.num_pairs = len(like)
        self.first_tracked = 0
        """Tokens before this one came from a state that takes no gradients."""
        self._gradients: Float[Tensor, "parts batch heads tracked size"] | None = None
        self._backward_pass: int | None = None

    def put(self, tensors: Sequence[Tensor], start: int) -> None:
        """Write keys and values, pair by pair, from one token on."""
        # Both [batch, heads, time, size]; cast to the dtype of products on the way.
        for place, tensor in zip(self.held, tensors, strict=True):
            place[:, :, start : start + tensor.shape[2]].copy_(tensor)

    def gradients(self, slot: "BufferSlot") -> KeysValues | None:
        """Where a backward pass adds the gradients of the last tokens; None: nobody wants them."""
        # Room only for tokens that take gradients: a detached state is most of a window.
        first = max(slot.start, self.first_tracked)
        if first >= slot.stop:
            return None
        self._join_backward_pass()
        if self._gradients is None:
            tracked = self.held[:, :, :, self.first_tracked :]
            self._gradients = self.held.new_zeros(tracked.shape)
        pair = KeysValues(*self._gradients[2 * slot.number : 2 * slot.number + 2])
        return pair.part(first - self.first_tracked, slot.stop - self.first_tracked)

    def take_gradients(self, start: int, stop: int) -> list[Tensor | None]:
        """Those of all keys and values of some tokens, when every reader has added its own.

        The tokens from 0 on come last: then the memory of all gradients is released.
        """
        self._join_backward_pass()
        if self._gradients is None or start < self.first_tracked:
            found: list[Tensor | None] = [None] * len(self.held)
        else:
            part = slice(start - self.first_tracked, stop - self.first_tracked)
            found = list(self._gradients[:, :, :, part].unbind())
        if start == 0:
            self._gradients = None
        return found

    def _join_backward_pass(self) -> None:
        """Start from zero in every backward pass: some do not finish."""
        this = torch._C._current_graph_task_id()
        if self._backward_pass != this:
            self._gradients = None
        self._backward_pass = this


@dataclass(frozen=True)
class BufferSlot:
    """One pair's tokens from `start` to `stop` - 1 in a buffer."""

    buffer: Buffer
    number: int
    start: int
    stop: int

    @property
    def held(self) -> KeysValues:
        """What lies there."""
        pair = self.buffer.held[2 * self.number : 2 * self.number + 2]
        return KeysValues(*pair[:, :, :, self.start : self.stop])


class Lent(KeysValues):
    """Keys and values in a buffer, where autograd does not follow them.

    A reader takes in the handle, and adds their gradients to those of the slot.
    """

    slot: BufferSlot
    handle: Tensor
    """Under which it was written."""

    def tracked(self) -> KeysValues:
        """A copy that autograd follows."""
        (pair,) = read([self.slot], self.handle)
        return pair


def write(buffer: Buffer, start: int, handle: Tensor, pairs: Sequence[KeysValues]) -> Tensor:
    """Write tokens; the next handle.

    A first write, from 0 on, is needed even without tokens: its backward is the last.
    """
    flat = [part for pair in pairs for part in pair]
    # Steps of cut passes have no gradients, but what a buffer holds keeps its own.
    with torch.enable_grad():
        following: Tensor = _Write.apply(buffer, start, handle, *flat)  # type: ignore[no-untyped-call]
    return following


def read(slots: Sequence[BufferSlot], handle: Tensor) -> Iterator[KeysValues]:
    """Copies of what lies in some slots, which autograd follows."""
    flat = _Read.apply(slots, handle)  # type: ignore[no-untyped-call]
    return map(KeysValues, flat[::2], flat[1::2])


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
        ctx.start, ctx.stop = start, start
        if tensors:
            buffer.put(tensors, start)
            ctx.stop += tensors[0].shape[2]
        # A new tensor, whose backward autograd runs after those of all that take it in.
        return torch.empty_like(handle)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        found = ctx.buffer.take_gradients(ctx.start, ctx.stop)
        pairs = zip(found, ctx.dtypes, strict=False)
        return None, None, None, *(None if one is None else one.to(kind) for one, kind in pairs)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slots: Sequence[BufferSlot], _handle: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.set_materialize_grads(False)
        ctx.slots = slots
        kept = torch.contiguous_format
        return tuple(part.clone(memory_format=kept) for slot in slots for part in slot.held)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:  # noqa: ANN401
        for number, slot in enumerate(ctx.slots):
            pair = gradients[2 * number : 2 * number + 2]
            for total, gradient in zip(slot.buffer.gradients(slot) or (), pair, strict=False):
                if gradient is not None:
                    total += gradient[:, :, gradient.shape[2] - total.shape[2] :]
        return None, None


class BufferedCache(Cache):
    """What a state has, then what is added, in a buffer that has room for all of it.

    Nothing in it is ever overwritten, so that a backward pass finds what was seen. Tokens that are
    dropped stay where they are.
    """

    def __init__(
        self,
        loaded: Sequence[KeysValues],
        positions: tuple[range, ...],
        *,
        num_new: int,
        dtype: torch.dtype,
        tap: Tensor,
    ) -> None:
        super().__init__((), positions)
        self._loaded = list(loaded)
        self._num_loaded = loaded[0].num_tokens if loaded else 0
        self._capacity = self._num_loaded + num_new
        self._dtype, self._tap = dtype, tap
        self._stored, self._num_stored = positions, self._num_loaded
        """All tokens in the buffer, by position; those that were dropped, too."""
        self._opened: tuple[Buffer, Tensor] | None = None
        """The buffer and the latest handle, from the first use on."""

    def add(self, new: Sequence[KeysValues], positions: range) -> None:
        """Hold these tokens too, which come after all that are held."""
        super().add(new, positions)
        self._stored = joined((*self._stored, positions))

    def held(self) -> list[KeysValues]:
        """The tokens of the state that are still held as they came, and a copy of newer ones."""
        places = self._places(self.positions)
        old = overlap(places, (range(self._num_loaded),))
        before = [pair.parts(old) for pair in self._loaded]
        if self._num_stored == self._num_loaded:
            return before
        buffer, handle = self._open(self._loaded)
        new = overlap(places, (range(self._num_loaded, self._num_stored),)) or (range(0),)
        numbers = range(buffer.num_pairs)
        slots = [BufferSlot(buffer, one, part.start, part.stop) for part in new for one in numbers]
        copies = list(read(slots, handle))
        # Also joined with none: a state's dtype is kept where others join.
        return [join([*before[one : one + 1], *copies[one :: buffer.num_pairs]]) for one in numbers]

    def _places(self, positions: Iterable[range]) -> tuple[range, ...]:
        return places_among(self._stored, tuple(positions))

    def _part(self, layer: int, start: int, stop: int) -> KeysValues:
        buffer, handle = self._open(self._loaded)
        number = layer if buffer.num_pairs > 1 else 0
        slot = BufferSlot(buffer, number, start, stop)
        lent = Lent(*slot.held)
        lent.slot, lent.handle = slot, handle
        return lent

    def _append(self, new: Sequence[KeysValues]) -> None:
        buffer, handle = self._open(new)
        self._opened = buffer, write(buffer, self._num_stored, handle, new)
        self._num_stored += new[0].num_tokens

    def _keep(self, places: Sequence[range]) -> None:
        """Nothing moves."""

    def _open(self, like: Sequence[KeysValues]) -> tuple[Buffer, Tensor]:
        if self._opened is None:
            buffer = Buffer(like, capacity=self._capacity, dtype=self._dtype)
            if not any(part.requires_grad for pair in self._loaded for part in pair):
                buffer.first_tracked = self._num_loaded
            # With the tap, autograd runs this in every backward pass, with or without a state.
            self._opened = buffer, write(buffer, 0, self._tap, self._loaded)
        return self._opened
