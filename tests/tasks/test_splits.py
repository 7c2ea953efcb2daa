"""Splits: fixed by the seed, exact in size, sharing nothing."""

import time
from functools import partial

import numpy as np
import pytest

from staircase_attention.checks import input_error
from staircase_attention.tasks import (
    IGNORED,
    Algorithm,
    Endless,
    Episodes,
    Epochs,
    Permutations,
    RandomWalk,
    SplitSizes,
    Task,
    split,
    training_source,
    with_length,
)
from staircase_attention.tasks.splits import BLOCK_SIZE, fingerprints, try_out

SIZES = {"num_train": 300, "num_valid": 50, "num_test": 40}
TASKS = [
    RandomWalk(length=20, **SIZES),
    Algorithm(num_statements=10, distribution="redraw", **SIZES),
    Permutations(length=10, **SIZES),
    Algorithm(num_statements=10, **SIZES),
]
# 256 sequences in all, so that splits drawn without care would overlap.
CROWDED = Permutations(group="S2", length=8, num_train=600, num_valid=70, num_test=80)

GOLDEN_SUMS = [
    [962009, 234124, 414016],
    [990778, 930303, 505869],
    [919163, 466511, 476474],
    [259226, 311128, 501213],
]


def sequences(episodes):
    return [tuple(inputs.tolist()) for inputs, _ in episodes]


def found(source, numbers):
    """The sequences of these numbers in a source."""
    store, indices = source.find(np.asarray(numbers))
    return sequences(store.take(indices))


@pytest.mark.parametrize(("task", "sums"), list(zip(TASKS, GOLDEN_SUMS, strict=True)))
def test_a_seed_fixes_every_split_on_every_machine(task, sums):
    """Fails if numpy, or a change here, gives a seed another meaning: then say so in the docs."""
    for name, golden in zip(("train", "valid", "test"), sums, strict=True):
        episodes, others = split(task, name, seed=0), split(task, name, seed=4)
        assert fingerprints(episodes).sum() % 1_000_003 == golden
        assert not set(sequences(episodes)) & set(sequences(others))


@pytest.mark.parametrize("task", [*TASKS, CROWDED], ids=str)
def test_no_episode_is_in_two_splits(task):
    train, valid, test = (
        sequences(split(task, name, seed=1)) for name in ("train", "valid", "test")
    )
    assert not set(train) & set(valid)
    assert not set(train) & set(test)
    assert not set(valid) & set(test)
    assert len(set(valid)) == len(valid) == task.split_sizes.valid
    assert len(set(test)) == len(test) == task.split_sizes.test
    assert len(train) == task.split_sizes.train
    # Every sequence that is left over is trained on.
    assert len(set(train)) > 100


def test_endless_data_keeps_clear_of_valid_and_test():
    held_out = {*sequences(split(CROWDED, "valid", 1)), *sequences(split(CROWDED, "test", 1))}
    fresh = found(Endless(CROWDED, seed=1), range(3_000))
    assert not set(fresh) & held_out
    assert len(set(fresh)) == 256 - 70 - 80


def test_endless_data_is_the_same_in_whatever_order_it_is_read():
    task = Algorithm(num_statements=5, num_train=None)
    numbers = np.random.default_rng(0).integers(6 * BLOCK_SIZE, size=40)
    expected = found(Endless(task, seed=2), range(6 * BLOCK_SIZE))
    assert len(set(expected)) > 0.9 * len(expected), "blocks must not repeat one another"
    walking = Endless(task, seed=2)
    for number in numbers:
        assert found(walking, [number]) == [expected[number]]
    assert found(walking, numbers) == [expected[number] for number in numbers]


def test_a_finite_train_split_is_the_beginning_of_the_endless_one():
    finite = Algorithm(num_statements=5, num_train=400)
    endless = Algorithm(num_statements=5, num_train=None)
    assert sequences(split(finite, "train", 7)) == found(Endless(endless, 7), range(400))


