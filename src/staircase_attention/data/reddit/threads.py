"""Rebuild threads, select the comments that become examples, count them, and write documents.

All functions take the comments of whole threads. A comment's *place* is its index in the order
thread, time, id.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.data.documents import SPLITS, Document, HeldOut
from staircase_attention.data.reddit.cleaning import Cleaning, Status
from staircase_attention.data.reddit.comments import Counts

Form = Literal["paths", "leaves", "threads"]
Gap = Literal["drop", "cut", "placeholder"]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

POST = -1
"""The parent of a comment that answers the post."""
MISSING = -2
"""The parent of an orphan: a comment that is in no file, or not in the same thread."""
REMOVED_TEXT = "[removed]"
MISSING_TEXT = "[missing]"
NO_SPEAKER = "?"
"""The mark of a deleted account, and of the fifty-third and later authors of a document."""


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
        """Check the values."""
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outline:
    """The paths through some threads. Place num_comments stands for every missing parent."""

    heads: pa.Table  # Comments in order, each once, without texts but with the `row` of each.
    counts: CommentCounts
    thread_of: Numbers  # (num_comments,) the thread of a comment, counted from 0.
    parents: Numbers  # (num_comments + 1,) the place before in a written path; POST: none.
    is_example: Flags  # (num_comments + 1,) a written path ends here.
    is_inner: Flags  # (num_comments + 1,) it is on a written path that ends elsewhere.
    is_written: Flags  # (num_comments,) either of these.


def rebuild(comments: pa.Table) -> tuple[pa.Table, Numbers]:
    """Sort comments, keep the first of each thread and id, and find the place of each parent.

    A parent must be in the same thread. In the oldest dumps some ids were given to later comments
    again: joined by id alone, they would connect two threads and answer what was written later.
    """
    heads = comments.drop_columns("text")
    heads = heads.append_column("row", pa.array(np.arange(len(heads))))
    firsts = heads.group_by(["thread", "id"], use_threads=False).aggregate([("row", "min")])
    order = [(name, "ascending") for name in ("thread", "created", "id")]
    heads = heads.take(firsts["row_min"]).sort_by(order)
    places = pa.array(np.arange(len(heads)))
    answers = pa.table([heads["thread"], heads["parent"], places], ["thread", "id", "answer"])
    known = pa.table([heads["thread"], heads["id"], places], ["thread", "id", "parent"])
    # A left join gives rows in any order.
    joined = answers.join(known, ["thread", "id"], join_type="left outer", use_threads=False)
    found = joined.sort_by("answer")["parent"].fill_null(MISSING).to_numpy()
    return heads, np.where(heads["parent"].is_null(), POST, found)


def outline(comments: pa.Table, options: RedditOptions) -> Outline:
    """Rebuild threads, and find the examples and their paths."""
    heads, real_parents = rebuild(comments)
    is_living, is_orphan = heads["status"].to_numpy() == Status.LIVING, real_parents == MISSING
    parents = _written_parents(real_parents, is_living, options)
    is_gap = np.zeros(parents.size, dtype=np.int64)
    if options.missing == "drop":
        is_gap[:-1] += is_orphan
    if options.removed == "drop":
        is_gap[:-1] += ~is_living
    has_path = sum_along_paths(real_parents, is_gap[:-1])[1]
    is_example = np.append(is_living & has_path, False) & (sum_along_paths(parents, is_gap)[0] == 0)
    if options.maximum_depth is not None:
        depth, _ = sum_along_paths(parents, np.ones_like(parents))
        is_example &= depth <= options.maximum_depth
    is_inner = np.zeros_like(is_example)
    above = parents.tolist()
    for place in np.flatnonzero(is_example).tolist():
        while (place := above[place]) != POST and not is_inner[place]:
            is_inner[place] = True
    threads = heads["thread"].to_numpy()
    counts = _count_comments(heads, real_parents)
    num_duplicates, num_examples = len(comments) - len(heads), int(is_example.sum())
    return Outline(
        heads=heads,
        counts=replace(counts, duplicates=num_duplicates, examples=num_examples),
        thread_of=np.cumsum(np.diff(threads, prepend=threads[:1]) != 0),
        parents=parents,
        is_example=is_example,
        is_inner=is_inner,
        is_written=(is_example | is_inner)[:-1],
    )


def _count_comments(heads: pa.Table, parents: Numbers) -> CommentCounts:
    """Count the comments by what they are in the data; the options do not matter here."""
    status = heads["status"].to_numpy()
    is_living, is_orphan = status == Status.LIVING, parents == MISSING
    num_missing, has_path = sum_along_paths(parents, is_orphan.astype(np.int64))
    num_removed, _ = sum_along_paths(parents, (~is_living).astype(np.int64))
    is_below_missing = is_living & has_path & (num_missing > 0)
    is_connected = is_living & has_path & ~is_below_missing
    kinds = np.bincount(status, minlength=len(Status)).tolist()
    return CommentCounts(
        deleted=kinds[Status.DELETED],
        removed=kinds[Status.REMOVED],
        empty=kinds[Status.EMPTY],
        bots=kinds[Status.BOT],
        filtered=kinds[Status.FILTERED],
        in_cycles=int((is_living & ~has_path).sum()),
        below_missing=int(is_below_missing.sum()),
        below_removed=int((is_connected & (num_removed > 0)).sum()),
        whole=int((is_connected & (num_removed == 0)).sum()),
        orphans=int(is_orphan.sum()),
    )


def sum_along_paths(parents: Numbers, values: Numbers) -> tuple[Numbers, Flags]:
    """Sum a value over each comment and all its ancestors; and whether a comment has a path.

    A comment that is its own ancestor has no path, nor do those below it. Each round doubles how
    far the sums reach: s[i] <- s[i] + s[j[i]], j[i] <- j[j[i]], where j[i] is the next ancestor
    not yet in s[i].

    >>> sums, has_path = sum_along_paths(np.array([POST, 0, 1, 4, 3]), np.array([1, 1, 1, 1, 1]))
    >>> sums[has_path].tolist(), has_path.tolist()
    ([1, 2, 3], [True, True, True, False, False])
    """
    above_all = parents.size
    sums = np.append(values, 0)
    nearest = np.append(np.where(parents < 0, above_all, parents), above_all)
    for _ in range(parents.size.bit_length()):
        if np.all(nearest == above_all):
            break
        sums = sums + sums[nearest]
        nearest = nearest[nearest]
    return sums[:-1], nearest[:-1] == above_all


def _written_parents(real_parents: Numbers, is_living: Flags, options: RedditOptions) -> Numbers:
    """Parents in written paths: some are cut off, some are the place of missing parents."""
    parents = np.append(np.maximum(real_parents, POST), POST)
    if options.missing == "placeholder":
        parents[:-1][real_parents == MISSING] = real_parents.size
    if options.removed == "cut":
        answers = np.flatnonzero(real_parents >= 0)
        parents[answers[~is_living[real_parents[answers]]]] = POST
    return parents


def count_texts(
    outline: Outline, texts: pa.ChunkedArray, options: RedditOptions
) -> dict[str, TextCounts]:
    """Count what is written, by split."""
    written: dict[str, list[int]] = {split: [] for split in SPLITS}
    for document in documents(outline, texts, options):
        written[document.split].append(len(document.text))
    firsts = np.unique(outline.thread_of, return_index=True)[1]
    splits = map(options.split_of, outline.heads["thread"].take(firsts).to_pylist())
    split_of = np.array([SPLITS.index(split) for split in splits], dtype=np.int64)
    num_characters = pc.utf8_length(texts).take(outline.heads["row"]).fill_null(0).to_numpy()
    counts = {}
    for number, split in enumerate(SPLITS):
        is_here = split_of[outline.thread_of] == number
        examples = outline.is_example[:-1] & is_here
        counts[split] = TextCounts(
            threads=int((split_of == number).sum()),
            threads_with_examples=np.unique(outline.thread_of[examples]).size,
            documents=len(written[split]),
            characters=sum(written[split]),
            distinct_characters=int(num_characters[outline.is_written & is_here].sum()),
        )
    return counts


def document_ends(outline: Outline, options: RedditOptions) -> Numbers:
    """One place per document, in order: the end of each path, or the first of each thread."""
    is_example = outline.is_example[:-1]
    if options.form == "paths":
        return np.flatnonzero(is_example)
    if options.form == "leaves":
        return np.flatnonzero(is_example & ~outline.is_inner[:-1])
    return np.searchsorted(outline.thread_of, np.unique(outline.thread_of[is_example]))


def documents(
    outline: Outline, texts: pa.ChunkedArray, options: RedditOptions, first: int = 0
) -> Iterator[Document]:
    """Write the documents from number `first` on; texts are those of the table that was read."""
    pieces = texts.take(outline.heads["row"]).fill_null(REMOVED_TEXT).to_pylist()
    pieces.append(MISSING_TEXT)
    threads = outline.heads["thread"].to_pylist()
    authors = [*outline.heads["author"].to_pylist(), None] if options.speakers else []
    parents = outline.parents.tolist()
    for end in document_ends(outline, options)[first:].tolist():
        if options.form == "threads":
            places = _whole_thread(outline, parents, end)
        else:
            places = _path(parents, end)
        chosen = [pieces[place] for place in places]
        if options.speakers:
            marks = _speakers([authors[place] for place in places])
            chosen = [f"{mark}: {piece}" for mark, piece in zip(marks, chosen, strict=True)]
        yield Document(text=options.separator.join(chosen), split=options.split_of(threads[end]))


def _path(parents: Sequence[int], place: int) -> list[int]:
    places = []
    while place != POST:
        places.append(place)
        place = parents[place]
    return places[::-1]


def _whole_thread(outline: Outline, parents: Sequence[int], first: int) -> list[int]:
    """The written comments of a thread depth first: each is followed by its answers."""
    missing = len(parents) - 1
    stop = np.searchsorted(outline.thread_of, outline.thread_of[first], side="right")
    answers: dict[int, list[int]] = {}
    for place in (first + np.flatnonzero(outline.is_written[first:stop])).tolist():
        parent = POST if parents[place] == missing else parents[place]
        answers.setdefault(parent, []).append(place)
    places, waiting = [], answers[POST][::-1]
    while waiting:
        place = waiting.pop()
        if parents[place] == missing:
            places.append(missing)
        places.append(place)
        waiting += reversed(answers.get(place, ()))
    return places


def _speakers(authors: Sequence[int | None]) -> list[str]:
    """A letter for each comment, by author, in the order of appearance."""
    letters = iter(ascii_uppercase + ascii_lowercase)
    marks: dict[int | None, str] = {None: NO_SPEAKER}
    for author in authors:
        if author not in marks:
            marks[author] = next(letters, NO_SPEAKER)
    return [marks[author] for author in authors]
