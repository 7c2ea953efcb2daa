"""Algorithm: the generator against an interpreter, and against drawing by rejection."""

import random
from collections import Counter

import numpy as np
import pytest
from oracles import program_answers, program_by_rejection

from staircase_attention.tasks import IGNORED, Algorithm

DISTRIBUTIONS = pytest.mark.parametrize("distribution", ["authors", "redraw"])


def words_of(task, inputs):
    return [task.input_symbols[symbol] for symbol in inputs.tolist()]


@DISTRIBUTIONS
@pytest.mark.parametrize(
    ("num_variables", "num_statements"), [(2, 1), (2, 300), (3, 100), (4, 2), (4, 7), (5, 30)]
)
def test_programs_agree_with_the_oracle(num_variables, num_statements, distribution):
    task = Algorithm(
        num_variables=num_variables, num_statements=num_statements, distribution=distribution
    )
    names = task.input_symbols[-num_variables:]
    for inputs, targets in task.generate(np.random.default_rng(0), 300):
        words = words_of(task, inputs)
        assert words.count(";") == num_statements
        expected = program_answers(words, names)
        answers = [None if answer == IGNORED else str(answer + 1) for answer in targets.tolist()]
        assert answers == expected


@pytest.mark.parametrize(
    ("distribution", "num_variables", "num_symbols", "num_tokens", "num_answers"),
    [
        ("authors", 3, 24, 430.4, 25.67),
        ("redraw", 3, 24, 430.7, 25.63),
        ("redraw", 5, 26, 430.0, 25.21),
    ],
)
def test_programs_have_the_expected_size(
    distribution, num_variables, num_symbols, num_tokens, num_answers
):
    task = Algorithm(num_variables=num_variables, distribution=distribution)
    assert task.num_inputs == num_symbols
    assert task.num_outputs == 10
    assert task.input_symbols[task.closing_symbol] == "END"
    episodes = task.generate(np.random.default_rng(1), 10_000)
    # Every symbol but PAD occurs.
    assert set(episodes.inputs.tolist()) == set(range(1, task.num_inputs))
    # Four standard errors of the mean over 10,000 programs.
    assert episodes.num_tokens / 10_000 == pytest.approx(num_tokens, abs=0.88)
    assert episodes.num_answers / 10_000 == pytest.approx(num_answers, abs=0.18)


@pytest.mark.parametrize(
    ("distribution", "share", "mean"), [("authors", 0.235, 8.1), ("redraw", 0.48, 5.05)]
)
def test_assignments_come_as_late_as_the_authors_generator_puts_them(distribution, share, mean):
    """Share of programs whose second statement is a plain assignment, and the place of the last.

    Places count from 0, and guarded assignments are counted there: the last one sets the last
    variable. The slow twin, drawn 20,000 times, gives 0.234 and 8.18 (error 0.04) for the
    authors, 0.477 and 5.05 for redraw.
    """
    count = 5_000
    task = Algorithm(num_statements=60, distribution=distribution)
    second, last = [], []
    for inputs, _ in task.generate(np.random.default_rng(2), count):
        lines = " ".join(words_of(task, inputs)).split(" ;")
        second.append(lines[1].split()[1] == "=")
        last.append(max(place for place, line in enumerate(lines) if "=" in line))
    assert np.mean(second) == pytest.approx(share, abs=4 * np.std(second) / count**0.5)
    assert np.mean(last) == pytest.approx(mean, abs=4 * np.std(last) / count**0.5)


@DISTRIBUTIONS
@pytest.mark.parametrize("num_variables", [2, 3])
def test_programs_are_as_likely_as_under_rejection(num_variables, distribution):
    """Compare the frequencies of whole short programs, constants left out to have fewer."""
    task = Algorithm(num_variables=num_variables, num_statements=3, distribution=distribution)
    names = task.input_symbols[-num_variables:]
    count = 25_000
    chance = random.Random(0)
    rules = {"names": names, "num_statements": 3, "distribution": distribution}
    slow = Counter(shape(program_by_rejection(chance, **rules)) for _ in range(count))
    drawn = task.generate(np.random.default_rng(0), count)
    fast = Counter(shape(words_of(task, inputs)) for inputs, _ in drawn)
    common = {program for program in slow | fast if slow[program] + fast[program] >= 20}
    assert len(common) > 80
    # Two samples of one distribution: each term is close to a chi-square of one degree.
    distance = sum(
        (slow[program] - fast[program]) ** 2 / (slow[program] + fast[program]) for program in common
    )
    assert distance < len(common) + 4 * (2 * len(common)) ** 0.5


def shape(words):
    """A program without its constants, its variables named in order of appearance."""
    renamed = {}
    for word in words:
        if word in "xyzpr":
            renamed.setdefault(word, f"v{len(renamed)}")
    return " ".join("1" if word.isdigit() else renamed.get(word, word) for word in words)


@DISTRIBUTIONS
def test_long_programs_are_as_likely_as_under_rejection(distribution):
    """Compare the mean number of every symbol in whole programs with the slow twin's."""
    task = Algorithm(distribution=distribution)
    count = 1_000
    chance = random.Random(1)
    slow = np.array(
        [
            [words.count(symbol) for symbol in task.input_symbols]
            for words in (
                program_by_rejection(
                    chance, names=["x", "y", "z"], num_statements=100, distribution=distribution
                )
                for _ in range(count)
            )
        ]
    )
    drawn = task.generate(np.random.default_rng(1), count)
    fast = np.array([np.bincount(inputs, minlength=24) for inputs, _ in drawn])
    spread = np.sqrt((slow.var(axis=0) + fast.var(axis=0)) / count)
    assert np.all(np.abs(slow.mean(axis=0) - fast.mean(axis=0)) <= 4 * spread)
