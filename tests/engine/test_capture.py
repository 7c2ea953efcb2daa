"""A captured update keeps no positions: those that it reckons are the ones the model would give."""

from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from building import EXACT, build, example_models, name_of, random_tokens
from staircase_attention import CachedStaircase
from staircase_attention.engine.capture import _moved, _strides, _tensors, looks_of
from staircase_attention.engine.updates import MOST_GRAPHS, Engine
from staircase_attention.models import LSTMSequenceModel, take_apart
from staircase_attention.engine import capture

# One pass: where a chunk ends, no bank is left open.
SINGLE_PASS = build(CachedStaircase(chunk_size=3, num_window_chunks=3, num_passes=1))
BOUNDED = [model for model in example_models() if model.schedule.is_state_bounded]
each_model = pytest.mark.parametrize(
    "model",
    [*BOUNDED, SINGLE_PASS],
    ids=[*map(name_of, BOUNDED), "single-pass"],
)


def states_of(model, length, count):
    """The states after 1, 2, ... segments."""
    states, state = [], None
    for number in range(count):
        _, state = model(random_tokens(2, length, seed=number), state)
        states.append(state.detach())
    return states


@each_model
@pytest.mark.parametrize("length", [6, 12])
def test_states_that_look_alike_move_on_alike(model, length):
    states = states_of(model, length, 9)
    inputs = (random_tokens(2, length),)
    looks = [looks_of(inputs, [state]) for state in states]
    steady = next(number for number in range(8) if looks[number] == looks[number + 1])
    assert len(set(looks[steady:])) == 1
    before = states[steady]
    strides = _strides(before, states[steady + 1])
    for count, state in enumerate(states[steady:]):
        assert_stand_alike(_moved(before, strides, count), state)


@each_model
@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
def test_what_comes_out_of_states_that_look_alike_looks_alike_and_stands_as_far_off(model, length):
    """Whether or not it looks like what went in: on the way to a full state, or inside a chunk."""
    states = [None, *states_of(model, length, 20)]
    inputs = (random_tokens(2, length),)
    first = {}
    for before, after in pairwise(states):
        looks = looks_of(inputs, [before])
        origin, came_out = first.setdefault(looks, (before, after))
        assert looks_of(inputs, [came_out]) == looks_of(inputs, [after])
        assert_stand_alike(_moved(came_out, _strides(origin, before), 1), after)
    assert len(first) < len(states) - 1


def assert_stand_alike(one, other):
    (header, tensors), (expected, others) = take_apart(one), take_apart(other)
    for plain in (header, expected):
        for stream in plain["streams"]:
            stream["banks"] = sorted(stream["banks"])
    assert header == expected
    assert {name: part.shape for name, part in tensors.items()} == {
        name: part.shape for name, part in others.items()
    }


def test_a_growing_state_never_looks_the_same():
    model = next(one for one in example_models() if not one.schedule.is_state_bounded)
    inputs = (random_tokens(2, 6),)
    looks = [looks_of(inputs, [state]) for state in states_of(model, 6, 5)]
    assert len(set(looks)) == 5


def test_rows_that_began_later_are_not_captured():
    model = example_models()[0]
    state = states_of(model, 6, 2)[-1].reset([True, False])
    assert looks_of((random_tokens(2, 6),), [state]) is None


def test_fresh_states_and_lstms_have_looks_too():
    inputs = (random_tokens(2, 6),)
    assert looks_of(inputs, [None]) == looks_of(inputs, [None])
    model = LSTMSequenceModel(vocab_size=7, output_size=5, width=4, num_layers=1)
    states = states_of(model, 6, 2)
    assert looks_of(inputs, states[:1]) == looks_of(inputs, states[1:])
    assert looks_of(inputs, states[:1]) != looks_of((inputs[0][:, :3],), states[:1])


class Graphs:
    """Stands for CUDA graphs on a CPU: what was captured is done again, in the same memory.

    As in true ones, nothing is computed by a capture, positions stay those of the capture, and
    results and states that came out are lost when another one runs.
    """

    def __init__(self, monkeypatch, work):
        self.work, self.made, self.current = work, [], None
        graphs = self

        class Graph:
            def __init__(self):
                self.call = None

            def replay(self):
                graphs._replay(self)

        @contextmanager
        def captured(graph, pool):
            graphs.current = graph
            yield
            graphs.current = None
            graphs.made.append(graph)
            *_, states, results, after, kept = graph.call
            poison([results, *_tensors(after)])
            put(_tensors(states), kept)

        monkeypatch.setattr(capture, "captured", captured)
        monkeypatch.setattr(capture, "Pool", object)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)

    def __call__(self, tokens, states):
        kept = [tensor.clone() for tensor in _tensors(states)]
        results, after = self.work(tokens, states)
        if self.current is not None:
            self.current.call = tokens, states, results, after, kept
        return results, after

    def _replay(self, graph):
        for other in self.made:
            if other is not graph:
                poison([other.call[2], *_tensors(other.call[3])])
        tokens, states, results, after, _ = graph.call
        new_results, new_after = self.work(tokens, states)
        put([results, *_tensors(after)], [new_results, *_tensors(new_after)])
        if looks_of((tokens,), after) == looks_of((tokens,), states):
            put(_tensors(states), _tensors(after))


