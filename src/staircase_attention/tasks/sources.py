"""Training data as one unending sequence of numbered episodes, finite data included."""

from functools import lru_cache
from typing import Protocol

import numpy as np

from staircase_attention.tasks.asked import sizes_of
from staircase_attention.tasks.episodes import Episodes, Integers
from staircase_attention.tasks.splits import (
    BLOCK_SIZE,
    EPOCH_STREAM,
    held_out_fingerprints,
    random_generator,
    split,
    train_block,
)
from staircase_attention.tasks.task import Task


class Source(Protocol):
    """Episodes 0, 1, 2, ... without end; what a number stands for never changes.

    A place in a source is therefore a number: nothing else need be saved to resume there.
    """

    def find(self, numbers: Integers) -> tuple[Episodes, Integers]:
        """A store of episodes, and where in it the episodes with these numbers are."""


class Endless:
    """Fresh episodes for ever, none of them in valid or test.

    Block k of BLOCK_SIZE episodes is drawn from the seed and k alone. The store holds the blocks
    from the lowest to the highest of the last look-up: lanes move on together.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self._forbidden = held_out_fingerprints(task, seed)
        self._blocks: dict[int, Episodes] = {}
        self._store: Episodes | None = None

    def find(self, numbers: Integers) -> tuple[Episodes, Integers]:
        """A store of episodes, and where in it the episodes with these numbers are."""
        first, last = int(numbers.min()) // BLOCK_SIZE, int(numbers.max()) // BLOCK_SIZE
        needed = list(range(first, last + 1))
        if self._store is None or list(self._blocks) != needed:
            self._blocks = {block: self._block(block) for block in needed}
            self._store = Episodes.concatenate(list(self._blocks.values()))
        return self._store, numbers - first * BLOCK_SIZE

    def _block(self, number: int) -> Episodes:
        if number in self._blocks:
            return self._blocks[number]
        return train_block(self._task, self._seed, number, self._forbidden)


class Epochs:
    """The same episodes again and again, each epoch in an order of its own.

    Episode number n is in epoch n // len(episodes); the order of an epoch is drawn from the
    seed and the epoch's number alone.
    """

    def __init__(self, episodes: Episodes, seed: int) -> None:
        self._episodes, self._seed = episodes, seed

    def find(self, numbers: Integers) -> tuple[Episodes, Integers]:
        """A store of episodes, and where in it the episodes with these numbers are."""
        epochs, places = np.divmod(numbers, len(self._episodes))
        indices = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = epoch_order(self._seed, epoch, len(self._episodes))[places[here]]
        return self._episodes, indices


def training_source(task: Task, seed: int) -> Source:
    """The training data of a task: epochs of its train split, or endless where it has no size."""
    if sizes_of(task).train is None:
        return Endless(task, seed)
    return Epochs(split(task, "train", seed), seed)


@lru_cache(maxsize=16)
def epoch_order(seed: int, epoch: int, num_episodes: int) -> Integers:
    """The order of the episodes in one epoch."""
    return random_generator(seed, EPOCH_STREAM, epoch).permutation(num_episodes)
