"""Strings reordered or copied, of the Chomsky-hierarchy study."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from staircase_attention.tasks.strings import BITS, DIGITS, Drawn, StringTask
from staircase_attention.tasks.task import Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class Rearranged(StringTask):
    """Random letters; `rearranged` gives the answer."""

    letters = BITS
    answers = BITS

    @abstractmethod
    def rearranged(self, strings: Integers) -> Integers:
        """(count, any number) the answers to (count, length) strings."""

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Random letters."""
        strings = generator.integers(len(self.letters), size=(count, length))
        return strings, self.rearranged(strings)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReverseString(Rearranged):
    """The string backwards; deterministic context-free.

    >>> task = ReverseString(length=3)
    >>> print(task.show(*task.generate(np.random.default_rng(1), 1)[0]))
    START b b ? [b] ? [b]
    """

    def rearranged(self, strings: Integers) -> Integers:
        """Last letter first."""
        return strings[:, ::-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateString(Rearranged):
    """The string twice; context-sensitive, as are the following.

    >>> task = DuplicateString(length=3)
    >>> print(task.show(*task.generate(np.random.default_rng(1), 1)[0]))
    START b b ? [b] ? [b] ? [b] ? [b]
    """

    def rearranged(self, strings: Integers) -> Integers:
        """Once, and again."""
        return np.hstack([strings, strings])


@dataclass(frozen=True, kw_only=True, slots=True)
class OddsFirst(Rearranged):
    """The first, third, fifth, ... letter, then the second, fourth, ...

    >>> task = OddsFirst(length=3)
    >>> print(task.show(*task.with_length(3).generate(np.random.default_rng(1), 1)[0]))
    START a b b ? [a] ? [b] ? [b]
    """

    def rearranged(self, strings: Integers) -> Integers:
        """Every other letter, twice."""
        return np.hstack([strings[:, ::2], strings[:, 1::2]])


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketSort(Rearranged):
    """The five digits in increasing order.

    >>> task = BucketSort(length=3)
    >>> print(task.show(*task.with_length(3).generate(np.random.default_rng(1), 1)[0]))
    START 2 2 3 ? [2] ? [2] ? [3]
    """

    letters = DIGITS
    answers = DIGITS

    def rearranged(self, strings: Integers) -> Integers:
        """Sorted."""
        return np.sort(strings, axis=1)


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
