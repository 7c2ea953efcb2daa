"""Whole updates as CUDA graphs: captured once, replayed for every segment that looks the same.

What goes in lies in memory of its own: tokens, targets, numbers such as the learning rate, and
the lanes' states. Where the states that come out look like those that went in, the graph itself
puts them in their place, and can run again at once; else another graph takes them in. Positions
are not in a graph; they are reckoned by how often it ran, and by where it began.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from staircase_attention.engine.kernels.graphs import Pool, captured
from staircase_attention.models import LSTMState, State, Stream
from staircase_attention.training.objective import Carried

Inputs: TypeAlias = tuple[Tensor, ...]
Looks: TypeAlias = tuple[object, ...] | None
Work: TypeAlias = Callable[..., tuple[Tensor, list[Carried]]]
"""An update on a device: inputs and states, to results and states."""


class CapturedUpdate:
    """An update of one look, the states that go in, and those that come out."""

    def __init__(
        self,
        work: Work,
        inputs: Inputs,
        states: Sequence[Carried],
        looks: Looks,
        beside: "CapturedUpdate | None" = None,
    ) -> None:
        """Share memory with those that are there already, of which `beside` is one."""
        # Nothing is lost by it, as updates run one after another on one stream. Inputs, states and
        # results are held here, so that no later capture takes their memory. Earlier ones may
        # write where results and states of this one come out, but these are read, or no longer
        # wanted, before another one runs.
        self.pool: Pool = Pool() if beside is None else beside.pool
        self.inputs = tuple(part.clone() for part in inputs)
        self.before = [_map(state, torch.clone) for state in states]
        self.origin = self.before
        """The states that went in at the capture; their tensors are those of `before`."""
        self.num_runs = 0
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # What the updates before this one left in the allocator serves the graph's own memory.
        torch.cuda.empty_cache()
        with captured(self.graph, self.pool):
            self.results, after = work(*self.inputs, self.before)
            goes_on = looks_of(inputs, after) == looks
            if goes_on:
                for old, new in zip(_tensors(self.before), _tensors(after), strict=True):
                    old.copy_(new)
        self.strides = _all_strides(self.before, after) if goes_on else []
        """How far each run moves states that keep their look."""
        self.after = None if goes_on else after
        """States that come out with another look, where they stood at the capture."""

    def can_go_on(self, inputs: Inputs) -> bool:
        """Whether it can run again at once, from the states that it gave, with these inputs."""
        pairs = zip(self.inputs, inputs, strict=True)
        return self.after is None and all(own.shape == given.shape for own, given in pairs)

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
        """The states as the latest run left them, in memory of their own."""
        if self.after is None:
            given, strides, count = self.before, self.strides, self.num_runs
        else:
            given, strides, count = self.after, _all_strides(self.origin, self.before), 1
        moved = [_moved(state, own, count) for state, own in zip(given, strides, strict=True)]
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
        tuple((part.start - here, part.stop - here) for part in stream.cached),
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


Stride: TypeAlias = tuple[int, int]
"""How far a stream moves: its position, the numbers of its banks."""


def _all_strides(before: Sequence[Carried], after: Sequence[Carried]) -> list[list[Stride]]:
    return [_strides(*pair) for pair in zip(before, after, strict=True)]


def _strides(before: Carried, after: Carried) -> list[Stride]:
    """From one state to another that looks like it; none where nothing has begun."""
    if not isinstance(before, State) or not isinstance(after, State):
        return []
    pairs = zip(before.streams, after.streams, strict=True)
    return [_stride(old, new, before.chunk_length) for old, new in pairs]


def _stride(before: Stream, after: Stream, chunk_length: int) -> Stride:
    tokens = after.position - before.position
    # Full chunks that make one pass leave no bank open; the next ones are numbered by chunks.
    by_chunks = tokens // chunk_length
    return (
        tokens,
        _keys(after)[0][0] - _keys(before)[0][0] if before.banks else by_chunks,
    )


def _moved(state: Carried, strides: Sequence[Stride], count: int) -> Carried:
    """A state so many strides further on; without any, where it is."""
    if not isinstance(state, State) or not strides:
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
                cached=tuple(
                    range(part.start + count * tokens, part.stop + count * tokens)
                    for part in stream.cached
                ),
            )
            for stream, (tokens, banks) in zip(state.streams, strides, strict=True)
        ),
    )
