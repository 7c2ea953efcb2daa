"""Which comments are examples, and the path of each: threads as the options will have them."""

from dataclasses import dataclass

import numpy as np

from staircase_attention.data.reddit.cleaning import Status
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.threads import (
    MISSING,
    POST,
    Flags,
    Numbers,
    Places,
    Threads,
    sum_along_paths,
)

REMOVED_TEXT = "[removed]"
MISSING_TEXT = "[missing]"
SPEAKER_MARK = "{}: "


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outline:
    """Paths through threads.

    Beside the comments there is one place more, the last: it stands for every missing parent.
    """

    threads: Threads
    """The comments, their order and their real parents."""
    has_path: Flags
    """(num_comments,) False in a cycle, and below one."""
    num_missing: Numbers
    """(num_comments,) missing parents on the path, the real one: 0 or 1."""
    num_removed: Numbers
    """(num_comments,) comments without a text on it, counting the comment itself."""
    parents: Places
    """(num_comments + 1,) the place before this one in a path, POST where a path begins."""
    is_example: Flags
    """(num_comments + 1,) whether the comment ends a path that is written."""
    is_on_path: Flags
    """(num_comments + 1,) whether it is in one."""
    goes_on: Flags
    """(num_comments + 1,) whether it is in one that ends elsewhere."""


def outline(threads: Threads, options: RedditOptions) -> Outline:
    """Find the examples among the comments of whole threads."""
    is_living = threads.heads["status"] == Status.LIVING
    is_orphan = threads.parents == MISSING
    num_missing, has_path = sum_along_paths(threads.parents, is_orphan.astype(np.int64))
    num_removed, _ = sum_along_paths(threads.parents, (~is_living).astype(np.int64))
    parents = _path_parents(threads.parents, is_living, options)
    is_gap = np.zeros(parents.size, dtype=np.int64)
    if options.missing == "drop":
        is_gap[:-1] += is_orphan
    if options.removed == "drop":
        is_gap[:-1] += ~is_living
    is_example = np.append(is_living & has_path, False) & (sum_along_paths(parents, is_gap)[0] == 0)
    if options.maximum_depth is not None:
        depth, _ = sum_along_paths(parents, np.ones_like(parents))
        is_example &= depth <= options.maximum_depth
    is_on_path, goes_on = _marked(parents, is_example)
    return Outline(
        threads=threads,
        has_path=has_path,
        num_missing=num_missing,
        num_removed=num_removed,
        parents=parents,
        is_example=is_example,
        is_on_path=is_on_path,
        goes_on=goes_on,
    )


def _path_parents(real_parents: Places, is_living: Flags, options: RedditOptions) -> Places:
    """Parents in paths: some are cut off, some are the place that stands for what is missing."""
    parents = np.append(np.maximum(real_parents, POST), POST)
    if options.missing == "placeholder":
        parents[:-1][real_parents == MISSING] = real_parents.size
    if options.removed == "cut":
        is_answer = real_parents >= 0
        parents[:-1][is_answer] = np.where(
            is_living[real_parents[is_answer]], real_parents[is_answer], POST
        )
    return parents


def _marked(parents: Places, is_example: Flags) -> tuple[Flags, Flags]:
    """Every place on the path of an example, and every one that such a path goes on from."""
    is_on_path, goes_on = is_example.copy(), np.zeros_like(is_example)
    above = parents[is_example]
    while above.size:
        above = np.unique(above[above >= 0])
        goes_on[above] = True
        above = above[~is_on_path[above]]
        is_on_path[above] = True
        above = parents[above]
    return is_on_path, goes_on


def piece_characters(outline: Outline, options: RedditOptions) -> Numbers:
    """(num_comments + 1,) characters that each place takes in a text, its separator too."""
    heads = outline.threads.heads
    is_living = heads["status"] == Status.LIVING
    own = np.where(is_living, heads["num_characters"], len(REMOVED_TEXT)).astype(np.int64)
    mark = len(SPEAKER_MARK.format("A")) if options.speakers else 0
    return np.append(own, len(MISSING_TEXT)) + mark + len(options.separator)
