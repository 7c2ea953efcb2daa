"""Captured updates: what a graph cannot hold follows from the timetable, for any schedule."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from building import (
    ALTERNATE,
    EXACT,
    WithoutSelf,
    build,
    example_models,
    name_of,
    random_tokens,
)
from staircase_attention import CachedStaircase
from staircase_attention.engine import capture
from staircase_attention.engine.capture import MOST_GRAPHS, CapturedUpdates, tensors_of
from staircase_attention.models import at_depth, in_passes_of, take_apart
from staircase_attention.schedules import make_schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Renumbered(CachedStaircase):
    """Bank numbers without relation to how far a stream has come."""

    def steps(self, tokens, *, num_layers, order):
        for step in CachedStaircase.steps(self, tokens, num_layers=num_layers, order=order):
            yield replace(step, bank=step.bank * 7 % 101)


BOUNDED = {name_of(one): one for one in example_models() if one.schedule.is_state_bounded}
GROWING = next(one for one in example_models() if not one.schedule.is_state_bounded)
STAIRCASE = example_models()[0]
OTHERS = {
    # One pass: at the end of a chunk, no bank holds anything.
    "single-pass": build(CachedStaircase(chunk_size=3, num_window_chunks=3, num_passes=1)),
    # Two kinds of chunks, and gaps in the cache.
    "alternate": build(
        make_schedule(ALTERNATE, {"chunk_size": 3, "num_window_chunks": 5, "num_passes": 2})
    ),
    # Banks stay empty.
    "without-self": build(WithoutSelf(chunk_size=3, num_window_chunks=3, num_passes=1)),
    "renumbered": build(Renumbered(chunk_size=3, num_window_chunks=4, num_passes=2)),
}
each_model = pytest.mark.parametrize("name", [*BOUNDED, *OTHERS])


def model_of(name):
    return (BOUNDED | OTHERS)[name]


def step_of(model):
    """A step of one micro-batch: the logits and the state after it."""

    def step(inputs, states):
        with torch.no_grad():
            logits, state = model(inputs[0], states[0])
        return logits, [state]

    return step


def captured_updates(model, *, step=None, report=pytest.fail):
    return CapturedUpdates(step or step_of(model), model, report=report)


def states_of(model, length, count):
    """The states before the first segment and after 1, 2, ... segments."""
    states = [None]
    for number in range(count):
        states.append(step_of(model)((random_tokens(2, length, seed=number),), states[-1:])[1][0])
    return states


def facts_of(state):
    """All of a state but the numbers in its tensors."""
    header, tensors = take_apart(state)
    for stream in header["streams"]:
        stream["banks"] = sorted(stream["banks"])
    return header, {name: (part.shape, part.dtype) for name, part in tensors.items()}


@each_model
@pytest.mark.parametrize("length", [1, 5, 7])
def test_the_plan_of_a_segment_gives_the_facts_of_the_state_after_it(name, length):
    """And segments of one signature leave tensors of the same shapes, in the same order."""
    model = model_of(name)
    updates, inputs = captured_updates(model), (random_tokens(2, length),)
    shapes = {}
    for before, after in pairwise(states_of(model, length, 20)):
        [plan] = updates._plans(inputs, [before])
        stream = after.streams[0]
        assert plan.stop == stream.position
        assert plan.cached == stream.cached
        assert dict(plan.held) == {key: held.num_tokens for key, held in stream.banks.items()}
        found = [part.shape for part in tensors_of([after])]
        assert shapes.setdefault(updates.signature(inputs, [before]), found) == found
    assert len(shapes) < 20


def test_a_growing_state_has_a_new_signature_every_time():
    updates, inputs = captured_updates(GROWING), (random_tokens(2, 6),)
    states = states_of(GROWING, 6, 5)
    assert len({updates.signature(inputs, [state]) for state in states}) == 6


def test_rows_that_started_later_are_not_captured():
    state = states_of(STAIRCASE, 6, 2)[-1].reset([True, False])
    assert captured_updates(STAIRCASE).signature((random_tokens(2, 6),), [state]) is None


class Graphs:
    """Stands for CUDA graphs on a CPU: a replay does what was captured, in the same memory.

    As with real ones, a capture computes nothing, positions stay those of the capture, and the
    results and states of one graph are lost when another one runs.
    """

    def __init__(self, monkeypatch, step):
        self.step, self.made, self.current, self.updates = step, [], None, None
        graphs = self

        class Graph:
            def replay(self):
                graphs._replay(self)

        @contextmanager
        def captured(graph, pool):
            graphs.current = graph
            yield
            graphs.current = None
            graphs.made.append(graph)
            put(graph.before, graph.untouched)
            poison([graph.results, *graph.after])

        monkeypatch.setattr(capture, "captured", captured)
        monkeypatch.setattr(capture, "Pool", object)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)

    def __call__(self, inputs, states):
        untouched = [tensor.clone() for tensor in tensors_of(states)]
        results, after = self.step(inputs, states)
        if (graph := self.current) is not None:
            graph.inputs, graph.states, graph.untouched = inputs, states, untouched
            graph.results, graph.before, graph.after = (
                results,
                tensors_of(states),
                tensors_of(after),
            )
            signatures = [self.updates.signature(inputs, some) for some in (states, after)]
            graph.feeds_itself = signatures[0] == signatures[1]
        return results, after

    def _replay(self, graph):
        for other in self.made:
            if other is not graph:
                poison([other.results, *other.after])
        results, after = self.step(graph.inputs, graph.states)
        put([graph.results, *graph.after], [results, *tensors_of(after)])
        if graph.feeds_itself:
            put(graph.before, tensors_of(after))


def put(places, tensors):
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)


def poison(tensors):
    for tensor in tensors:
        tensor.fill_(torch.nan)


@each_model
@pytest.mark.parametrize(("length", "restart_every"), [(3, None), (5, 4)])
def test_captured_updates_give_what_the_model_gives(monkeypatch, name, length, restart_every):
    model = model_of(name)
    graphs = Graphs(monkeypatch, step_of(model))
    graphs.updates = updates = captured_updates(model, step=graphs)
    for number in range(16):
        if number % (restart_every or 16) == 0:
            found = expected = [None]
        inputs = (random_tokens(2, length, seed=number),)
        results, found = updates(inputs, found)
        logits, expected = graphs.step(inputs, expected)
        torch.testing.assert_close(results, logits, **EXACT)
        assert facts_of(found[0]) == facts_of(expected[0])
        for pair in zip(tensors_of(found), tensors_of(expected), strict=True):
            torch.testing.assert_close(*pair, **EXACT)
    assert graphs.made


@pytest.mark.parametrize("name", ["staircase", "cached-staircase", "ladder-ABAB"])
def test_captured_updates_in_several_depths_give_what_the_model_gives(monkeypatch, name):
    """Every number of passes has graphs of its own, all in one pool."""
    model = model_of(name)

    def step(inputs, states):
        with in_passes_of(model, states[0]):
            return step_of(model)(inputs, states)

    graphs = Graphs(monkeypatch, step)
    graphs.updates = updates = captured_updates(model, step=graphs)
    found = expected = [model.initial_state(2)]
    for number in range(36):
        deep = model.with_schedule(model.schedule.with_passes((1, 2, 2, 3, 1)[number % 5]))
        inputs = (random_tokens(2, 6, seed=number),)
        results, found = updates(inputs, [at_depth(deep, found[0])])
        logits, expected = graphs.step(inputs, [at_depth(deep, expected[0])])
        torch.testing.assert_close(results, logits, **EXACT)
        for pair in zip(tensors_of(found), tensors_of(expected), strict=True):
            torch.testing.assert_close(*pair, **EXACT)
    assert {signature[0] for signature in updates.graphs} == {(1,), (2,), (3,)}


class Replayed:
    """Stands for a graph: it runs the step, and notes that."""

    made: ClassVar = []

    def __init__(self, updates, signature, inputs, states, pool):
        self.updates, self.own, self.beside, self.num_runs = updates, signature, pool, 0
        self.pool = pool or self
        Replayed.made.append(self)

    def replay(self, inputs, states):
        assert self.updates.signature(inputs, states) == self.own
        _, self.after = self.updates.step(inputs, states)
        self.num_runs += 1
        return "replayed"

    def states_after(self, plans):
        assert [plan.stop for plan in plans] == [self.after[0].streams[0].position]
        return self.after


@pytest.fixture
def replayed(monkeypatch):
    """Everything that stands for a graph, in the order in which it is made."""
    monkeypatch.setattr(capture, "UpdateGraph", Replayed)
    monkeypatch.setattr(Replayed, "made", [])
    return Replayed.made


def eager_step(model):
    return lambda inputs, states: ("eager", step_of(model)(inputs, states)[1])


def run_some(updates, count, *, restart_every=None, length=12):
    """How each update was run, and the last states."""
    found, states = [], None
    for number in range(count):
        if number % (restart_every or count) == 0:
            states = [None]
        how, states = updates((random_tokens(2, length),), states)
        found.append(how)
    return found, states


def policy(model, report=pytest.fail):
    """Captured updates of which only the policy is tested."""
    return captured_updates(model, step=eager_step(model), report=report)


@pytest.mark.parametrize("restart_every", [1, 7])
@pytest.mark.parametrize("name", [*BOUNDED, "single-pass"])
def test_every_signature_runs_eagerly_once(replayed, name, restart_every):
    updates = policy(model_of(name))
    # Segments of 2 tokens: up to four updates until the state is full.
    found, _ = run_some(updates, 36, restart_every=restart_every, length=2)
    assert found.count("eager") == len(replayed) <= restart_every
    assert len({one.own for one in replayed}) == len(replayed)
    assert found[2 * restart_every :] == ["replayed"] * (36 - 2 * restart_every)


def test_a_full_state_is_captured_first(replayed):
    updates = policy(STAIRCASE)
    assert run_some(updates, 8)[0] == ["eager"] * 2 + ["replayed"] * 6
    assert len(replayed) == 1
    assert run_some(updates, 8)[0] == ["replayed"] * 8
    assert [one.num_runs for one in replayed] == [6 + 7, 1]


def test_segments_that_end_inside_chunks_have_one_graph_per_place(replayed):
    # Chunks of 3 tokens, segments of 7: the last chunk has 1, 2 or 3 of them.
    found, _ = run_some(policy(STAIRCASE), 16, length=7)
    assert found == ["eager"] * 4 + ["replayed"] * 12
    # They share the memory of the first.
    assert [one.beside for one in replayed] == [None, replayed[0], replayed[0]]


def test_there_are_no_more_graphs_than_allowed_unless_updates_repeat(replayed):
    said = []
    updates = policy(GROWING, said.append)
    found, _ = run_some(updates, 45, restart_every=15)
    rest = ["eager"] * (15 - MOST_GRAPHS)
    assert found == ["eager"] * 15 + (["replayed"] * MOST_GRAPHS + rest) * 2
    # The same update again and again is always captured.
    states = states_of(GROWING, 6, 1)[-1:]
    found = []
    for _ in range(4):
        updates._latest = states
        found.append(updates((random_tokens(2, 6),), states)[0])
    assert found == ["eager"] + ["replayed"] * 3
    assert len(replayed) == MOST_GRAPHS + 1
    assert said == ["8 CUDA graphs are the most; other updates are slower"]


def refuse(monkeypatch, *, which=lambda signature, pool: True, error=RuntimeError):
    """Let some updates not be captured; the signatures of those that were tried."""
    tried = []

    class Refused(Replayed):
        def __init__(self, updates, signature, inputs, states, pool):
            tried.append(signature)
            if which(signature, pool):
                raise error("no graph here\nand more")
            super().__init__(updates, signature, inputs, states, pool)

    monkeypatch.setattr(capture, "UpdateGraph", Refused)
    return tried


def test_updates_that_cannot_be_captured_run_eagerly(replayed, monkeypatch):
    said, tried = [], refuse(monkeypatch)
    assert run_some(policy(STAIRCASE, said.append), 12)[0] == ["eager"] * 12
    assert said == ["updates are not captured as CUDA graphs, and slower: no graph here"]
    assert len(tried) == 1


def test_a_graph_without_room_beside_others_is_made_alone(replayed, monkeypatch):
    which = lambda signature, pool: pool is not None  # noqa: E731
    tried = refuse(monkeypatch, which=which, error=torch.OutOfMemoryError)
    updates = policy(STAIRCASE)
    found, _ = run_some(updates, 12, restart_every=4)
    assert found == ["eager"] * 2 + ["replayed"] * 10
    assert len(updates.graphs) == 1
    assert len(tried) > len(replayed)


def test_graphs_are_dropped_if_memory_is_too_small_for_eager_updates(replayed):
    said, tries = [], []
    updates = policy(STAIRCASE, said.append)
    _, states = run_some(updates, 12, restart_every=4)
    assert len(updates.graphs) == 2
    run = updates.step

    def step(inputs, states):
        tries.append(bool(updates.graphs))
        if updates.graphs:
            raise torch.OutOfMemoryError("no room")
        return run(inputs, states)

    updates.step = step
    how, after = updates((random_tokens(2, 9),), states)
    assert how == "eager"
    assert tries == [True, False]
    assert after[0].streams[0].position == states[0].streams[0].position + 9
    assert "memory is too small" in said[0]


def test_signatures_that_keep_changing_end_the_capturing(replayed):
    said = []
    updates = policy(STAIRCASE, said.append)
    _, states = run_some(updates, 4)
    # Only the lengths matter here: nothing is computed.
    updates.step = lambda inputs, states: ("eager", states)
    for length in range(1, 110):
        how, _ = updates((random_tokens(2, 12 + length),), states)
        assert how == "eager"
    assert not updates.graphs
    assert [line for line in said if "keep changing" in line] == said
    assert len(said) == 1
