"""Strings reordered or copied, of the Chomsky-hierarchy study."""

from dataclasses import dataclass

import numpy as np

from staircase_attention.tasks.strings import BITS, DIGITS, MODULUS, Drawn, StringTask


@dataclass(frozen=True, kw_only=True, slots=True)
class ReverseString(StringTask):
    """The string backwards; deterministic context-free.

    >>> task = ReverseString(length=3)
    >>> print(task.show(*task.generate(np.random.default_rng(1), 1)[0]))
    START b b ? [b] ? [b]
    """

    letters = BITS
    answers = BITS

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters."""
        strings = generator.integers(2, size=(count, length))
        return strings, strings[:, ::-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateString(StringTask):
    """The string twice; context-sensitive, as are the following.

    >>> task = DuplicateString(length=3)
    >>> print(task.show(*task.generate(np.random.default_rng(1), 1)[0]))
    START b b ? [b] ? [b] ? [b] ? [b]
    """

    letters = BITS
    answers = BITS

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters."""
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings, strings])


@dataclass(frozen=True, kw_only=True, slots=True)
class OddsFirst(StringTask):
    """The first, third, fifth, ... letter, then the second, fourth, ...

    >>> task = OddsFirst(length=3)
    >>> print(task.show(*task.with_length(3).generate(np.random.default_rng(1), 1)[0]))
    START a b b ? [a] ? [b] ? [b]
    """

    letters = BITS
    answers = BITS

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters."""
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings[:, ::2], strings[:, 1::2]])


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketSort(StringTask):
    """The five digits in increasing order.

    >>> task = BucketSort(length=3)
    >>> print(task.show(*task.with_length(3).generate(np.random.default_rng(1), 1)[0]))
    START 2 2 3 ? [2] ? [2] ? [3]
    """

    letters = DIGITS
    answers = DIGITS

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters."""
        strings = generator.integers(MODULUS, size=(count, length))
        return strings, np.sort(strings, axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingDuplicate(StringTask):
    """A string twice, in which one letter is hidden as `_`; the answer is that letter.

    The length is even: that of an odd length is one less. Context-sensitive.

    >>> task = MissingDuplicate(length=6)
    >>> print(task.show(*task.with_length(6).generate(np.random.default_rng(1), 1)[0]))
    START a b b a b _ ? [b]
    """

    letters = (*BITS, "_")
    answers = BITS
    fewest = 2

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters and a random place."""
        half = generator.integers(2, size=(count, length // 2))
        strings = np.hstack([half, half])
        hidden = generator.integers(strings.shape[1], size=(count, 1))
        answers = np.take_along_axis(strings, hidden, axis=1)
        np.put_along_axis(strings, hidden, len(BITS), axis=1)
        return strings, answers
