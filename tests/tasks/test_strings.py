"""The suite's tasks: every answer is that of a slow twin, and splits share nothing."""

import re

import numpy as np
import pytest
import string_oracles
from hypothesis import given, settings
from hypothesis import strategies as st

from staircase_attention.tasks import BUILT_IN, Endless, load_task, split
from staircase_attention.tasks.registry import SUITE
from staircase_attention.tasks.task import task_name

NAMES = [task_name(kind) for kinds in SUITE.values() for kind in kinds]
TWINS = {name: getattr(string_oracles, name.replace("-", "_"), None) for name in NAMES}
TWINS["modular-arithmetic-simple"] = string_oracles.modular_arithmetic


def read(task, inputs, targets):
    """The words of a string, and those of its answer."""
    words = [task.input_symbols[symbol] for symbol in inputs]
    assert words[0] == "START"
    answers = [task.output_symbols[target] for target in targets if target >= 0]
    string, asked = words[1 : -len(answers)], words[-len(answers) :]
    assert asked == ["?"] * len(answers)
    assert "?" not in string
    assert np.all(targets[: -len(answers)] < 0)
    return string, answers


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_that_of_the_slow_twin(name):
    @settings(max_examples=15)
    @given(length=st.integers(3, 60), seed=st.integers(0, 2**32))
    def check(length, seed):
        for task in (load_task(name, length=length), load_task(name).with_length(length)):
            for episode in task.generate(np.random.default_rng(seed), 5):
                string, answers = read(task, *episode)
                assert answers == TWINS[name](string)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_strings_have_the_lengths_that_are_asked_for(name):
    task = load_task(name)
    lengths = [len(read(task, *e)[0]) for e in task.generate(np.random.default_rng(0), 500)]
    assert task.fewest <= min(lengths) < 5
    # Swaps and sentences have four words.
    assert 36 <= max(lengths) <= 40
    assert np.median(lengths) < 14
    fixed = task.with_length(41).generate(np.random.default_rng(0), 20)
    # Longer than anything trained on, unless the length must be odd or even.
    assert {len(read(task, *episode)[0]) for episode in fixed} <= {40, 41, 42, 44}


@pytest.mark.parametrize("name", NAMES)
def test_short_strings_are_trained_on_and_no_string_is_in_two_splits(name):
    task = load_task(name, length=10, num_valid=40, num_test=40)
    held_out = [split(task, part, seed=1) for part in ("valid", "test")]
    valid, test = ([tuple(inputs.tolist()) for inputs, _ in part] for part in held_out)
    assert len({*valid, *test}) == 80
    store, indices = Endless(task, seed=1).find(np.arange(1_000))
    trained = [tuple(inputs.tolist()) for inputs, _ in store.take(indices)]
    assert not {*valid, *test} & {*trained}
    assert min(map(len, trained)) < min(map(len, valid))


def test_dyck_words_have_the_kinds_and_the_depth_of_their_options():
    task = load_task("dyck", num_kinds=2, depth=1, length=20)
    for episode in task.generate(np.random.default_rng(0), 50):
        string, answers = read(task, *episode)
        assert set(string) <= set("()[]")
        assert answers == string_oracles.dyck(string, depth=1)


def test_a_depth_beyond_every_string_takes_no_memory():
    deep, deepest = (load_task("dyck", depth=depth, length=20) for depth in (20, 10**9))
    found = (task.generate(np.random.default_rng(0), 50) for task in (deep, deepest))
    for one, other in zip(*found, strict=True):
        assert all(map(np.array_equal, one, other))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"length": 0},
            "length must be an integer of at least 1, got 0; use for example length=40",
        ),
        (
            {"shortest": 50},
            "shortest must be an integer from 1 to 40, got 50; use for example",
        ),
        ({"depth": 3}, "options of parity-check must be among .* got 'depth'"),
    ],
)
def test_impossible_lengths_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load_task("parity-check", **options)


def test_the_episode_in_the_description_of_each_task_is_one_of_its_own():
    assert len(NAMES) == 19
    for name in NAMES:
        [shown] = re.findall(r"^ *START (.*)$", BUILT_IN[name].__doc__, re.MULTILINE)
        string, *answers = shown.split(" ? ")
        assert {*string.split()} <= {*load_task(name).letters}
        assert [answer[1:-1] for answer in answers] == TWINS[name](string.split())
