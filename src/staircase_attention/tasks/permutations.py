"""Permutations: the word problem of a group, the test of state tracking."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from itertools import permutations as all_orders
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from staircase_attention.checks import input_error
from staircase_attention.tasks.task import Episodes, SizedTask, reset_episodes, run_automaton

Permutation = tuple[int, ...]

# S6 has 720 elements; the multiplication table of S7 would have 25 million entries.
MAXIMUM_POINTS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Permutations(SizedTask):
    """At each step a random element g_t of a group; the answer is the product g_1 g_2 ... g_t.

    The product is read from left to right: first apply g_1, then g_2, so that with s the product
    so far, (s g)(i) = g(s(i)). An element is written as its images: 231 sends 1 to 2, 2 to 3
    and 3 to 1. An episode starts with START, which resets the product to the identity and asks
    for no answer. S2 is parity: 21 is an odd bit, 12 an even one.

    Tracking S5 or A5 is complete for NC1 (Barrington, 1989), which constant-depth Transformers
    are not believed to reach. The paper does not have this task.

    >>> task = Permutations(group="S3", length=3)
    >>> print(task.show(*task.generate(np.random.default_rng(0), 1)[0]))
    START 231 [231] 321 [213] 321 [231]
    """

    group: str = "S5"
    """Sn, all permutations of n points, n from 2 to 6; or An, the even ones, n from 3 to 6."""
    length: int = 64
    """Elements in an episode; with START an episode has length + 1 tokens."""
    inputs: Literal["elements", "generators"] = "elements"
    """What is drawn at a step, uniformly: all 'elements', or only 'generators': the
    identity and, for Sn, the swaps of neighbours; for An, the cycles 1 -> 2 -> k -> 1."""

    def __post_init__(self) -> None:
        group_elements(self.group)
        SizedTask.__post_init__(self)

    @property
    def input_symbols(self) -> tuple[str, ...]:
        """START, then the elements that may be drawn."""
        return ("START", *map(_written, self._drawn))

    @property
    def output_symbols(self) -> tuple[str, ...]:
        """The elements of the group, in lexicographic order, so that the identity is first."""
        return tuple(map(_written, group_elements(self.group)))

    def generate(self, generator: np.random.Generator, num_episodes: int) -> Episodes:
        """Independent words, from the identity."""
        shape = (self.length, num_episodes)
        drawn = generator.integers(len(self._drawn), size=shape, dtype=np.int16)
        products = run_automaton(multiplication_table(self.group, self._drawn), 0, drawn)
        return reset_episodes(drawn, products)

    @property
    def _drawn(self) -> tuple[Permutation, ...]:
        everything = self.inputs == "elements"
        return group_elements(self.group) if everything else group_generators(self.group)


@lru_cache(maxsize=16)
def group_elements(group: str) -> tuple[Permutation, ...]:
    """All elements of a group, each as its images of 0, 1, ..., in lexicographic order.

    >>> group_elements("A3")
    ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    """
    parts = re.fullmatch(r"([SA])(\d)", str(group))
    fewest = 3 if parts and parts[1] == "A" else 2
    if parts is None or not fewest <= int(parts[2]) <= MAXIMUM_POINTS:
        rule = f"group must be S2 to S{MAXIMUM_POINTS} or A3 to A{MAXIMUM_POINTS}"
        raise input_error(rule, repr(group), "use for example group='S5'")
    orders = all_orders(range(int(parts[2])))
    # An even permutation has an even number of pairs out of order.
    return tuple(
        order
        for order in orders
        if parts[1] == "S" or sum(one > other for one, other in combinations(order, 2)) % 2 == 0
    )


@lru_cache(maxsize=16)
def group_generators(group: str) -> tuple[Permutation, ...]:
    """The identity and a few elements whose products give the whole group.

    >>> [_written(generator) for generator in group_generators("S4")]
    ['1234', '1243', '1324', '2134']
    >>> [_written(generator) for generator in group_generators("A4")]
    ['1234', '2314', '2431']
    """
    points = group_elements(group)[0]
    if group.startswith("S"):
        found = [(*points[:one], one + 1, one, *points[one + 2 :]) for one in points[:-1]]
    else:
        found = [(1, last, *points[2:last], 0, *points[last + 1 :]) for last in points[2:]]
    return tuple(sorted([points, *found]))


@lru_cache(maxsize=16)
def multiplication_table(group: str, drawn: tuple[Permutation, ...]) -> NDArray[np.int64]:
    """(elements, drawn): the index of the product of an element and something drawn."""
    elements = group_elements(group)
    index = {element: number for number, element in enumerate(elements)}
    # First the element s, then what is drawn, g: the product sends i to g(s(i)).
    return np.array([[index[tuple(g[i] for i in s)] for g in drawn] for s in elements])


def _written(permutation: Permutation) -> str:
    return "".join(str(image + 1) for image in permutation)
