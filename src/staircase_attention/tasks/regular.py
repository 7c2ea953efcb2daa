"""The regular tasks of the Chomsky-hierarchy study: a finite automaton solves each of them."""

import numpy as np

from staircase_attention.tasks.strings import DIGITS, MODULUS, Drawn, StringTask

PLUS, MINUS, TIMES = range(MODULUS, MODULUS + 3)


class EvenPairs(StringTask):
    """Whether `ab` and `ba` together occur an even number of times: first and last letter agree.

    START b b b ? [even]
    """

    answers = ("odd", "even")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, 1 * (strings[:, :1] == strings[:, -1:])


class ParityCheck(StringTask):
    """Whether the number of `b` is even.

    START b b b ? [odd]
    """

    answers = ("even", "odd")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, strings.sum(axis=1, keepdims=True) % 2


class CycleNavigation(StringTask):
    """Where a walk on a circle of five places ends, which starts at place 0.

    START on back back ? [4]
    """

    letters = ("stay", "on", "back")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(3, size=(count, length))
        steps = np.array([0, 1, -1])[strings]
        return strings, steps.sum(axis=1, keepdims=True) % MODULUS


class ModularArithmeticSimple(StringTask):
    """The value of digits joined by `+`, `-` and `*`, modulo 5; `*` binds tighter.

    The length is odd: that of an even length is one less.

    START 2 + 3 * 0 ? [2]
    """

    letters = (*DIGITS, "+", "-", "*")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(MODULUS, size=(count, length - (length + 1) % 2))
        strings[:, 1::2] = generator.integers(PLUS, TIMES + 1, size=strings[:, 1::2].shape)
        # The terms so far, and the term that further factors may extend.
        total, term = np.zeros(count, dtype=np.int64), strings[:, 0]
        for sign, digit in zip(strings.T[1::2], strings.T[2::2], strict=True):
            total = np.where(sign == TIMES, total, total + term) % MODULUS
            factor = np.where(sign == TIMES, term, np.where(sign == PLUS, 1, -1))
            term = factor * digit % MODULUS
        return strings, (total + term)[:, None] % MODULUS
