"""The interface of a task, and its episodes: many independent sequences in plain arrays."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_fields, input_error

# An array of integers of any width.
Integers = NDArray[np.signedinteger]


def ragged_range(firsts: Integers, counts: Integers) -> NDArray[np.int64]:
    """Several ranges one after another: firsts[0], firsts[0] + 1, ..., firsts[1], ...

    >>> ragged_range(np.array([10, 50]), np.array([3, 2])).tolist()
    [10, 11, 12, 50, 51]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episodes:
    """Independent sequences of any lengths, all concatenated.

    >>> pair = Episodes(
    ...     inputs=np.array([0, 1, 2, 0, 1]),
    ...     targets=np.array([IGNORED, 5, 6, IGNORED, 5]),
    ...     starts=np.array([0, 3]),
    ... )
    >>> len(pair), pair.num_tokens, pair.num_answers, pair.lengths.tolist()
    (2, 5, 3, [3, 2])
    >>> [inputs.tolist() for inputs, targets in pair]
    [[0, 1, 2], [0, 1]]
    """

    inputs: Integers
    """(num_tokens,) input symbols of all episodes, one episode after another; kept as int32."""
    targets: Integers
    """(num_tokens,) the answer asked at each token, IGNORED where none is; kept as int32."""
    starts: Integers
    """(num_episodes,) index of each episode's first token, increasing from 0; kept as int64."""

    def __post_init__(self) -> None:
        for name, kind in (("inputs", np.int32), ("targets", np.int32), ("starts", np.int64)):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name), kind))
        num_tokens = self.inputs.size
        if num_tokens != self.targets.size:
            received = f"{num_tokens} inputs and {self.targets.size} targets"
            remedy = "put IGNORED where no answer is asked"
            raise input_error("inputs and targets must be equally long", received, remedy)
        is_covered = self.starts[0] == 0 if self.starts.size else num_tokens == 0
        if not is_covered or np.any(np.diff(self.starts, append=num_tokens) < 1):
            received = f"{self.starts[:4].tolist()}... over {num_tokens} tokens"
            remedy = "give the index of each episode's first token; no episode may be empty"
            rule = "starts must increase from 0 and stay below the end"
            raise input_error(rule, received, remedy)

    @classmethod
    def from_grid(
        cls, inputs: Integers, targets: Integers, *, is_token: NDArray[np.bool_] | None = None
    ) -> "Episodes":
        """One row each of two (num_episodes, length) arrays, whole or where there `is_token`."""
        if inputs.ndim != 2 or inputs.shape != targets.shape:  # noqa: PLR2004
            rule = "inputs and targets must be grids of one shape, (num_episodes, length)"
            received = f"{inputs.shape} and {targets.shape}"
            raise input_error(rule, received, "give a row of each for every episode")
        here = np.full(inputs.shape, True) if is_token is None else is_token
        lengths = here.sum(axis=1)
        return cls(inputs=inputs[here], targets=targets[here], starts=np.cumsum(lengths) - lengths)

    @classmethod
    def concatenate(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """The episodes of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.num_tokens for part in parts]
        # Starts count from the first token of all parts, not of their own.
        before = np.cumsum(sizes) - sizes
        shifted = [part.starts + shift for part, shift in zip(parts, before, strict=True)]
        return cls(
            inputs=np.concatenate([part.inputs for part in parts]),
            targets=np.concatenate([part.targets for part in parts]),
            starts=np.concatenate(shifted),
        )

    def __len__(self) -> int:
        return self.starts.size

    def __getitem__(self, index: int) -> tuple[Integers, Integers]:
        """Inputs and targets of one episode, as views."""
        # A range has the index errors of a list, and its count from the end.
        number = range(len(self))[index]
        stop = self.starts[number + 1] if number + 1 < len(self) else None
        here = slice(self.starts[number], stop)
        return self.inputs[here], self.targets[here]

    def __iter__(self) -> Iterator[tuple[Integers, Integers]]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> Integers:
        """(num_episodes,) tokens in each episode."""
        return np.diff(self.starts, append=self.inputs.size)

    @property
    def num_tokens(self) -> int:
        """Tokens in all episodes together."""
        return self.inputs.size

    @property
    def num_answers(self) -> int:
        """Tokens at which an answer is asked."""
        return int(np.count_nonzero(self.targets != IGNORED))

    def take(self, indices: Integers) -> "Episodes":
        """The episodes at these indices, in this order; repeats are allowed."""
        counts = self.lengths[indices]
        tokens = ragged_range(self.starts[indices], counts)
        return Episodes(
            inputs=self.inputs[tokens],
            targets=self.targets[tokens],
            starts=np.cumsum(counts) - counts,
        )


def _whole_numbers(name: str, array: object, kind: type[np.signedinteger]) -> Integers:
    """A one-dimensional integer array as the given type; a copy only where needed."""
    array = np.asarray(array)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        received = f"{array.ndim} dimensions of {array.dtype}"
        remedy = "flatten it, or use Episodes.from_grid"
        raise input_error(f"{name} must be a one-dimensional array of integers", received, remedy)
    bounds = np.iinfo(kind)
    if array.size and not bounds.min <= array.min() <= array.max() <= bounds.max:
        rule = f"{name} must be from {bounds.min} to {bounds.max}"
        raise input_error(rule, f"{array.min()} to {array.max()}", "number symbols from 0 on")
    return array.astype(kind, copy=False)


def run_automaton(transitions: Integers, start: int, symbols: Integers) -> Integers:
    """The states of many runs of one automaton.

    Args:
        transitions: (num_states, num_symbols) the next state for a state and a symbol.
        start: the state before the first symbol.
        symbols: (num_steps, num_runs) what each run reads; one step of all runs is contiguous.

    Returns:
        (num_steps, num_runs) the state after each symbol.

    >>> flip_or_stay = np.array([[0, 1], [1, 0]])
    >>> run_automaton(flip_or_stay, 0, np.array([[1], [0], [1]])).ravel().tolist()
    [1, 1, 0]
    """
    num_symbols = transitions.shape[1]
    # One flat index per step is faster than a pair; the product must not overflow a small type.
    flat = transitions.astype(np.intp).reshape(-1)
    states = np.empty(symbols.shape, dtype=np.int32)
    state: NDArray[np.intp] = np.full(symbols.shape[1], start, dtype=np.intp)
    for step, symbol in enumerate(symbols):
        state = flat[state * num_symbols + symbol]
        states[step] = state
    return states


def reset_episodes(symbols: Integers, answers: Integers) -> Episodes:
    """Episodes that start with the symbol START, input 0, which asks for no answer.

    Symbols and answers are (num_steps, num_episodes); symbol s becomes input s + 1.
    """
    start = ((0, 0), (1, 0))
    inputs = np.pad(symbols.T.astype(np.int32) + 1, start)
    return Episodes.from_grid(inputs, np.pad(answers.T, start, constant_values=IGNORED))


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSizes:
    """How many episodes each split holds."""

    train: int | None = None
    """Training episodes; None for endless fresh data."""
    valid: int = 1_000
    test: int = 1_000

    def __post_init__(self) -> None:
        check_fields(self, "num_")


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
    def held_out(self) -> "Task":
        """The task that draws valid and test: this one unless overridden."""
        return self

    @property
    def name(self) -> str:
        """The class name in lower case with hyphens: RandomWalk is random-walk."""
        return task_name(type(self))

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


def task_name(kind: type[Task]) -> str:
    """The name of a class in lower case with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedTask(Task):
    """A task whose splits have the sizes that its options give."""

    num_train: int | None = None
    """Training episodes; None for endless fresh ones."""
    num_valid: int = 1_000
    num_test: int = 1_000

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def split_sizes(self) -> SplitSizes:
        """The sizes of the options."""
        return SplitSizes(train=self.num_train, valid=self.num_valid, test=self.num_test)

    def with_length(self, length: int) -> Self:
        """The same task with another number of steps, where these are its option `length`."""
        return replace(self, length=length)  # type: ignore[call-arg]
