"""Rebuild threads, select the comments that become examples, write documents and count them.

A comment's *place* is its index in its thread, in the order of time and id.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.data.documents import SPLITS, Document, HeldOut
from staircase_attention.data.reddit.cleaning import Cleaning, Status
from staircase_attention.data.reddit.comments import Counts

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
# Of a group of threads: `comments`, the arguments of a CommentCounts, and `splits`, those of a
# TextCounts for each split.
GroupCounts = dict[str, Any]
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
    separator: str = "\n\n\n"
    """Between two comments of a document. No cleaned comment contains three newlines in a row, so
    that a document can be split into its comments again."""
    speakers: bool = False
    """Whether each comment begins with a mark for its author, 'A: ' for the first in a document."""
    cleaning: Cleaning = field(default_factory=Cleaning)
    """How bodies are cleaned, and whose comments are left out."""
    held_out: HeldOut = field(default_factory=lambda: HeldOut(valid=0.01, test=0.01))
    """Fractions of the threads in valid and test."""
    split_seed: int = 0
    """Another seed holds out other threads."""

    def __post_init__(self) -> None:
        for name, choices in (("form", Form), ("removed", Gap), ("missing", Gap)):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.maximum_depth is not None:
            check_integer("maximum_depth", self.maximum_depth, minimum=1, example=7)
        if not self.separator:
            raise input_error("separator must have characters", "''", r"use for example '\n'")

    def split_of(self, thread: int) -> str:
        """The split of a thread, given the number of its post.

        A thread keeps its split when dumps are added. If `valid` grows, it takes threads from train
        only: valid and test are taken from opposite ends.
        """
        digest = hashlib.blake2b(f"{self.split_seed}:{thread}".encode(), digest_size=6).digest()
        place = int.from_bytes(digest) / 2**48
        if place < self.held_out.valid:
            return "valid"
        return "test" if place >= 1 - self.held_out.test else "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentCounts(Counts):
    """Comments. From `duplicates` to `whole`, each is counted once."""

    duplicates: int = 0  # An earlier comment of the thread, in any dump, has the same id.
    deleted: int = 0
    removed: int = 0  # By a moderator, or by Reddit.
    empty: int = 0
    bots: int = 0
    filtered: int = 0
    in_cycles: int = 0  # From here on they have a text. Their own ancestors, or below one.
    below_missing: int = 0  # Orphans, or below an orphan.
    below_removed: int = 0  # An ancestor has no text.
    whole: int = 0
    orphans: int = 0  # Of all except duplicates: the parent is in no file, or in another thread.
    examples: int = 0  # Of those with a text: selected by the options.

    @property
    def comments(self) -> int:
        """All comments."""
        without_text = self.deleted + self.removed + self.empty + self.bots + self.filtered
        return self.duplicates + without_text + self.with_text

    @property
    def with_text(self) -> int:
        """Comments with a text."""
        return self.in_cycles + self.below_missing + self.below_removed + self.whole


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCounts(Counts):
    """What is written."""

    threads: int = 0
    threads_with_examples: int = 0
    documents: int = 0
    characters: int = 0  # With separators and marks.
    distinct_characters: int = 0  # In the comments that are written, each counted once.


class Row(NamedTuple):
    """A comment, as SCHEMA describes it."""

    thread: int
    id: int
    parent: int | None
    author: int | None
    status: int
    text: str | None


class Thread(NamedTuple):
    """The comments of a thread, and the paths that are written."""

    rows: list[Row]
    before: list[int]  # The place before this one in a written path, POST or MISSING at its start.
    examples: list[int]  # The places at which written paths end.
    inner: set[int]  # The places on written paths that end elsewhere.
    counts: Counter[str]  # CommentCounts, by name.


def rebuild(comments: pa.Table, options: RedditOptions) -> Iterator[Thread]:
    """The threads in order. Of comments with the same thread and id, the first is kept."""
    numbered = comments.append_column("row", pa.array(np.arange(len(comments))))
    firsts = numbered.group_by(["thread", "id"], use_threads=False).aggregate([("row", "min")])
    order = [(name, "ascending") for name in ("thread", "created", "id")]
    rows = comments.take(firsts["row_min"]).sort_by(order)
    columns = [rows[name].to_pylist() for name in Row._fields]
    for _, group in groupby(map(Row._make, zip(*columns, strict=True)), attrgetter("thread")):
        yield _thread(list(group), options)


def _thread(rows: list[Row], options: RedditOptions) -> Thread:
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
    counts["orphans"] = len(answers[MISSING])

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
    counts["in_cycles"] = sum(rows[place].text is not None for place in others)
    counts["examples"] = len(examples)
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
        pieces = [_piece(thread.rows, place) for place in path]
        if options.speakers:
            marks = _speakers([None if place < 0 else thread.rows[place].author for place in path])
            pieces = [f"{mark}: {piece}" for mark, piece in zip(marks, pieces, strict=True)]
        yield Document(text=options.separator.join(pieces), split=split)


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


def _piece(rows: Sequence[Row], place: int) -> str:
    if place == MISSING:
        return MISSING_TEXT
    text = rows[place].text
    return REMOVED_TEXT if text is None else text


def _speakers(authors: Sequence[int | None]) -> list[str]:
    """A letter for each comment, by author, in the order of appearance."""
    letters = iter(ascii_uppercase + ascii_lowercase)
    marks: dict[int | None, str] = {None: NO_SPEAKER}
    for author in authors:
        if author not in marks:
            marks[author] = next(letters, NO_SPEAKER)
    return [marks[author] for author in authors]


def count(comments: pa.Table, options: RedditOptions) -> GroupCounts:
    """Count comments, and what is written in each split."""
    found: Counter[str] = Counter()
    texts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    num_rows = 0
    for thread in rebuild(comments, options):
        num_rows += len(thread.rows)
        found.update(thread.counts)
        written = [thread.rows[place].text or "" for place in thread.inner.union(thread.examples)]
        characters = [len(document.text) for document in documents(thread, options)]
        texts[options.split_of(thread.rows[0].thread)].update(
            threads=1,
            threads_with_examples=bool(characters),
            documents=len(characters),
            characters=sum(characters),
            distinct_characters=sum(map(len, written)),
        )
    found["duplicates"] = len(comments) - num_rows
    return {"comments": found, "splits": texts}
