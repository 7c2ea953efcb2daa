"""A captured update keeps no positions: those that it reckons are the ones the model would give."""

import pytest
import torch

from building import example_models, name_of, random_tokens
from staircase_attention.models import LSTMSequenceModel, take_apart
from staircase_attention.training.capture import _moved, _strides, looks_of
from staircase_attention.training.engine import Engine

each_model = pytest.mark.parametrize(
    "model",
    [model for model in example_models() if model.schedule.is_state_bounded],
    ids=name_of,
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
        header, tensors = take_apart(_moved(before, strides, count))
        expected, others = take_apart(state)
        for plain in (header, expected):
            for stream in plain["streams"]:
                stream["banks"] = sorted(stream["banks"])
        assert header == expected
        assert {name: one.shape for name, one in tensors.items()} == {
            name: one.shape for name, one in others.items()
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


def test_an_update_that_cannot_be_captured_runs_as_written_and_says_so_once(monkeypatch):
    said = []
    engine = Engine(why_not=None, say=said.append)
    engine.states = [None]

    def fail(*_):
        raise RuntimeError("no graph here\nand more")

    monkeypatch.setattr("staircase_attention.training.engine.CapturedUpdate", fail)
    inputs = (torch.zeros(1, 2),)
    for number in range(4):
        result = engine.run(lambda tokens, states, number=number: (number, states), inputs)
        assert result == number
    assert said == ["updates are not captured as a CUDA graph, and so slower: no graph here"]


class Replayed:
    """Stands for a captured update."""

    made = 0

    def __init__(self, work, inputs, states, looks):
        Replayed.made += 1
        self.looks, self.taken_in = looks, [states]

    def fits(self, inputs):
        return True

    def states(self):
        return self.taken_in[-1]

    def take_in(self, states):
        self.taken_in.append(states)

    def run(self, inputs):
        return "replayed"


def test_lanes_that_begin_anew_run_as_written_until_they_fit_the_captured_update(monkeypatch):
    monkeypatch.setattr("staircase_attention.training.engine.CapturedUpdate", Replayed)
    model = example_models()[0]
    inputs = (random_tokens(2, 12),)

    def work(tokens, states):
        _, state = model(tokens, states[0])
        return "as written", [state.detach()]

    def run_some(count):
        return [engine.run(work, inputs) for _ in range(count)]

    engine = Engine(why_not=None, say=pytest.fail)
    engine.states = [None]
    first = run_some(8)
    num_written = first.count("as written")
    assert first == ["as written"] * num_written + ["replayed"] * (8 - num_written)
    captured = engine._captured
    for _ in range(2):
        engine.states = [None]
        again = run_some(8)
        # The state that the captured update was made for need not be seen twice again.
        assert again == ["as written"] * (num_written - 1) + ["replayed"] * (9 - num_written)
        assert engine._captured is captured
        assert looks_of(inputs, captured.taken_in[-1]) == captured.looks
    assert Replayed.made == 1


class Checked(Replayed):
    """One that is refused, as the real one, where what comes out looks unlike what goes in."""

    def __init__(self, work, inputs, states, looks):
        super().__init__(work, inputs, states, looks)
        if looks_of(inputs, work(*inputs, states)[1]) != looks:
            raise RuntimeError("looks different")


@pytest.mark.parametrize("restart_every", [1, 2, 3, 7])
def test_only_states_that_have_come_to_look_alike_are_captured(monkeypatch, restart_every):
    monkeypatch.setattr("staircase_attention.training.engine.CapturedUpdate", Checked)
    model, inputs = example_models()[0], (random_tokens(2, 12),)

    def work(tokens, states):
        return "as written", [model(tokens, states[0])[1].detach()]

    said = []
    engine = Engine(why_not=None, say=said.append)
    found = []
    for number in range(120):
        if number % restart_every == 0:
            engine.states = [None]
        found.append(engine.run(work, inputs))
    if restart_every < 3:
        assert "replayed" not in found
        assert len(said) == 1
        assert "training.restart_every is too small" in said[0]
    else:
        assert found.count("replayed") > 30
        assert not said


def test_a_graph_gives_way_where_memory_is_too_little_for_both(monkeypatch):
    monkeypatch.setattr("staircase_attention.training.engine.CapturedUpdate", Replayed)
    inputs, tries = (torch.zeros(1, 2),), []

    def work(tokens, states):
        tries.append(engine.is_captured)
        if engine.is_captured:
            raise torch.OutOfMemoryError("no room")
        return "as written", [torch.zeros(1) if states[0] is None else states[0]]

    monkeypatch.setattr(
        "staircase_attention.training.engine.looks_of",
        lambda inputs, states: (states[0] is None,),
    )
    engine = Engine(why_not=None, say=pytest.fail)
    engine.states = [None]
    assert [engine.run(work, inputs) for _ in range(4)] == ["as written"] * 2 + ["replayed"] * 2
    engine.states = [None]
    assert engine.run(work, inputs) == "as written"
    assert tries == [False, False, True, False]
    assert not engine.is_captured


def test_states_that_go_on_growing_are_given_up_with_a_word():
    said = []
    engine = Engine(why_not=None, say=said.append)
    engine.states = [None]
    for length in range(1, 130):
        engine.run(lambda tokens, states: (0, states), (torch.zeros(1, length),))
    assert len(said) == 1
    assert "growing" in said[0]
