"""Rebuild threads, select the comments that become examples, and write documents.

A comment's *place* is its index in its thread, in the order of time and id.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.checks import check_choice, check_integer
from staircase_attention.data.documents import Document, HeldOut
from staircase_attention.data.reddit.comments import Cleaning, Comment, Status

Form = Literal["paths", "leaves", "threads"]
Gap = Literal["drop", "cut", "placeholder"]

# The parent of a comment that answers the post.
POST = -1
# The parent of an orphan: a comment that is in no file, or not in the same thread.
MISSING = -2
# The depth of a comment whose path is dropped.
NO_PATH = 1 << 60
REMOVED_TEXT = "[removed]"
MISSING_TEXT = "[missing]"
# No cleaned comment contains three newlines in a row: a document can be split into its comments.
SEPARATOR = "\n\n\n"
# The mark of a deleted account, and of the fifty-third and later authors of a document.
NO_SPEAKER = "?"


@dataclass(frozen=True, kw_only=True, slots=True)
class RedditOptions:
    """What an example is, and how it is written."""

    form: Form = "paths"
    """'paths': every comment with all comments that lead to it, as in the paper; a comment is
    repeated for each comment below it. 'leaves': only paths that are not the beginning of another
    path. 'threads': every thread once, each comment followed by its answers."""
    removed: Gap = "drop"
    """What to do below a comment without a text (deleted, removed, empty, by a bot, or filtered):
    'drop' the comments below it, since their paths are not complete; 'cut' the path, which then
    begins below the gap; or write a 'placeholder', [removed], in its place."""
    missing: Gap = "drop"
    """The same for a comment whose parent is in no file; its placeholder is [missing]."""
    maximum_depth: int | None = None
    """Comments in the longest path; deeper comments are not examples. None for no limit."""
    speakers: bool = False
    """Whether each comment begins with a mark for its author, 'A: ' for the first in a document."""
    cleaning: Cleaning = field(default_factory=Cleaning)
    held_out: HeldOut = field(default_factory=lambda: HeldOut(valid=0.01, test=0.01))
    """Fractions of the threads in valid and test."""

    def __post_init__(self) -> None:
        for name, choices in (("form", Form), ("removed", Gap), ("missing", Gap)):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.maximum_depth is not None:
            check_integer("maximum_depth", self.maximum_depth, minimum=1, example=7)

    def split_of(self, thread: int) -> str:
        """The split of a thread, given the number of its post.

        A thread keeps its split when dumps are added. If `valid` grows, it takes threads from train
        only: valid and test are taken from opposite ends.
        """
        digest = hashlib.blake2b(f"0:{thread}".encode(), digest_size=6).digest()
        place = int.from_bytes(digest) / 2**48
        if place < self.held_out.valid:
            return "valid"
        return "test" if place >= 1 - self.held_out.test else "train"


class Thread(NamedTuple):
    """The comments of a thread, and the paths that are written."""

    rows: list[Comment]
    before: list[int]  # The place before this one in a written path, POST or MISSING at its start.
    examples: list[int]  # The places at which written paths end.
    inner: set[int]  # The places on written paths that end elsewhere.
    counts: Counter[str]  # Its comments by what became of them; and 'threads' and 'orphans'.


def rebuild(comments: pa.Table, options: RedditOptions) -> Iterator[Thread]:
    """The threads in order. Of comments with the same thread and id, the first is kept."""
    numbered = comments.append_column("row", pa.array(np.arange(len(comments))))
    firsts = numbered.group_by(["thread", "id"], use_threads=False).aggregate([("row", "min")])
    order = [(name, "ascending") for name in ("thread", "created", "id")]
    rows = comments.take(firsts["row_min"]).sort_by(order)
    columns = [rows[name].to_pylist() for name in Comment._fields]
    for _, group in groupby(map(Comment._make, zip(*columns, strict=True)), attrgetter("thread")):
        yield _thread(list(group), options)


def _thread(rows: list[Comment], options: RedditOptions) -> Thread:
    """Follow all paths from the top down, and select the examples.

    A parent must be in the same thread. In the oldest dumps some ids were given to later comments
    again: joined by id alone, they would connect two threads and answer what was written later.
    """
    places = {row.id: place for place, row in enumerate(rows)}
    parents = [POST if row.parent is None else places.get(row.parent, MISSING) for row in rows]
    answers: defaultdict[int, list[int]] = defaultdict(list)
    for place, parent in enumerate(parents):
        answers[parent].append(place)
    counts = Counter(Status(row.status).name.lower() for row in rows if row.text is None)
    counts.update(threads=1, orphans=len(answers[MISSING]))

    before, examples = parents.copy(), []
    kinds = {POST: "whole", MISSING: "below_missing"}
    depths = {POST: 0, MISSING: {"drop": NO_PATH, "cut": 0, "placeholder": 1}[options.missing]}
    reached = answers[POST] + answers[MISSING]
    for place in reached:
        reached += answers[place]
        parent = parents[place]
        kinds[place], depths[place] = kinds[parent], depths[parent] + 1
        if parent == MISSING and options.missing == "cut":
            before[place] = POST
        if parent >= 0 and rows[parent].text is None:
            kinds[place] = "below_removed" if kinds[parent] == "whole" else kinds[parent]
            if options.removed == "cut":
                before[place], depths[place] = POST, 1
            elif options.removed == "drop":
                depths[place] = NO_PATH
        if rows[place].text is not None:
            counts[kinds[place]] += 1
            if depths[place] <= (options.maximum_depth or NO_PATH - 1):
                examples.append(place)
    # The others are in cycles, or below one.
    others = set(range(len(rows))).difference(reached)
    num_in_cycles = sum(rows[place].text is not None for place in others)
    counts.update(in_cycles=num_in_cycles, examples=len(examples))
    inner: set[int] = set()
    for example in examples:
        place = before[example]
        while place >= 0 and place not in inner:
            inner.add(place)
            place = before[place]
    return Thread(rows, before, sorted(examples), inner, counts)


def documents(thread: Thread, options: RedditOptions) -> Iterator[Document]:
    """Write the documents of a thread, in the order of their last comments."""
    split = options.split_of(thread.rows[0].thread)
    ends = thread.examples
    if options.form == "leaves":
        ends = [place for place in ends if place not in thread.inner]
    elif options.form == "threads":
        ends = ends[:1]
    for end in ends:
        is_thread = options.form == "threads"
        path = _depth_first(thread) if is_thread else _path(thread.before, end)
        texts = [MISSING_TEXT if place == MISSING else thread.rows[place].text for place in path]
        pieces = [REMOVED_TEXT if text is None else text for text in texts]
        if options.speakers:
            marks = _speakers([None if place < 0 else thread.rows[place].author for place in path])
            pieces = [f"{mark}: {piece}" for mark, piece in zip(marks, pieces, strict=True)]
        yield Document(text=SEPARATOR.join(pieces), split=split)


def _path(before: Sequence[int], place: int) -> list[int]:
    path = [place]
    while place >= 0 and (place := before[place]) != POST:
        path.append(place)
    return path[::-1]


def _depth_first(thread: Thread) -> list[int]:
    """The written comments of a thread, each followed by its answers."""
    answers: defaultdict[int, list[int]] = defaultdict(list)
    for place in sorted(thread.inner.union(thread.examples)):
        answers[max(thread.before[place], POST)].append(place)
    path, waiting = [], answers[POST][::-1]
    while waiting:
        place = waiting.pop()
        path += [MISSING, place] if thread.before[place] == MISSING else [place]
        waiting += reversed(answers[place])
    return path


def _speakers(authors: Sequence[int | None]) -> list[str]:
    """A letter for each comment, by author, in the order of appearance."""
    letters = iter(ascii_uppercase + ascii_lowercase)
    marks: dict[int | None, str] = {None: NO_SPEAKER}
    for author in authors:
        if author not in marks:
            marks[author] = next(letters, NO_SPEAKER)
    return [marks[author] for author in authors]
