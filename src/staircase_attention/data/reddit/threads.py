"""Threads rebuilt from parent_id: a forest over many comments at once, in plain arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staircase_attention.data.reddit.records import NO_PARENT, Heads

Numbers = NDArray[np.int64]
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]

POST = -1
"""The parent of a comment that answers the post."""
MISSING = -2
"""The parent of an orphan: a comment that is in no file, or not in the same thread."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Threads:
    """Comments of whole threads, each comment once.

    They are sorted by thread, then by time, then by id; a comment's index in this order is its
    place.
    """

    heads: Heads
    """(num_comments,) what is known of each comment."""
    text_starts: Places
    """(num_comments,) where its text begins among the texts as they were read."""
    parents: Places
    """(num_comments,) the place of the comment answered, or POST, or MISSING."""
    thread_starts: Places
    """(num_threads,) the place of each thread's first comment."""
    num_duplicates: int
    """Comments left out because one with the same id had come before in the same thread."""

    @property
    def thread_of(self) -> Places:
        """(num_comments,) which of the threads a comment is in, counted from 0."""
        is_first = np.zeros(self.heads.size, dtype=np.int64)
        is_first[self.thread_starts] = 1
        return np.cumsum(is_first) - 1


def rebuild(heads: Heads) -> Threads:
    """Put comments in order and find the parent of each.

    A parent must be in the same thread. In the oldest dumps some parent_ids have since been given
    to other comments; believed, they would join two threads and answer what came later.
    """
    text_starts = np.cumsum(heads["num_bytes"], dtype=np.int64) - heads["num_bytes"]
    kept = _first_of_each(heads)
    order = kept[np.lexsort([heads[name][kept] for name in ("id", "created", "thread")])]
    ordered = heads[order]
    is_new_thread = np.ones(order.size, dtype=np.bool_)
    is_new_thread[1:] = ordered["thread"][1:] != ordered["thread"][:-1]
    return Threads(
        heads=ordered,
        text_starts=text_starts[order],
        parents=_parents(ordered, np.cumsum(is_new_thread)),
        thread_starts=np.flatnonzero(is_new_thread),
        num_duplicates=heads.size - order.size,
    )


def _first_of_each(heads: Heads) -> Places:
    """Indices of the comments whose thread and id have not come before."""
    order = np.lexsort([heads["id"], heads["thread"]])
    thread, identity = heads["thread"][order], heads["id"][order]
    is_first = np.ones(order.size, dtype=np.bool_)
    is_first[1:] = (thread[1:] != thread[:-1]) | (identity[1:] != identity[:-1])
    return order[is_first]


def _parents(heads: Heads, thread_numbers: Places) -> Places:
    """The place of each comment's parent: one look-up for all, by thread and id together."""
    identities = np.unique(heads["id"])
    ranks, _ = _found(identities, heads["id"])
    wanted_ranks, is_known = _found(identities, heads["parent"])
    keys = thread_numbers * identities.size + ranks
    order = np.argsort(keys)
    indices, is_there = _found(keys[order], thread_numbers * identities.size + wanted_ranks)
    places = np.where(is_known & is_there, order[indices], MISSING)
    return np.where(heads["parent"] == NO_PARENT, POST, places)


def _found(values: NDArray[np.generic], wanted: NDArray[np.generic]) -> tuple[Places, Flags]:
    """For each value wanted, its index among increasing values, and whether it is there."""
    indices = np.minimum(np.searchsorted(values, wanted), max(values.size - 1, 0))
    return indices, values[indices] == wanted


def sum_along_paths(parents: Places, values: Numbers) -> tuple[Numbers, Flags]:
    """The sum of a value over each comment and all those leading to it, and where there is one.

    A comment that is its own ancestor has no path, nor have those below it. Each round doubles how
    far the sums reach: s[i] <- s[i] + s[j], j[i] <- j[j[i]], where j[i] is the next one not yet
    in s[i].

    >>> sums, has_path = sum_along_paths(np.array([POST, 0, 1, 4, 3]), np.array([1, 1, 1, 1, 1]))
    >>> sums[has_path].tolist(), has_path.tolist()
    ([1, 2, 3], [True, True, True, False, False])
    """
    above_all = parents.size
    sums = np.append(values, 0)
    next_ones = np.append(np.where(parents < 0, above_all, parents), above_all)
    for _ in range(parents.size.bit_length()):
        if np.all(next_ones == above_all):
            break
        sums = sums + sums[next_ones]
        next_ones = next_ones[next_ones]
    return sums[:-1], next_ones[:-1] == above_all
