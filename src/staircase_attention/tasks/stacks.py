"""What a stack holds: stack manipulation, of the Chomsky-hierarchy study, and Dyck-(k, m)."""

from dataclasses import dataclass, field

import numpy as np

from staircase_attention.tasks.strings import BITS, Drawn, StringTask, ended
from staircase_attention.tasks.task import Integers

POP = 2
KINDS = ("()", "[]", "{}", "<>")


def from_top(stacks: Integers, top: Integers, end: int) -> Integers:
    """Stacks with `top` symbols each, from the top downwards, and `end`."""
    order = np.maximum(top[:, None] - 1 - np.arange(stacks.shape[1]), 0)
    return ended(np.take_along_axis(stacks, order, axis=1), top, end)


class StackManipulation(StringTask):
    """A stack from bottom to top, then commands; the answer is the stack from top to bottom, END.

    The stack has one letter or more and leaves room for a command. `pop` of an empty stack does
    nothing. Deterministic context-free.

    START b b pop pop push-b ? [b] ? [END]
    """

    letters = (*BITS, "pop", "push-a", "push-b")
    answers = (*BITS, "END")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        height = generator.integers(1, max(length, 2), size=(count, 1))
        stack, commands = (
            generator.integers(low, high, size=(count, length)) for low, high in ((0, 2), (2, 5))
        )
        strings = np.where(np.arange(length) < height, stack, commands)
        # A letter of the stack is pushed, too. What lies above the top is of no account.
        contents, top = np.zeros_like(strings), np.zeros(count, dtype=np.int64)
        for symbol in strings.T:
            is_pushed = np.flatnonzero(symbol != POP)
            contents[is_pushed, top[is_pushed]] = symbol[is_pushed] % (POP + 1)
            top = np.maximum(top + np.where(symbol == POP, -1, 1), 0)
        return strings, from_top(contents, top, len(BITS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dyck(StringTask):
    """The beginning of a balanced word; the answer is the brackets that close it, then END.

    With nothing open a bracket opens, with `depth` open one closes, otherwise either with chance
    1/2; the kind of an opening bracket is uniform.

    START [ ] < < > > < ? [>] ? [END]
    """

    num_kinds: int = field(default=4, metadata={"maximum": len(KINDS)})
    """k: kinds of brackets, 1 to 4."""
    depth: int = 5
    """m: brackets open at once, at most."""

    @property
    def letters(self) -> tuple[str, ...]:  # type: ignore[override]
        """Opening brackets, then closing ones."""
        return tuple(pair[side] for side in (0, 1) for pair in KINDS[: self.num_kinds])

    @property
    def answers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Closing brackets and END."""
        return (*self.letters[self.num_kinds :], "END")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        kinds = generator.integers(self.num_kinds, size=(length, count))
        wishes = generator.integers(2, size=(length, count))
        strings = np.empty((count, length), dtype=np.int64)
        rows, top = np.arange(count), np.zeros(count, dtype=np.int64)
        opened = np.zeros((count, self.depth + 1), dtype=np.int64)
        for place in range(length):
            opens = (top == 0) | ((top < self.depth) & (wishes[place] == 1))
            opened[rows[opens], top[opens]] = kinds[place][opens]
            closed = self.num_kinds + opened[rows, top - 1]
            strings[:, place] = np.where(opens, kinds[place], closed)
            top += np.where(opens, 1, -1)
        return strings, from_top(opened, top, self.num_kinds)
