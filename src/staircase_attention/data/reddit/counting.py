"""Counting, without looking at a single text: what is in some threads, and what is written."""

import numpy as np

from staircase_attention.data.reddit.cleaning import Status
from staircase_attention.data.reddit.examples import document_ends
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.outline import Outline, piece_characters
from staircase_attention.data.reddit.report import CommentCounts, TextCounts
from staircase_attention.data.reddit.threads import MISSING, Numbers, sum_along_paths
from staircase_attention.data.splits import SPLITS


def comment_counts(outline: Outline) -> CommentCounts:
    """What the comments of some threads are."""
    threads = outline.threads
    kinds = np.bincount(threads.heads["status"], minlength=len(Status))
    is_living = threads.heads["status"] == Status.LIVING
    is_below_missing = outline.has_path & (outline.num_missing > 0)
    is_below_removed = outline.has_path & ~is_below_missing & (outline.num_removed > 0)
    is_whole = outline.has_path & (outline.num_missing == 0) & (outline.num_removed == 0)
    return CommentCounts(
        duplicates=threads.num_duplicates,
        deleted=int(kinds[Status.DELETED]),
        removed=int(kinds[Status.REMOVED]),
        empty=int(kinds[Status.EMPTY]),
        bots=int(kinds[Status.BOT]),
        filtered=int(kinds[Status.FILTERED]),
        in_cycles=int((is_living & ~outline.has_path).sum()),
        below_missing=int((is_living & is_below_missing).sum()),
        below_removed=int((is_living & is_below_removed).sum()),
        whole=int(is_whole.sum()),
        orphans=int((threads.parents == MISSING).sum()),
        examples=int(outline.is_example.sum()),
    )


def text_counts(outline: Outline, options: RedditOptions) -> dict[str, TextCounts]:
    """What is written of some threads, split by split."""
    columns = _columns_by_thread(outline, options)
    starts = outline.threads.thread_starts
    splits = [
        SPLITS.index(options.fractions.split_of(thread))
        for thread in outline.threads.heads["thread"][starts].tolist()
    ]
    sums = {
        name: np.bincount(np.array(splits, dtype=np.int64), column, len(SPLITS))
        for name, column in columns.items()
    }
    return {
        split: TextCounts(**{name: int(column[number]) for name, column in sums.items()})
        for number, split in enumerate(SPLITS)
    }


def _columns_by_thread(outline: Outline, options: RedditOptions) -> dict[str, Numbers]:
    """Each of the TextCounts for each thread."""
    heads, thread_of = outline.threads.heads, outline.threads.thread_of
    num_threads = outline.threads.thread_starts.size

    def summed(places: Numbers, values: Numbers) -> Numbers:
        return np.bincount(thread_of[places], values, num_threads).astype(np.int64)

    ends = document_ends(outline, options)
    num_documents = summed(ends, np.ones_like(ends))
    written = np.flatnonzero(outline.is_on_path[:-1])
    pieces = piece_characters(outline, options)
    if options.form == "threads":
        after_missing = written[outline.parents[written] == outline.parents.size - 1]
        characters = summed(written, pieces[written])
        characters += summed(after_missing, pieces[np.full_like(after_missing, -1)])
    else:
        characters = summed(ends, sum_along_paths(outline.parents, pieces)[0][ends])
    return {
        "threads": np.ones(num_threads, dtype=np.int64),
        "threads_with_examples": np.minimum(num_documents, 1),
        "documents": num_documents,
        "characters": characters - num_documents * len(options.separator),
        "distinct_characters": summed(written, heads["num_characters"][written]),
    }