def put(places, tensors):
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)


def poison(tensors):
    for tensor in tensors:
        tensor.fill_(torch.nan)


@each_model
@pytest.mark.parametrize("restart_every", [None, 2, 7])
@pytest.mark.parametrize("length", [3, 5])
def test_captured_updates_give_what_the_model_gives(monkeypatch, model, length, restart_every):
    def work(tokens, states):
        with torch.no_grad():
            logits, state = model(tokens, states[0])
        return logits, [state]

    graphs = Graphs(monkeypatch, work)
    engine = Engine(why_not=None, say=pytest.fail)
    state = None
    for number in range(24):
        if number % (restart_every or 24) == 0:
            engine.states, state = [None], None
        tokens = random_tokens(2, length, seed=number)
        results = engine.run(graphs, (tokens,)).clone()
        expected, (state,) = work(tokens, [state])
        torch.testing.assert_close(results, expected, **EXACT)
        if number % 3 == 0:
            (found,) = engine.states
            assert_stand_alike(found, state)
            for pair in zip(_tensors([found]), _tensors([state]), strict=True):
                torch.testing.assert_close(*pair, **EXACT)
    assert graphs.made


class Replayed:
    """Stands for a captured update: one that is not captured at all, but checks its looks."""

    made: ClassVar = []

    def __init__(self, work, inputs, states, looks, beside=None):
        self.beside = beside
        self.work, self.looks, self.now, self.num_runs = work, looks, states, 0
        self.take_in(states)
        Replayed.made.append(self)

    def can_go_on(self, inputs):
        return looks_of(inputs, self.now) == self.looks

    def states(self):
        return self.now

    def take_in(self, states):
        self.now = states

    def run(self, inputs):
        assert looks_of(inputs, self.now) == self.looks
        _, self.now = self.work(*inputs, self.now)
        self.num_runs += 1
        return "replayed"


@pytest.fixture
def replayed(monkeypatch):
    """All that stand for captured updates, in the order in which they are made."""
    monkeypatch.setattr("staircase_attention.engine.updates.CapturedUpdate", Replayed)
    monkeypatch.setattr(Replayed, "made", [])
    return Replayed.made


def run_some(engine, model, count, *, restart_every=None, length=12):
    """How each update was run."""

    def work(tokens, states):
        return "as written", [model(tokens, states[0])[1].detach()]

    inputs, found = (random_tokens(2, length),), []
    for number in range(count):
        if number % (restart_every or count) == 0:
            engine.states = [None]
        found.append(engine.run(work, inputs))
    return found


@pytest.mark.parametrize("restart_every", [1, 2, 3, 7])
@each_model
def test_every_look_runs_as_written_once(replayed, model, restart_every):
    engine = Engine(why_not=None, say=pytest.fail)
    # Segments of 2 tokens: up to four updates on the way to a full state.
    found = run_some(engine, model, 36, restart_every=restart_every, length=2)
    assert found.count("as written") == len(replayed) <= restart_every
    assert len({one.looks for one in replayed}) == len(replayed)
    assert found[2 * restart_every :] == ["replayed"] * (36 - 2 * restart_every)
    assert engine.is_captured


def test_a_full_state_is_captured_first_and_goes_on_by_itself(replayed):
    engine = Engine(why_not=None, say=pytest.fail)
    assert run_some(engine, example_models()[0], 8) == ["as written"] * 2 + ["replayed"] * 6
    assert len(replayed) == 1
    assert run_some(engine, example_models()[0], 8) == ["replayed"] * 8
    assert [one.num_runs for one in replayed] == [6 + 7, 1]


def test_segments_that_end_inside_chunks_are_captured_one_by_one(replayed):
    engine = Engine(why_not=None, say=pytest.fail)
    # Chunks of 3 tokens, segments of 7: as the chunk at the end has 1, 2 or 3 of them.
    found = run_some(engine, example_models()[0], 16, length=7)
    assert found == ["as written"] * 4 + ["replayed"] * 12
    # They share the memory of the first.
    assert [one.beside for one in replayed] == [None, replayed[0], replayed[0]]


