"""Whole updates as CUDA graphs: captured once, replayed for every segment that looks the same.

What goes in lies in memory of its own: tokens, targets, numbers such as the learning rate, and
the lanes' states, which the graph itself replaces by what comes out. Positions are not in the
graph; they are reckoned by how often it ran.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from staircase_attention.kernels.graphs import captured
from staircase_attention.models import LSTMState, State, Stream
from staircase_attention.training.objective import Carried

Inputs: TypeAlias = tuple[Tensor, ...]
Looks: TypeAlias = tuple[object, ...] | None
Work: TypeAlias = Callable[..., tuple[Tensor, list[Carried]]]
"""An update on a device: inputs and states, to results and states."""


class CapturedUpdate:
    """An update of one shape, and the states that go from one run of it to the next."""

    def __init__(self, work: Work, inputs: Inputs, states: Sequence[Carried], looks: Looks) -> None:
        self.looks = looks
        self.inputs = tuple(part.clone() for part in inputs)
        self.before = [_map(state, torch.clone) for state in states]
        self.num_runs = 0
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # What the updates before this one left in the allocator serves the graph's own memory.
        torch.cuda.empty_cache()
        with captured(self.graph):
            self.results, after = work(*self.inputs, self.before)
            if looks_of(inputs, after) != looks:
                raise RuntimeError(
                    "the states that come out look different from those that go in; "
                    "training.segment_length should be a multiple of the chunk size"
                )
            for old, new in zip(_tensors(self.before), _tensors(after), strict=True):
                old.copy_(new)
        pairs = zip(self.before, after, strict=True)
        self.strides = [_strides(old, new) for old, new in pairs]

    def fits(self, inputs: Inputs) -> bool:
        """Whether inputs have the shapes of those it was captured with."""
        pairs = zip(self.inputs, inputs, strict=True)
        return all(own.shape == given.shape for own, given in pairs)

    def run(self, inputs: Inputs) -> Tensor:
        """One update; its results are overwritten by the next."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        self.graph.replay()
        self.num_runs += 1
        return self.results

    def take_in(self, states: Sequence[Carried]) -> None:
        """Go on from these states, which look like those of the capture."""
        own = _tensors(self.before)
        for old, new in zip(own, _tensors(states), strict=True):
            old.copy_(new)
        self.before = _with_tensors(states, own)
        self.num_runs = 0

    def states(self) -> list[Carried]:
        """The states as they are now, in memory of their own."""
        pairs = zip(self.before, self.strides, strict=True)
        moved = [_moved(state, strides, self.num_runs) for state, strides in pairs]
        return [_map(state, torch.clone) for state in moved]


def looks_of(inputs: Inputs, states: Sequence[Carried]) -> Looks:
    """What two updates have in common if one graph serves both; None: no graph does."""
    looks: list[object] = [part.shape for part in inputs]
    for state in states:
        if isinstance(state, State):
            # A row that began later hides keys from itself by a mask, which moves.
            if any(start for stream in state.streams for start in stream.starts):
                return None
            looks += [_look(stream, state.chunk_length) for stream in state.streams]
        else:
            looks.append(tuple(tensor.shape for tensor in _tensors([state])))
    return tuple(looks)


def _look(stream: Stream, chunk_length: int) -> tuple[object, ...]:
    here = stream.position
    return (
        stream.rows,
        here % chunk_length,
        tuple((layer, stream.banks[bank, layer].keys.shape) for bank, layer in _keys(stream)),
        tuple(held.keys.shape for held in stream.cache),
        (stream.cached.start - here, stream.cached.stop - here) if stream.cache else None,
        frozenset(tensor.dtype for tensor in stream.tensors),
    )


def _keys(stream: Stream) -> list[tuple[int, int]]:
    return sorted(stream.banks)


def _tensors(states: Sequence[Carried]) -> list[Tensor]:
    """All tensors, in an order that depends on the looks only."""
    found: list[Tensor] = []
    for state in states:
        if isinstance(state, LSTMState):
            found += [state.hidden, state.cell]
        elif state is not None:
            for stream in state.streams:
                found += [part for key in _keys(stream) for part in stream.banks[key]]
                found += [part for held in stream.cache for part in held]
    return found


def _map(state: Carried, change: Callable[[Tensor], Tensor]) -> Carried:
    if state is None or isinstance(state, LSTMState):
        return state and state.map(change)
    return replace(state, streams=tuple(stream.map(change) for stream in state.streams))


def _with_tensors(states: Sequence[Carried], tensors: Sequence[Tensor]) -> list[Carried]:
    """States that stand where these do, with other tensors in their places."""
    others = dict(zip(map(id, _tensors(states)), tensors, strict=True))
    return [_map(state, lambda tensor: others[id(tensor)]) for state in states]


Stride: TypeAlias = tuple[int, int, int, int]
"""How far an update moves a stream: its position, the numbers of its banks, its cache's ends."""


def _strides(before: Carried, after: Carried) -> list[Stride]:
    if not isinstance(before, State) or not isinstance(after, State):
        return []
    return [
        (
            new.position - old.position,
            _keys(new)[0][0] - _keys(old)[0][0] if old.banks else 0,
            new.cached.start - old.cached.start,
            new.cached.stop - old.cached.stop,
        )
        for old, new in zip(before.streams, after.streams, strict=True)
    ]


def _moved(state: Carried, strides: Sequence[Stride], count: int) -> Carried:
    """Where a state stands after some updates."""
    if not isinstance(state, State):
        return state
    return replace(
        state,
        streams=tuple(
            replace(
                stream,
                position=stream.position + count * tokens,
                banks={
                    (bank + count * banks, layer): held
                    for (bank, layer), held in stream.banks.items()
                },
                cached=range(
                    stream.cached.start + count * start, stream.cached.stop + count * stop
                ),
            )
            for stream, (tokens, banks, start, stop) in zip(state.streams, strides, strict=True)
        ),
    )
