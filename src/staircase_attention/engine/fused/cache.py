"""A cache for training: tokens are written once and read where they lie."""

from collections.abc import Sequence

import torch
from torch import Tensor

from staircase_attention.engine.fused.buffer import Buffer, Lent, Place, load, read, write
from staircase_attention.layers.cache import Cache
from staircase_attention.layers.keys_values import KeysValues, join


class BufferedCache(Cache):
    """What a state brought, and behind it what comes, in a buffer that has room for all of it.

    Nothing in it is ever overwritten, so that a backward pass finds what was seen.
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
        super().__init__(positions)
        self._loaded = list(loaded)
        self._num_loaded = loaded[0].num_tokens if loaded else 0
        self._capacity = self._num_loaded + num_new
        self._dtype, self._tap = dtype, tap
        self._first, self._stop = 0, self._num_loaded
        """The tokens that are held, by their places in the buffer."""
        self._opened: tuple[Buffer, Tensor] | None = None
        """The buffer and the latest handle, from the first use on."""

    def held(self) -> list[KeysValues]:
        """The tokens of the state that are still held as they came, and a copy of newer ones."""
        if self._stop == self._num_loaded:
            return [pair.part(self._first, self._stop) for pair in self._loaded]
        buffer, handle = self._open(self._loaded)
        start = max(self._first, self._num_loaded)
        places = [Place(buffer, one, start, self._stop) for one in range(buffer.num_pairs)]
        new = list(read(places, handle))
        if not self._loaded:
            return new
        old = [pair.part(self._first, self._num_loaded) for pair in self._loaded]
        # In the numbers of both, even where of the old ones none is left.
        return [join(pair) for pair in zip(old, new, strict=True)]

    def _part(self, layer: int, start: int, stop: int) -> KeysValues:
        buffer, handle = self._open(self._loaded)
        number = layer if buffer.num_pairs > 1 else 0
        return Lent.at(Place(buffer, number, self._first + start, self._first + stop), handle)

    def _append(self, new: Sequence[KeysValues]) -> None:
        buffer, handle = self._open(new)
        self._opened = buffer, write(buffer, self._stop, handle, new)
        self._stop += new[0].num_tokens

    def _keep(self, places: Sequence[range]) -> None:
        assert not places or (places[-1].stop == self._stop - self._first and len(places) == 1)
        self._first += places[0].start if places else self._stop - self._first

    def _open(self, like: Sequence[KeysValues]) -> tuple[Buffer, Tensor]:
        if self._opened is None:
            buffer = Buffer(like, capacity=self._capacity, dtype=self._dtype)
            self._opened = buffer, load(buffer, self._tap, self._loaded)
        return self._opened