def test_not_all_that_repeats_is_captured_which_is_said_once(replayed):
    said = []
    engine = Engine(why_not=None, say=said.append)
    growing = next(one for one in example_models() if not one.schedule.is_state_bounded)
    found = run_some(engine, growing, 45, restart_every=15)
    rest = ["as written"] * (15 - MOST_GRAPHS)
    assert found == ["as written"] * 15 + (["replayed"] * MOST_GRAPHS + rest) * 2
    # But what looks alike in a row always is.
    found = run_some(engine, example_models()[0], 4, length=6)
    assert found == ["as written"] * 2 + ["replayed"] * 2
    assert len(replayed) == MOST_GRAPHS + 1
    assert said == ["8 graphs are the most; other updates are slower"]


def refuse(monkeypatch, *, which=lambda looks, beside: True, error=RuntimeError):
    """Let updates of some looks not be captured; the looks of those that were tried."""
    tried = []

    class Refused(Replayed):
        def __init__(self, work, inputs, states, looks, beside=None):
            tried.append(looks)
            if which(looks, beside):
                raise error("no graph here\nand more")
            super().__init__(work, inputs, states, looks, beside)

    monkeypatch.setattr("staircase_attention.engine.updates.CapturedUpdate", Refused)
    return tried


def test_an_update_that_cannot_be_captured_runs_as_written_and_says_so_once(replayed, monkeypatch):
    tried = refuse(monkeypatch)
    said = []
    engine = Engine(why_not=None, say=said.append)
    assert run_some(engine, example_models()[0], 12) == ["as written"] * 12
    assert said == ["updates are not captured as a CUDA graph, and so slower: no graph here"]
    assert len(tried) == 1


def test_an_update_on_the_way_that_cannot_be_captured_is_tried_once(replayed, monkeypatch):
    fresh = looks_of((random_tokens(2, 12),), [None])
    tried = refuse(monkeypatch, which=lambda looks, beside: looks == fresh)
    said = []
    engine = Engine(why_not=None, say=said.append)
    found = run_some(engine, example_models()[0], 20, restart_every=5)
    assert found == ["as written"] * 2 + ["replayed"] * 3 + (["as written"] + ["replayed"] * 4) * 3
    assert tried.count(fresh) == 1
    # The failure took the other graph's memory with it, which was then made again.
    assert len(replayed) == 2
    assert said == ["some updates cannot be captured, and are slower: no graph here"]


def test_where_no_two_updates_in_a_row_look_alike_a_failure_is_told_too(replayed, monkeypatch):
    refuse(monkeypatch)
    said = []
    engine = Engine(why_not=None, say=said.append)
    found = run_some(engine, example_models()[0], 16, length=7)
    assert found == ["as written"] * 16
    assert said == ["some updates cannot be captured, and are slower: no graph here"]


def test_a_graph_that_finds_no_room_beside_others_is_made_alone(replayed, monkeypatch):
    which = lambda looks, beside: beside is not None  # noqa: E731
    tried = refuse(monkeypatch, which=which, error=torch.OutOfMemoryError)
    engine = Engine(why_not=None, say=pytest.fail)
    found = run_some(engine, example_models()[0], 12, restart_every=4)
    assert found == ["as written"] * 2 + ["replayed"] * 10
    assert len(engine._graphs) == 1
    assert len(tried) > len(replayed)


def test_graphs_give_way_where_memory_is_too_little_for_all(replayed):
    said = []
    model, engine = example_models()[0], Engine(why_not=None, say=said.append)
    run_some(engine, model, 12, restart_every=4)
    assert len(engine._graphs) == 2
    tries = []

    def work(tokens, states):
        tries.append(engine.is_captured)
        if engine.is_captured:
            raise torch.OutOfMemoryError("no room")
        return "as written", [model(tokens, states[0])[1].detach()]

    # A look of its own, from states that a graph holds.
    (before,) = engine.states
    assert engine.run(work, (random_tokens(2, 9),)) == "as written"
    assert tries == [True, False]
    assert engine.states[0].streams[0].position == before.streams[0].position + 9
    assert not engine.is_captured
    assert "memory is too little" in said[0]


def test_states_that_go_on_growing_are_given_up_with_a_word():
    said = []
    engine = Engine(why_not=None, say=said.append)
    engine.states = [None]
    for length in range(1, 130):
        engine.run(lambda tokens, states: (0, states), (torch.zeros(1, length),))
    assert len(said) == 1
    assert "growing" in said[0]


def test_giving_up_keeps_the_states_and_no_graphs(replayed):
    said = []
    engine = Engine(why_not=None, say=said.append)
    model = example_models()[0]
    run_some(engine, model, 4)
    assert engine.is_captured
    (before,) = engine.states
    for length in range(1, 110):
        engine.run(lambda tokens, states: (0, states), (torch.zeros(2, 12 + length),))
    assert len(said) == 1
    assert not engine.is_captured
    assert_stand_alike(engine.states[0], before)
