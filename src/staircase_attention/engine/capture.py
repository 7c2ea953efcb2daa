"""Whole updates as CUDA graphs: captured once, replayed for every update with the same timetable.

`step = CapturedUpdates(step, model, report=...)` wraps a step function as PyTorch's
`make_graphed_callables` does: `results, states = step(inputs, states)`, both in memory that the
next call may overwrite.

A graph holds tensors only. What else is in a state (positions, numbers of banks, cached positions)
follows from the timetable: two updates can share a graph if their steps, and what the ledger holds
before and after each of them, are the same relative to the first position and up to the numbers
of banks. After a replay, the ledger of that update gives the numbers.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from staircase_attention.engine.kernels.graphs import Pool, captured
from staircase_attention.models import SequenceModel, State, Stream, passes_of
from staircase_attention.schedules import Ledger

# Tokens (rows, time) first, then whatever else the step takes.
Inputs: TypeAlias = tuple[Tensor, ...]
# Inputs and states (State, or None before the first token) to results and states.
StepFunction: TypeAlias = Callable[[Inputs, list[Any]], tuple[Tensor, list[Any]]]
# Number of tokens for each (bank, layer), in the order of these.
Held: TypeAlias = tuple[tuple[tuple[int, int], int], ...]

# Updates unlike all before them after which capturing is given up.
MOST_EAGER = 100
# Further graphs are made only for updates that repeat the one before.
MOST_GRAPHS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The timetable of one segment, and what a stream holds after it."""

    signature: Hashable
    """Equal for two segments whose steps one graph can run."""
    stop: int
    """Position after the segment."""
    held: Held
    cached: tuple[range, ...]


def plan_segment(
    model: SequenceModel,
    num_passes: int | None,
    tokens: range,
    held: Held,
    cached: tuple[range, ...],
) -> Plan:
    """Follow the timetable of a segment from what a stream holds before it."""
    schedule = model.schedule if num_passes is None else model.schedule.with_passes(num_passes)
    # Banks are renamed: first those that are held, by number, then others as they come up.
    names: dict[int, int] = {}
    for (bank, _), _ in held:
        names.setdefault(bank, len(names))

    def relative(ranges: Sequence[range]) -> tuple[int, ...]:
        return tuple(end - tokens.start for part in ranges for end in (part.start, part.stop))

    def renamed(ledger_banks: Held) -> tuple[tuple[int, int, int], ...]:
        return tuple((names[bank], layer, count) for (bank, layer), count in ledger_banks)

    before = (renamed(held), relative(cached))
    ledger, rows = Ledger(dict(held), cached, attends_self=schedule.attends_self), []
    depth, span = model.config.depth, model.outside_span
    phases = schedule.phases(tokens, depth=depth, order="window", span=span)
    for step, _ in ledger.follow(chain.from_iterable(phases)):
        cells = tuple((*relative([cell.tokens]), cell.cached) for cell in step.cells)
        bank = names.setdefault(step.bank, len(names))
        # What the step keeps in the cache shows in the ledger before the next step.
        row = (bank, step.layers, cells, relative(step.frozen), step.retained)
        rows.append((row, relative(ledger.cached)))
    after = tuple(sorted(ledger.banks.items()))
    signature = (before, tuple(rows), renamed(after), relative(ledger.cached))
    return Plan(signature=signature, stop=tokens.stop, held=after, cached=ledger.cached)


