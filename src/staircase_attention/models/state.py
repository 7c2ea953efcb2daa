"""Where a stream stands: everything a model must remember to continue exactly."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, zip_longest
from numbers import Integral
from typing import Any, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from staircase_attention.checks import input_error
from staircase_attention.layers import KeysValues
from staircase_attention.schedules import num_positions, overlap

STATE_RULE = "state must be the second value of a call of the model"


class TensorState(ABC):
    """What a model must remember, in tensors. A value: every method gives a new one."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same change made to every tensor."""

    @property
    @abstractmethod
    def _tensors(self) -> Sequence[Tensor]:
        """Every tensor held."""

    @property
    def num_bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    @property
    def devices(self) -> set[torch.device]:
        """The devices of its tensors; none where nothing is remembered yet."""
        return {tensor.device for tensor in self._tensors}

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of its tensors; two where autocast is used at times."""
        return {tensor.dtype for tensor in self._tensors}

    def check_placed(self, here: Tensor) -> None:
        """Refuse tensors of another dtype or device than those of a model with this weight."""
        if self.dtypes - {here.dtype} and not torch.is_autocast_enabled(here.device.type):
            rule = f"a state must have the dtype of the model, {here.dtype}"
            found = ", ".join(sorted(map(str, self.dtypes)))
            raise input_error(rule, found, f"use state.to(dtype={here.dtype})")
        if self.devices - {here.device}:
            rule = f"a state must be on the device of the model, {here.device}"
            found = ", ".join(sorted(map(str, self.devices)))
            raise input_error(rule, found, f"use state.to('{here.device}')")

    def to(
        self,
        device: torch.device | torch.dtype | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The same state on another device, or in another dtype."""
        given = device if isinstance(device, torch.dtype) else dtype
        if given is not None and not given.is_floating_point:
            rule = "the dtype of a state must be a floating one, of its model"
            raise input_error(rule, given, "use for example state.to(dtype=torch.float32)")
        place = None if isinstance(device, torch.dtype) else device
        return self.map(lambda tensor: tensor.to(device=place, dtype=given))

    def detach(self) -> Self:
        """The same state, through which no gradient flows."""
        return self.map(torch.Tensor.detach)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Batch rows whose chunks begin at the same positions, and what they must remember."""

    rows: tuple[int, ...]
    """Which rows of the batch these are, in ascending order."""
    position: int = 0
    """Tokens that have arrived since the first of these rows began."""
    starts: tuple[int, ...]
    """The position at which each row began; what came before is hidden from it."""
    banks: Mapping[tuple[int, int], KeysValues] = field(default_factory=dict, repr=False)
    """For each (bank, layer), what the next queries of that bank's step will see."""
    cache: Sequence[KeysValues] = field(default=(), repr=False)
    """For each layer, or once for all, the keys and values of cached tokens."""
    cached: tuple[range, ...] = ()
    """Positions of the cached tokens."""

    @classmethod
    def fresh(cls, rows: Sequence[int]) -> "Stream":
        """Rows that have not begun."""
        return cls(rows=tuple(rows), starts=(0,) * len(rows))

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor held: the banks by their numbers, then the cache."""
        banks = [self.banks[key] for key in sorted(self.banks)]
        return [part for held in (*banks, *self.cache) for part in held]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Stream":
        """The same change made to every tensor."""
        return replace(
            self,
            banks={key: held.map(change) for key, held in self.banks.items()},
            cache=tuple(held.map(change) for held in self.cache),
        )

    def select(self, places: Sequence[int], rows: Sequence[int]) -> "Stream":
        """Some of these rows, by their place here, under new row numbers."""
        index = torch.tensor(places, dtype=torch.int64)
        chosen = self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))
        starts = tuple(self.starts[place] for place in places)
        return replace(chosen, rows=tuple(rows), starts=starts)._without_hidden()

    def fits_beside(self, other: "Stream", period: int) -> bool:
        """Whether both can be one stream if one of them is shifted by whole periods."""
        begun = [one for one in (self, other) if min(one.starts) < one.position]
        layers = [[layer for _, layer in sorted(one.banks)] for one in begun]
        if (self.position - other.position) % period or layers != layers[:1] * len(begun):
            return False
        # What a bank lacks that the other stream's has must be from before its own rows began.
        return all(
            one.banks[mine].num_tokens
            >= min(one.position - min(one.starts), two.banks[theirs].num_tokens)
            for one, two in permutations(begun, 2)
            for mine, theirs in zip(sorted(one.banks), sorted(two.banks), strict=True)
        )

    def shifted(self, position: int, banks: Iterable[tuple[int, int]]) -> "Stream":
        """The same rows at a later position, with banks that are numbered as these, in order.

        Only distances matter, and a timetable opens the same banks at the same place of a period.
        """
        by = position - self.position
        return replace(
            self,
            position=position,
            starts=tuple(start + by for start in self.starts),
            banks={
                new: self.banks[old]
                for new, old in zip(sorted(banks), sorted(self.banks))  # noqa: B905
            },
            cached=tuple(range(part.start + by, part.stop + by) for part in self.cached),
        )

    def beside(self, other: "Stream") -> "Stream":
        """The rows of both, as one stream, at the later of both positions."""
        position = max(self.position, other.position)
        numbers = max(self, other, key=lambda one: (one.position, len(one.banks))).banks
        one, two = (stream.shifted(position, numbers) for stream in (self, other))
        num_rows = len(one.rows), len(two.rows)
        together = replace(
            one,
            rows=one.rows + two.rows,
            starts=one.starts + two.starts,
            banks={key: _both(one.banks.get(key), two.banks.get(key), num_rows) for key in numbers},
            cache=tuple(_both(*pair, num_rows) for pair in zip_longest(one.cache, two.cache)),
            # Whoever began earlier has cached what the other has, and more.
            cached=max(one.cached, two.cached, key=num_positions),
        )
        # A stream's rows are in ascending order.
        rows = sorted(together.rows)
        if rows == list(together.rows):
            return together
        return together.select([together.rows.index(row) for row in rows], rows)

    def _without_hidden(self) -> "Stream":
        """Without cached tokens from before all rows began, which are seen by none."""
        cached = overlap(self.cached, (range(min(self.starts), self.position),))
        drop = num_positions(self.cached) - num_positions(cached)
        if not drop:
            return self
        cache = tuple(held.part(drop, held.num_tokens).map(torch.clone) for held in self.cache)
        return replace(self, cache=cache, cached=cached)


@dataclass(frozen=True, kw_only=True)
class State(TensorState):
    """Where the streams of a batch stand.

    Gradients flow through a state until it is detached. Rows are usually one `Stream`; rows that
    were reset inside a period have their chunks elsewhere and form another.
    """

    model: Mapping[str, Any]
    """The shape of the model it belongs to, as plain data."""
    chunk_length: int
    """The schedule's period: rows that begin at its multiples can share a stream."""
    streams: tuple[Stream, ...]

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return sum(len(stream.rows) for stream in self.streams)

    @property
    def lengths(self) -> tuple[int, ...]:
        """For each batch row, the number of tokens since it began."""
        by_row = {
            row: stream.position - start
            for stream in self.streams
            for row, start in zip(stream.rows, stream.starts, strict=True)
        }
        return tuple(by_row[row] for row in range(self.batch_size))

    def select(self, rows: Sequence[int] | Int[Tensor, " rows"]) -> "State":
        """The state of a batch made of these rows, in this order; a row may be repeated."""
        rows = checked_rows(rows, self.batch_size)
        streams = []
        for stream in self.streams:
            places = {row: place for place, row in enumerate(stream.rows)}
            picked = [(places[row], new) for new, row in enumerate(rows) if row in places]
            if picked:
                streams.append(stream.select(*zip(*picked, strict=True)))
        return replace(self, streams=tuple(streams))

    @classmethod
    def join(cls, states: Sequence["State"], *, shifts: bool = False) -> "State":
        """The state of a batch made of these batches' rows, one after another.

        Rows at one position become one stream, which is faster: what a longer past has before a
        shorter one is hidden. With `shifts`, so do all rows at the same place of a period: they are
        shifted to one position.
        """
        if not states or any(state.model != states[0].model for state in states):
            kinds = ", ".join(str(state.model) for state in states) or "none"
            raise input_error("states to join must be of one model", kinds, "join those of one")
        streams: list[Stream] = []
        num_rows, period = 0, states[0].chunk_length
        for state in states:
            for stream in state.streams:
                moved = replace(stream, rows=tuple(row + num_rows for row in stream.rows))
                # Fewer streams mean fewer, larger steps.
                for at, one in enumerate(streams):
                    is_near = shifts or one.position == moved.position
                    if is_near and one.fits_beside(moved, period):
                        streams[at] = one.beside(moved)
                        break
                else:
                    streams.append(moved)
            num_rows += state.batch_size
        return replace(states[0], streams=tuple(streams))

    def reset(self, rows: Bool[Tensor, " batch"] | Sequence[bool]) -> "State":
        """Restart the rows that are True, as if nothing had come before."""
        mask: list[bool] = checked_mask(rows, self.batch_size).tolist()
        old = [row for row, is_new in enumerate(mask) if not is_new]
        new = [row for row, is_new in enumerate(mask) if is_new]
        if not new:
            return self
        begun = replace(self, streams=(Stream.fresh(range(len(new))),))
        if not old:
            return begun
        # New rows begin in a stream where a period begins now, or in one of their own.
        together = State.join([self.select(old), begun], shifts=True)
        return together.select(sorted(range(len(mask)), key=[*old, *new].__getitem__))

    @property
    def _tensors(self) -> list[Tensor]:
        return [tensor for stream in self.streams for tensor in stream.tensors]

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The same change made to every tensor."""
        return replace(self, streams=tuple(stream.map(change) for stream in self.streams))


def _both(one: KeysValues | None, two: KeysValues | None, num_rows: tuple[int, int]) -> KeysValues:
    """The rows of both, with zeros before what is shorter."""
    some = one or two
    assert some is not None
    # Rows that have not begun hold nothing.
    held = [
        part or some.map(lambda tensor: tensor[:1, :, :0].expand(number, -1, -1, -1))  # noqa: B023
        for part, number in zip((one, two), num_rows, strict=True)
    ]
    longest = max(part.num_tokens for part in held)
    padded = [
        part.map(lambda tensor: pad(tensor, (0, 0, longest - tensor.shape[2], 0))) for part in held
    ]
    return KeysValues(*(torch.cat(tensors) for tensors in zip(*padded, strict=True)))


def checked_mask(rows: Bool[Tensor, " batch"] | Sequence[bool], batch_size: int) -> Tensor:
    """One True or False for each row of a batch, on the CPU."""
    mask = torch.as_tensor(rows).cpu()
    if mask.dtype != torch.bool or mask.shape != (batch_size,):
        rule = f"reset takes one True or False for each of the {batch_size} batch rows"
        found = f"{tuple(mask.shape)} of {mask.dtype}"
        raise input_error(rule, found, "pass a boolean mask of rows")
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
        rule = f"rows must be numbers from 0 to {batch_size - 1}, at least one"
        raise input_error(rule, wrong or "none", f"the state has {batch_size} batch rows")
    return [int(row) for row in given]