def test_every_epoch_is_another_order_of_the_same_episodes():
    task = TASKS[2]
    train = sequences(split(task, "train", seed=5))
    source = training_source(task, seed=5)
    assert isinstance(source, Epochs)
    epochs = [found(source, range(300 * epoch, 300 * (epoch + 1))) for epoch in range(4)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted(train)
        assert all(epoch != other for other in epochs[:number])
    assert found(source, [299, 300, 7]) == [epochs[0][299], epochs[1][0], epochs[0][7]]


def test_fingerprints_tell_episodes_apart_by_inputs_alone():
    episodes = Permutations(group="S2", length=12).generate(np.random.default_rng(0), 3_000)
    prints = fingerprints(episodes)
    assert len(set(prints.tolist())) == len(set(sequences(episodes)))
    zeros = [np.zeros((1, length), dtype=int) for length in (1, 2, 3)]
    prefixes = Episodes.concatenate([Episodes.from_grid(row, row) for row in zeros])
    assert len(set(fingerprints(prefixes).tolist())) == 3


def test_a_task_with_too_few_episodes_is_refused():
    task = Permutations(group="S2", length=4)
    message = (
        "splits must have enough different episodes to share none, "
        "got 16 of 1000 in 100 draws of permutations; use longer episodes, or lower"
    )
    with pytest.raises(ValueError, match=message) as caught:
        split(task, "valid", seed=0)
    assert "\n" not in str(caught.value)
    exhausted = Permutations(group="S2", length=4, num_valid=8, num_test=8)
    assert len(split(exhausted, "test", seed=0)) == 8
    with pytest.raises(ValueError, match="got 0 of 1024 in 100 draws"):
        Endless(exhausted, seed=0).find(np.array([0]))


@pytest.mark.parametrize(
    ("name", "seed", "message"),
    [
        ("train", 0, r"a train split must have a size, got permutations with endless .*; use End"),
        ("tset", 0, "split must be one of train, valid, test, got 'tset'; did you mean 'test'?"),
        ("valid", -1, "seed must be an integer of at least 0, got -1; use for example seed=1"),
        ("valid", "1", "seed must be .* got '1'"),
    ],
)
def test_splits_that_do_not_exist_are_refused(name, seed, message):
    with pytest.raises(ValueError, match=message) as caught:
        split(Permutations(), name, seed)
    assert "\n" not in str(caught.value)


class Sound(Task):
    """A user's task without a mistake; subclasses replace a member by a faulty one."""

    input_symbols = ("a", "b")
    output_symbols = ("c",)

    def generate(self, generator, num_episodes):
        inputs = generator.integers(2, size=(num_episodes, 64))
        return Episodes.from_grid(inputs, np.zeros_like(inputs))

    def with_length(self, length):
        return self


def faulty(name, value):
    return type("Faulty", (Sound,), {name: value})()


def raises(error):
    def fault(*_):
        raise error

    return fault


def gives(symbol=0, answer=0, num_more=0):
    def generate(self, generator, num_episodes):
        shape = (num_episodes + num_more, 3)
        return Episodes.from_grid(np.full(shape, symbol), np.full(shape, answer))

    return generate


MISTAKES = [
    ("generate", raises(IndexError("out of\nrange")), r"IndexError: out of range \(line \d+ of te"),
    ("generate", raises(ValueError("odd")), "generate of Faulty must .*, got ValueError: odd"),
    ("generate", raises(input_error("a rule", 3, "a remedy")), "^a rule, got 3; a remedy$"),
    ("generate", lambda *_: None, "generate of Faulty must return Episodes, got None; return "),
    ("generate", gives(num_more=1), r"generate of faulty must give the \d+ episodes asked for"),
    ("generate", gives(symbol=2), "every input of faulty must be from 0 to 1, got 2 to 2; name"),
    ("generate", gives(answer=1), "every output of faulty must be from -1 to 0, got 1 to 1; name"),
    ("generate", gives(answer=-2), "every output of faulty must be from -1 to 0, got -2 to -2"),
    ("split_sizes", (1, 2, 3), r"must be SplitSizes, got \(1, 2, 3\) of type tuple"),
    ("split_sizes", property(lambda _: {}["x"]), "split_sizes of Faulty must run without error, "),
    ("input_symbols", 5, "input_symbols of Faulty must run without error, got TypeError: "),
    ("output_symbols", None, "output_symbols of Faulty must run without error, got TypeError"),
    ("closing_symbol", property(lambda _: {}["x"]), "closing_symbol of Faulty must run without"),
    ("closing_symbol", "END", "closing_symbol must be an integer from 0 to 1, got 'END'"),
    ("closing_symbol", 99, "closing_symbol must be an integer from 0 to 1, got 99"),
]


@pytest.mark.parametrize(("name", "value", "message"), MISTAKES)
def test_a_mistake_in_a_task_is_one_line(name, value, message):
    for call in (partial(split, name="valid"), training_source, try_out):
        with pytest.raises(ValueError, match=message) as caught:
            call(faulty(name, value), seed=0)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda *_: {}["x"], r"with_length of Faulty must run .*, got KeyError: 'x' \(line"),
        (lambda *_: None, "with_length of Faulty must return a Task, got None; return for exam"),
        (lambda *_: int("odd"), "^invalid literal for int"),
    ],
)
def test_a_mistake_in_with_length_is_one_line(value, message):
    with pytest.raises(ValueError, match=message) as caught:
        with_length(faulty("with_length", value), 7)
    assert "\n" not in str(caught.value)


def test_a_lack_of_memory_is_not_a_mistake_in_a_task():
    with pytest.raises(MemoryError):
        split(faulty("generate", raises(MemoryError())), "valid", seed=0)


class Asking(Sound):
    """A user's task that asks for answers in its first draws only."""

    split_sizes = SplitSizes(train=20, valid=10, test=10)

    def __init__(self, num_asking):
        self.num_asking, self.num_draws = num_asking, 0

    def generate(self, generator, num_episodes):
        self.num_draws += 1
        answer = 0 if self.num_draws <= self.num_asking else IGNORED
        inputs = generator.integers(2, size=(num_episodes, 64))
        return Episodes.from_grid(inputs, np.full_like(inputs, answer))


def test_a_split_that_asks_for_nothing_is_refused():
    for num_asking, name in enumerate(["valid", "test", "train"]):
        message = f"the {name} split of asking must ask for an answer, got .* all IGNORED; let gen"
        with pytest.raises(ValueError, match=message):
            split(Asking(num_asking), "train", seed=0)


def test_trying_a_task_out_draws_its_splits_only_if_a_few_episodes_ask_for_nothing():
    asking = Asking(100)
    try_out(asking, seed=0)
    assert asking.num_draws == 1
    with pytest.raises(ValueError, match="the valid split of asking must ask for an answer"):
        try_out(Asking(0), seed=0)


@pytest.mark.parametrize(
    "task", [RandomWalk(), Algorithm(), Algorithm(num_variables=5), Permutations()]
)
def test_generators_give_a_million_tokens_per_second(task):
    """In processor time, so that a busy machine does not matter; the best of a few."""
    speeds = []
    for seed in range(5):
        start = time.process_time()
        episodes = task.generate(np.random.default_rng(seed), 500)
        speeds.append(episodes.num_tokens / max(time.process_time() - start, 1e-9))
    assert max(speeds) > 1_000_000