class CapturedUpdates:
    """A step function whose updates are captured as CUDA graphs when they repeat.

    An update runs eagerly when its signature is new, and is captured when it comes for the second
    time. There is one graph for states of full size, and some for those before, which come again
    whenever lanes restart.
    """

    def __init__(
        self, step: StepFunction, model: SequenceModel, *, report: Callable[[str], None]
    ) -> None:
        self.step, self.model = step, model
        # A remark is made once.
        self.report = cache(report)
        # Micro-batches share a plan, and the next one is made while the GPU is busy.
        self._plan = lru_cache(maxsize=32)(partial(plan_segment, model))
        self.graphs: dict[Any, UpdateGraph] = {}
        self.is_capturing = True
        self._seen: set[Hashable] = set()
        """Signatures of updates that ran eagerly."""
        self._num_new: Counter[Hashable] = Counter()
        """Updates whose signature was new, by the passes of their micro-batches."""
        self._latest: list[Any] | None = None
        """The states that the latest call returned."""
        self._previous: Hashable = None
        """The signature of the latest call."""

    def __call__(self, inputs: Inputs, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """One update. Results and states are valid until the next call."""
        if not self.is_capturing:
            return self.step(inputs, states)
        graph = self._graph_for(self.signature(inputs, states), inputs, states)
        if graph is None:
            results, after = self._run_eagerly(inputs, states)
        else:
            results = graph.replay(inputs, states)
            after = graph.states_after(self._plans(inputs, states))
            # Overlaps with the replay: the next call finds its plans made.
            self._plans(inputs, after)
        self._latest = after
        return results, after

    def signature(self, inputs: Inputs, states: Sequence[State | None]) -> Hashable:
        """What two updates have in common if one graph can run both; None if no graph can."""
        # A row that started later hides keys from itself by a mask, which moves.
        for state in states:
            if state and (len(state.streams) > 1 or any(state.streams[0].starts)):
                return None
        return (
            self._passes(states),
            tuple(part.shape for part in inputs),
            tuple(plan.signature for plan in self._plans(inputs, states)),
            tuple((part.shape, part.dtype) for part in tensors_of(states)),
            tuple(state is None for state in states),
        )

    def _plans(self, inputs: Inputs, states: Sequence[State | None]) -> list[Plan]:
        plans = []
        for state in states:
            stream = state.streams[0] if state else Stream.fresh([0])
            held = tuple((key, stream.banks[key].num_tokens) for key in sorted(stream.banks))
            tokens = range(stream.position, stream.position + inputs[0].shape[1])
            plans.append(self._plan(passes_of(state), tokens, held, stream.cached))
        return plans

    def _passes(self, states: Sequence[State | None]) -> tuple[int | None, ...]:
        """The passes of every micro-batch."""
        usual = getattr(self.model.schedule, "num_passes", None)
        return tuple(usual if state is None else passes_of(state) for state in states)

    def _graph_for(
        self, signature: Hashable, inputs: Inputs, states: list[Any]
    ) -> "UpdateGraph | None":
        """The graph of this update, made now if it is due."""
        passes = self._passes(states)
        is_repeated = signature == self._previous and states is self._latest
        self._previous = signature
        if signature is None or signature not in self._seen:
            self._seen.add(signature)
            self._num_new[passes] += 1
            if self._num_new[passes] > MOST_EAGER:
                self._give_up(
                    "their timetables keep changing, as with states that grow, or segments that "
                    "end at ever other places within a chunk"
                )
            return None
        if signature not in self.graphs:
            num_graphs = sum(known[0] == passes for known in self.graphs)
            if is_repeated or num_graphs < MOST_GRAPHS:
                self._capture(signature, inputs, states)
            else:
                self.report(f"{MOST_GRAPHS} CUDA graphs are the most; other updates are slower")
        return self.graphs.get(signature)

    def _run_eagerly(self, inputs: Inputs, states: list[Any]) -> tuple[Tensor, list[Any]]:
        try:
            return self.step(inputs, states)
        except torch.OutOfMemoryError:
            if not self.graphs:
                raise
        # Memory is short. No weights have changed yet, so the update can be repeated.
        self.report(
            "CUDA graphs are made again and again, because memory is too small for them beside "
            "eager updates; use more training.num_micro_batches, or training.recompute"
        )
        self._drop_graphs()
        return self.step(inputs, states)

    def _capture(self, signature: Hashable, inputs: Inputs, states: list[Any]) -> None:
        first = next(iter(self.graphs.values()), None)
        pool = first.pool if first else None
        try:
            self.graphs[signature] = UpdateGraph(self, signature, inputs, states, pool)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            lacks_memory = isinstance(error, torch.OutOfMemoryError) and first is not None
        else:
            return
        # A failed capture may damage the shared pool. By now the error is gone, and with it the
        # tensors that it kept alive.
        del first, pool
        if lacks_memory:
            self._drop_graphs()
            self._capture(signature, inputs, states)
        else:
            self._give_up(why)

    def _drop_graphs(self) -> None:
        """Free the memory of all graphs."""
        self.graphs.clear()
        torch.cuda.empty_cache()

    def _give_up(self, why: str) -> None:
        self.is_capturing = False
        self._drop_graphs()
        self.report(f"updates are not captured as CUDA graphs, and slower: {why}")


class UpdateGraph:
    """One captured update: its inputs, the states before it, results, the states after it."""

    def __init__(
        self,
        updates: CapturedUpdates,
        signature: Hashable,
        inputs: Inputs,
        states: Sequence[State | None],
        pool: Pool | None,
    ) -> None:
        # All graphs share a pool, as they run one after another on one stream. Inputs and states
        # before are outside of it. Results and states after are held here, so that no later capture
        # takes their memory; earlier graphs may write there, but only after these were read.
        self.pool = pool or Pool()
        self.inputs = tuple(part.clone() for part in inputs)
        before = [state and state.map(torch.clone) for state in states]
        self.before = tensors_of(before)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Memory that earlier updates left in the allocator serves the graph.
        torch.cuda.empty_cache()
        with captured(self.graph, self.pool):
            self.results, self.after = updates.step(self.inputs, before)
            # States that the same graph takes next are put in place by the graph itself.
            if updates.signature(inputs, self.after) == signature:
                _copy_all(self.before, tensors_of(self.after))
                places = dict(zip(map(id, tensors_of(self.after)), self.before, strict=True))
                self.after = [
                    state and state.map(lambda tensor: places[id(tensor)]) for state in self.after
                ]

    def replay(self, inputs: Inputs, states: Sequence[State | None]) -> Tensor:
        """Run the update; its results are overwritten by the next."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        _copy_all(self.before, tensors_of(states))
        self.graph.replay()
        return self.results

    def states_after(self, plans: Sequence[Plan]) -> list[State | None]:
        """The states after a replay: at the positions and under the bank numbers of these plans."""
        states: list[State | None] = []
        for state, plan in zip(self.after, plans, strict=True):
            if state is not None:
                held = [bank for _, bank in sorted(state.streams[0].banks.items())]
                banks = {key: bank for (key, _), bank in zip(plan.held, held, strict=True)}
                moved = {"position": plan.stop, "banks": banks, "cached": plan.cached}
                state = replace(state, streams=(replace(state.streams[0], **moved),))
            states.append(state)
        return states


def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors of which some may be in place already, and some in the place of others."""
    taken = {target.untyped_storage().data_ptr() for target in targets}
    moves = [
        (target, source.clone() if source.untyped_storage().data_ptr() in taken else source)
        for target, source in zip(targets, sources, strict=True)
        if target.data_ptr() != source.data_ptr()
    ]
    for target, source in moves:
        target.copy_(source)


def tensors_of(states: Sequence[State | None]) -> list[Tensor]:
    """All tensors, in an order that depends on the signature only."""
    streams = [stream for state in states if state for stream in state.streams]
    return [tensor for stream in streams for tensor in stream.tensors]
