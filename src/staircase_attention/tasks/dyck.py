"""Dyck-(k, m): brackets of k kinds, at most m of them open at once."""

from dataclasses import dataclass

import numpy as np

from staircase_attention.checks import check_integer
from staircase_attention.tasks.strings import Drawn, StringTask, ended

KINDS = ("()", "[]", "{}", "<>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dyck(StringTask):
    """The beginning of a balanced word; the answer is the brackets that close it, then END.

    With nothing open a bracket opens, with `depth` open one closes, otherwise either with chance
    1/2; the kind of an opening bracket is uniform.

    >>> task = Dyck(length=7)
    >>> print(task.show(*task.with_length(7).generate(np.random.default_rng(1), 1)[0]))
    START [ ] < < > > < ? [>] ? [END]
    """

    num_kinds: int = 4
    """k: kinds of brackets, 1 to 4."""
    depth: int = 5
    """m: brackets open at once, at most."""

    def __post_init__(self) -> None:
        check_integer("num_kinds", self.num_kinds, minimum=1, maximum=len(KINDS), example=2)
        check_integer("depth", self.depth, minimum=1, example=5)
        StringTask.__post_init__(self)

    @property
    def letters(self) -> tuple[str, ...]:  # type: ignore[override]
        """Opening brackets, then closing ones."""
        return tuple(pair[side] for side in (0, 1) for pair in KINDS[: self.num_kinds])

    @property
    def answers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Closing brackets and END."""
        return (*self.letters[self.num_kinds :], "END")

    def draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        """Brackets one after another, with the kinds that are open in each row."""
        kinds, wishes = (
            generator.integers(most, size=(length, count)) for most in (self.num_kinds, 2)
        )
        strings = np.empty((count, length), dtype=np.int64)
        rows, top = np.arange(count), np.zeros(count, dtype=np.int64)
        # [rows, depth + 1]; what lies at `top` and above is no longer open.
        opened = np.zeros((count, self.depth + 1), dtype=np.int64)
        for place in range(length):
            opens = (top == 0) | ((top < self.depth) & (wishes[place] == 1))
            opened[rows[opens], top[opens]] = kinds[place][opens]
            closed = self.num_kinds + opened[rows, top - 1]
            strings[:, place] = np.where(opens, kinds[place], closed)
            top += np.where(opens, 1, -1)
        order = np.maximum(top[:, None] - 1 - np.arange(self.depth), 0)
        return strings, ended(np.take_along_axis(opened, order, axis=1), top, self.num_kinds)
