"""Tasks that read a whole string before they are asked: START, the string, then `?` per answer.

This is the form of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., 2023): an answer
may have several symbols, and the model does not see those that it has given.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_integer
from staircase_attention.tasks.task import Episodes, Integers, SizedTask

# Strings and answers of several episodes.
Drawn = tuple[Integers, Integers]

BITS = ("a", "b")
DIGITS = ("0", "1", "2", "3", "4")


@dataclass(frozen=True, kw_only=True, slots=True)
class StringTask(SizedTask):
    """Strings of `shortest` to `length` symbols, half as often where they are twice as long.

    The study draws lengths uniformly; with many short strings its tasks are learnt from far fewer
    tokens. Valid and test have strings of half the length or more: shorter ones are so few that
    none would be left to train on.

    A subclass names its `letters` and `answers` and draws strings of one length.
    """

    length: int = 40
    """Symbols of the longest string; an episode also has START and a `?` per answer."""
    shortest: int = 1
    """Symbols of the shortest string, where the task allows so few."""

    letters: ClassVar[tuple[str, ...]] = BITS
    answers: ClassVar[tuple[str, ...]] = BITS
    fewest: ClassVar[int] = 1
    """Symbols without which there is nothing to ask."""

    def __post_init__(self) -> None:
        check_integer("length", self.length, minimum=self.fewest, example=40)
        check_integer("shortest", self.shortest, minimum=1, maximum=self.length, example=1)
        SizedTask.__post_init__(self)

    @property
    def input_symbols(self) -> tuple[str, ...]:
        """START, the letters, and `?`, which asks for the next answer."""
        return ("START", *self.letters, "?")

    @property
    def output_symbols(self) -> tuple[str, ...]:
        """The answers."""
        return self.answers

    def with_length(self, length: int) -> Self:
        """The same task with strings of exactly this length."""
        return replace(self, length=length, shortest=length)

    @property
    def held_out(self) -> Self:
        """The same task with the longer half of the lengths."""
        return replace(self, shortest=max(self.shortest, (self.length + 1) // 2))

    @abstractmethod
    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Strings of about one length, and their answers.

        Returns:
            (count, about length) letters, and (count, any number) answers, IGNORED after the end.
        """

    def generate(self, generator: np.random.Generator, num_episodes: int) -> Episodes:
        """Independent strings: those of one length are drawn together, then put in random order."""
        # Log-uniform, as 1 / n is the derivative of log n.
        least, most = max(self.fewest, self.shortest), self.length
        logs = generator.uniform(math.log(least), math.log(most + 1), num_episodes)
        lengths = np.exp(logs).astype(np.int64).clip(least, most)
        ask, parts = len(self.letters) + 1, list[Episodes]()
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            strings, answers = self._draw(generator, length, count)
            # [episodes, 1 + letters + answers]: START is input 0, letter l is input l + 1.
            before = np.pad(strings + 1, ((0, 0), (1, 0)))
            inputs = np.hstack([before, np.full_like(answers, ask)])
            targets = np.hstack([np.full_like(before, IGNORED), answers])
            # Episodes end where their answers do.
            is_token = (inputs != ask) | (targets != IGNORED)
            parts.append(Episodes.from_grid(inputs, targets, is_token=is_token))
        # The lengths are in random order, so their ranks are one.
        return Episodes.concatenate(parts).take(np.argsort(np.argsort(lengths, kind="stable")))


def ended(columns: Integers, lengths: Integers, end: int) -> Integers:
    """Answers of these lengths, each followed by the symbol `end` and then by IGNORED.

    >>> ended(np.array([[1, 0, 1], [0, 0, 0]]), np.array([3, 1]), 2).tolist()
    [[1, 0, 1, 2], [0, 2, -1, -1]]
    """
    place = np.arange(columns.shape[1] + 1)
    padded = np.pad(columns, ((0, 0), (0, 1)))
    left = np.where(place < lengths[:, None], padded, IGNORED)
    return np.where(place == lengths[:, None], end, left)


def from_top(stacks: Integers, top: Integers, end: int) -> Integers:
    """Stacks with `top` symbols each, from the top downwards, and `end`."""
    order = np.maximum(top[:, None] - 1 - np.arange(stacks.shape[1]), 0)
    return ended(np.take_along_axis(stacks, order, axis=1), top, end)
