"""The rings that a decoder reads and writes, filled from a state and turned into one again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from staircase_attention.engine.decoding.layout import Layout
from staircase_attention.layers import KeysValues
from staircase_attention.models.state import State, Stream
from staircase_attention.schedules import num_positions


class Memory:
    """Keys and values of one stream in rings of fixed size, and where the stream stands."""

    def __init__(
        self,
        layout: Layout,
        stream: Stream,
        *,
        num_layers: int,
        num_caches: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.begun = replace(stream, banks={}, cache=())
        self.num_layers = num_layers
        self.num_rows = len(stream.rows)
        rings = (num_layers, layout.num_passes, self.num_rows, num_heads, layout.capacity)
        caches = (num_caches if layout.num_cached else 0, self.num_rows, num_heads)
        bank_shape, cache_shape = (*rings, head_size), (*caches, layout.num_cached, head_size)
        self.cache_base = torch.Size(bank_shape).numel()
        """Where in `keys` and `values` the cached ones begin."""
        size = self.cache_base + torch.Size(cache_shape).numel()
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        flat = (self.keys, self.values)
        self._banks = [one[: self.cache_base].view(bank_shape) for one in flat]
        self._caches = [one[self.cache_base :].view(cache_shape) for one in flat]
        self.position = torch.tensor([stream.position], dtype=torch.int64, device=device)
        self.starts = torch.tensor(stream.starts, dtype=torch.int64, device=device)
        self._fill(stream)

    def stream(self, position: int) -> Stream:
        """What a model's own stream would be after `position` tokens."""
        return replace(
            self.begun,
            position=position,
            banks={
                (bank, layer): self._read(self._banks, (layer, slot), [held])
                for bank, slot, held in self.layout.banks(position)
                for layer in range(self.num_layers)
            },
            cache=tuple(self._read_caches(position)),
            cached=self.layout.cached(position, self.begun),
        )

    def _read_caches(self, position: int) -> Iterator[KeysValues]:
        held = self.layout.cached(position, self.begun)
        if held and self.layout.num_cached:
            for place in range(self._caches[0].shape[0]):
                yield self._read(self._caches, (place,), held)

    def _fill(self, stream: Stream) -> None:
        for bank, slot, held in self.layout.banks(stream.position):
            for layer in range(self.num_layers):
                self._write(self._banks, (layer, slot), [held], stream.banks[bank, layer])
        for place, cached in enumerate(stream.cache if stream.cached else ()):
            self._write(self._caches, (place,), stream.cached, cached)

    def _places(self, held: Sequence[range], capacity: int) -> Tensor:
        there = [torch.arange(part.start, part.stop, device=self.keys.device) for part in held]
        return torch.cat(there) % capacity

    def _read(
        self, rings: list[Tensor], place: tuple[int, ...], held: Sequence[range]
    ) -> KeysValues:
        index = self._places(held, rings[0].shape[-2])
        keys, values = (one[place].index_select(2, index) for one in rings)
        return KeysValues(keys, values)

    def _write(
        self, rings: list[Tensor], place: tuple[int, ...], held: Sequence[range], given: KeysValues
    ) -> None:
        index = self._places(held, rings[0].shape[-2])
        for ring, tensor in zip(rings, given, strict=True):
            ring[place].index_copy_(2, index, tensor.detach().to(ring))


def holds_what_it_should(layout: Layout, state: State, num_layers: int) -> bool:
    """Whether a state's only stream has exactly what a layout expects of one at its position."""
    stream = state.streams[0]
    expected = {
        (bank, layer): len(held)
        for bank, _, held in layout.banks(stream.position)
        for layer in range(num_layers)
    }
    found = {key: held.num_tokens for key, held in stream.banks.items()}
    sizes = {held.num_tokens for held in stream.cache} - {num_positions(stream.cached)}
    return expected == found and not sizes and num_positions(stream.cached) <= layout.num_cached
