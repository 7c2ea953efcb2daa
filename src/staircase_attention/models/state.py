"""Where a stream stands: everything a model must remember to carry on exactly."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from staircase_attention.layers import KeysValues
from staircase_attention.schedules import num_positions, overlap

LONGEST_SHARED = 1024
"""Cached tokens that rows which begin anew would share room with rather than run by themselves."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Batch rows whose chunks begin at the same positions, and what their past left behind."""

    rows: tuple[int, ...]
    """Which rows of the batch these are, in ascending order."""
    position: int = 0
    """Tokens that have come in since the first of these rows began."""
    starts: tuple[int, ...]
    """The position at which each row began; what came before is hidden from it."""
    banks: Mapping[tuple[int, int], KeysValues] = field(default_factory=dict)
    """For each (bank, layer), what the next queries of that bank's step will see."""
    cache: Sequence[KeysValues] = ()
    """For each layer, or once for all, the keys and values of cached tokens."""
    cached: tuple[range, ...] = ()
    """Positions of the cached tokens."""

    @classmethod
    def fresh(cls, rows: Sequence[int]) -> "Stream":
        """Rows that have not begun."""
        return cls(rows=tuple(rows), starts=(0,) * len(rows))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Stream":
        """The same change made to every tensor."""
        return replace(
            self,
            banks={key: held.map(change) for key, held in self.banks.items()},
            cache=tuple(held.map(change) for held in self.cache),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor held."""
        return [part for held in (*self.banks.values(), *self.cache) for part in held]

    def select(self, places: Sequence[int], rows: Sequence[int]) -> "Stream":
        """Some of these rows, by their place here, under new row numbers."""
        index = torch.tensor(places, dtype=torch.int64)
        chosen = self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))
        starts = tuple(self.starts[place] for place in places)
        return replace(chosen, rows=tuple(rows), starts=starts)

    def is_in_step_with(self, other: "Stream") -> bool:
        """Whether both hold the same things of the same positions, so that they can be one."""
        mine, theirs = (
            {key: held.num_tokens for key, held in stream.banks.items()} for stream in (self, other)
        )
        return self.position == other.position and self.cached == other.cached and mine == theirs

    def beside(self, other: "Stream") -> "Stream":
        """The rows of both, as one stream."""

        def both(one: KeysValues, two: KeysValues) -> KeysValues:
            return KeysValues(torch.cat([one.keys, two.keys]), torch.cat([one.values, two.values]))

        together = replace(
            self,
            rows=self.rows + other.rows,
            starts=self.starts + other.starts,
            banks={key: both(held, other.banks[key]) for key, held in self.banks.items()},
            cache=tuple(both(*pair) for pair in zip(self.cache, other.cache, strict=True)),
        )
        rows = sorted(together.rows)
        if rows == list(together.rows):
            return together
        return together.select([together.rows.index(row) for row in rows], rows)

    def restart(self, anew: Bool[Tensor, " rows"]) -> "Stream":
        """Let some of these rows begin anew, which fits only where a chunk begins."""
        flags: list[bool] = anew.tolist()

        def cleared(tensor: Tensor) -> Tensor:
            # What is hidden gets weight zero; cleared, not even a NaN left there can come back.
            return tensor.masked_fill(anew.to(tensor.device)[:, None, None, None], 0.0)

        starts = tuple(
            self.position if begins else start
            for start, begins in zip(self.starts, flags, strict=True)
        )
        return replace(self.map(cleared), starts=starts)._without_strangers()

    def _without_strangers(self) -> "Stream":
        """Without the cached tokens that came before any of these rows began."""
        cached = overlap(self.cached, (range(min(self.starts), self.position),))
        drop = num_positions(self.cached) - num_positions(cached)
        return replace(
            self,
            cache=tuple(held.part(drop, held.num_tokens).map(torch.clone) for held in self.cache),
            cached=cached,
        )


@dataclass(frozen=True, kw_only=True)
class State:
    """Where the streams of a batch stand. A value: every method gives a new one.

    Gradients flow through a state until it is detached. Rows are usually one `Stream`; rows that
    were reset inside a chunk have their chunks elsewhere and form another.
    """

    model: Mapping[str, Any]
    """The shape of the model it belongs to, as plain data."""
    chunk_length: int
    """Rows that begin at multiples of this can share a stream."""
    streams: tuple[Stream, ...]

    @classmethod
    def fresh(cls, *, model: Mapping[str, Any], chunk_length: int, batch_size: int) -> "State":
        """The state of streams that have not begun."""
        streams = (Stream.fresh(range(batch_size)),)
        return cls(model=model, chunk_length=chunk_length, streams=streams)

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return sum(len(stream.rows) for stream in self.streams)

    @property
    def num_bytes(self) -> int:
        """Size of all that is remembered."""
        return sum(part.numel() * part.element_size() for part in self._tensors)

    @property
    def lengths(self) -> tuple[int, ...]:
        """For each batch row, the tokens it has taken in since it began."""
        by_row = {
            row: stream.position - start
            for stream in self.streams
            for row, start in zip(stream.rows, stream.starts, strict=True)
        }
        return tuple(by_row[row] for row in range(self.batch_size))

    @property
    def devices(self) -> set[torch.device]:
        """Where it lies: nowhere, where nothing is remembered yet."""
        return {tensor.device for tensor in self._tensors}

    @property
    def dtypes(self) -> set[torch.dtype]:
        """In what numbers; autocast makes two kinds of what it touches in turns."""
        return {tensor.dtype for tensor in self._tensors}

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "State":
        """The same state on another device, or in other numbers."""
        return self._map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def detach(self) -> "State":
        """The same state, through which no gradient flows."""
        return self._map(torch.Tensor.detach)

    def select(self, rows: Sequence[int] | Int[Tensor, " rows"]) -> "State":
        """The state of a batch made of these rows, in this order; a row may come up repeatedly."""
        rows = checked_rows(rows, self.batch_size)
        streams = []
        for stream in self.streams:
            places = {row: place for place, row in enumerate(stream.rows)}
            picked = [(places[row], new) for new, row in enumerate(rows) if row in places]
            if picked:
                streams.append(stream.select(*zip(*picked, strict=True)))
        return replace(self, streams=tuple(streams))

    @classmethod
    def join(cls, states: Sequence["State"]) -> "State":
        """The state of a batch made of these batches' rows, one after another."""
        if not states or any(state.model != states[0].model for state in states):
            kinds = ", ".join(str(state.model) for state in states) or "none"
            raise ValueError(
                f"states that are joined must be of one model, got {kinds}; join those of one"
            )
        streams: list[Stream] = []
        num_rows = 0
        for state in states:
            for stream in state.streams:
                moved = replace(stream, rows=tuple(row + num_rows for row in stream.rows))
                twin = next((one for one in streams if one.is_in_step_with(moved)), None)
                if twin is None:
                    streams.append(moved)
                else:
                    streams[streams.index(twin)] = twin.beside(moved)
            num_rows += state.batch_size
        return replace(states[0], streams=tuple(streams))

    def reset(self, rows: Bool[Tensor, " batch"] | Sequence[bool]) -> "State":
        """Let the rows that are True begin anew, as if nothing had come before."""
        mask = checked_mask(rows, self.batch_size)
        streams: list[Stream] = []
        homeless: list[int] = []
        for stream in self.streams:
            kept, leaving = self._restart(stream, mask[list(stream.rows)])
            streams += kept
            homeless += leaving
        return replace(self, streams=tuple(self._housed(streams, sorted(homeless))))

    def _housed(self, streams: list[Stream], homeless: list[int]) -> list[Stream]:
        """With rows that begin now: in a stream whose chunk begins now too, or in one of their own.

        A guest takes up as much room as its host, so that one with a long past stays alone.
        """
        if not homeless:
            return streams
        hosts = [number for number, one in enumerate(streams) if self._is_host(one)]
        if not hosts:
            return [*streams, Stream.fresh(homeless)]
        host = streams[hosts[0]]
        place_of = {row: place for place, row in enumerate(host.rows)}
        rows = sorted([*host.rows, *homeless])
        together = host.select([place_of.get(row, 0) for row in rows], rows)
        streams[hosts[0]] = together.restart(torch.tensor([row not in place_of for row in rows]))
        return streams

    def _is_host(self, stream: Stream) -> bool:
        return self._is_aligned(stream) and num_positions(stream.cached) <= LONGEST_SHARED

    def _is_aligned(self, stream: Stream) -> bool:
        return stream.position % self.chunk_length == 0

    def _restart(
        self, stream: Stream, anew: Bool[Tensor, " rows"]
    ) -> tuple[list[Stream], list[int]]:
        """The stream with some rows begun anew, and the rows that must begin elsewhere."""
        flags: list[bool] = anew.tolist()
        if not any(flags):
            return [stream], []
        if self._is_aligned(stream) and not all(flags):
            return [stream.restart(anew)], []
        stay = [place for place, begins in enumerate(flags) if not begins]
        kept = [stream.select(stay, [stream.rows[place] for place in stay])] if stay else []
        return kept, [row for row, begins in zip(stream.rows, flags, strict=True) if begins]

    @property
    def _tensors(self) -> list[Tensor]:
        return [tensor for stream in self.streams for tensor in stream.tensors]

    def _map(self, change: Callable[[Tensor], Tensor]) -> "State":
        return replace(self, streams=tuple(stream.map(change) for stream in self.streams))


def checked_mask(rows: Bool[Tensor, " batch"] | Sequence[bool], batch_size: int) -> Tensor:
    """One True or False for each row of a batch, on the CPU."""
    mask = torch.as_tensor(rows).cpu()
    if mask.dtype != torch.bool or mask.shape != (batch_size,):
        raise ValueError(
            f"reset takes one True or False for each of the {batch_size} batch rows, "
            f"got {tuple(mask.shape)} of {mask.dtype}; pass a boolean mask of rows"
        )
    return mask


def checked_rows(rows: Sequence[int] | Int[Tensor, " rows"], batch_size: int) -> list[int]:
    """Row numbers, which may be NumPy's or PyTorch's, all of which the batch has."""
    given: list[Any] = list(rows.tolist() if isinstance(rows, Tensor) else rows)
    wrong = [
        row
        for row in given
        if isinstance(row, bool) or not isinstance(row, Integral) or row not in range(batch_size)
    ]
    if wrong or not given:
        raise ValueError(
            f"rows must be numbers from 0 to {batch_size - 1}, at least one, "
            f"got {wrong or 'none'}; the state has {batch_size} batch rows"
        )
    return [int(row) for row in given]
