"""Strings reordered or copied, of the Chomsky-hierarchy study."""

import numpy as np

from staircase_attention.tasks.strings import BITS, DIGITS, MODULUS, Drawn, StringTask


class ReverseString(StringTask):
    """The string backwards; deterministic context-free.

    START b b ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, strings[:, ::-1]


class DuplicateString(StringTask):
    """The string twice; context-sensitive, as are the following.

    START b b ? [b] ? [b] ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings, strings])


class OddsFirst(StringTask):
    """The first, third, fifth, ... letter, then the second, fourth, ...

    START a b b ? [a] ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings[:, ::2], strings[:, 1::2]])


class BucketSort(StringTask):
    """The five digits in increasing order.

    START 2 2 3 ? [2] ? [2] ? [3]
    """

    letters = DIGITS
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(MODULUS, size=(count, length))
        return strings, np.sort(strings, axis=1)


class MissingDuplicate(StringTask):
    """A string twice, in which one letter is hidden as `_`; the answer is that letter.

    The length is even: that of an odd length is one less. Context-sensitive.

    START a b b a b _ ? [b]
    """

    letters = (*BITS, "_")
    fewest = 2

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        half = generator.integers(2, size=(count, length // 2))
        strings = np.hstack([half, half])
        hidden = generator.integers(strings.shape[1], size=(count, 1))
        answers = np.take_along_axis(strings, hidden, axis=1)
        np.put_along_axis(strings, hidden, len(BITS), axis=1)
        return strings, answers
