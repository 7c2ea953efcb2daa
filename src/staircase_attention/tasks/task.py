"""The interface of a task, for the built-in tasks and for a user's own."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np

from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_integer
from staircase_attention.tasks.episodes import Episodes, Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSizes:
    """How many episodes each split holds."""

    train: int | None = None
    """Training episodes; None for endless fresh data."""
    valid: int = 1_000
    """Validation episodes."""
    test: int = 1_000
    """Test episodes."""

    def __post_init__(self) -> None:
        if self.train is not None:
            check_integer("num_train", self.train, minimum=1, example=10_000)
        check_integer("num_valid", self.valid, minimum=1, example=1_000)
        check_integer("num_test", self.test, minimum=1, example=1_000)


class Task(ABC):
    """A rule that turns random numbers into sequences with answers.

    Subclass it, preferably as a frozen dataclass whose fields are the options, and implement the
    four abstract members. A task must fulfil two conditions:

    - `generate` takes all randomness from the generator that it receives, so that a seed
      determines every split;
    - an episode contains all that is needed to answer it, because lanes put unrelated episodes
      one after another: start it with a symbol that resets, or close it with one.

    Input symbol 0 also pads the end of an evaluation lane, where no answer is asked.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def input_symbols(self) -> tuple[str, ...]:
        """The name of every input symbol: the model's vocabulary."""

    @property
    @abstractmethod
    def output_symbols(self) -> tuple[str, ...]:
        """The name of every possible answer: the model's outputs."""

    @abstractmethod
    def generate(self, generator: np.random.Generator, num_episodes: int) -> Episodes:
        """Draw independent random episodes."""

    @abstractmethod
    def with_length(self, length: int) -> Self:
        """The same task with episodes of another length, to test length generalisation."""

    @property
    def closing_symbol(self) -> int | None:
        """The number of the input symbol that closes an episode; None if there is none."""
        return None

    @property
    def split_sizes(self) -> SplitSizes:
        """Episodes in train, valid and test: endless, 1,000 and 1,000 unless overridden."""
        return SplitSizes()

    @property
    def name(self) -> str:
        """The class name in lower case with hyphens: RandomWalk is random-walk."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def num_inputs(self) -> int:
        """Number of input symbols."""
        return len(self.input_symbols)

    @property
    def num_outputs(self) -> int:
        """Number of possible answers."""
        return len(self.output_symbols)

    def show(self, inputs: Integers, targets: Integers) -> str:
        """A sequence in words, each answer after the symbol at which it is asked."""
        words = []
        for symbol, answer in zip(inputs, targets, strict=True):
            words.append(self.input_symbols[symbol])
            if answer != IGNORED:
                words.append(f"[{self.output_symbols[answer]}]")
        return " ".join(words)


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedTask(Task):
    """A task whose splits have the sizes that its options give."""

    num_train: int | None = None
    """Training episodes; None for endless fresh ones."""
    num_valid: int = 1_000
    """Validation episodes."""
    num_test: int = 1_000
    """Test episodes."""

    def __post_init__(self) -> None:
        _ = self.split_sizes

    @property
    def split_sizes(self) -> SplitSizes:
        """The sizes of the options."""
        return SplitSizes(train=self.num_train, valid=self.num_valid, test=self.num_test)
