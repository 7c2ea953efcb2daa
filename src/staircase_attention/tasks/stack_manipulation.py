"""Stack manipulation, of the Chomsky-hierarchy study: what a stack holds in the end."""

from dataclasses import dataclass

import numpy as np

from staircase_attention.tasks.strings import BITS, Drawn, StringTask, ended

POP = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class StackManipulation(StringTask):
    """A stack from bottom to top, then commands; the answer is the stack from top to bottom, END.

    The stack has one letter or more and leaves room for a command. `pop` of an empty stack does
    nothing. Deterministic context-free.

    >>> task = StackManipulation(length=5)
    >>> print(task.show(*task.with_length(5).generate(np.random.default_rng(1), 1)[0]))
    START b b pop pop push-b ? [b] ? [END]
    """

    letters = (*BITS, "pop", "push-a", "push-b")
    answers = (*BITS, "END")

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Stacks of random heights."""
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
        # From the top downwards: the letter at place p is at height top - 1 - p.
        order = np.maximum(top[:, None] - 1 - np.arange(length), 0)
        return strings, ended(np.take_along_axis(contents, order, axis=1), top, len(BITS))
