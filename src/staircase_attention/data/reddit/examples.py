"""The texts: each comment with the path leading to it, or threads in one piece."""

from collections.abc import Iterator, Sequence
from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

from staircase_attention.data.document import Document
from staircase_attention.data.reddit.cleaning import Status
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.outline import (
    MISSING_TEXT,
    REMOVED_TEXT,
    SPEAKER_MARK,
    Outline,
)
from staircase_attention.data.reddit.records import UNKNOWN
from staircase_attention.data.reddit.threads import POST, Places

NO_SPEAKER = "?"
"""The mark of an author whose account is gone, and of the fifty-third and later ones."""


def document_ends(outline: Outline, options: RedditOptions) -> Places:
    """What is written, in order: the last comment of each path, or the first of each thread."""
    is_example = outline.is_example[:-1]
    if options.form == "paths":
        return np.flatnonzero(is_example)
    if options.form == "leaves":
        return np.flatnonzero(is_example & ~outline.goes_on[:-1])
    threads = outline.threads
    return threads.thread_starts[np.unique(threads.thread_of[is_example])]


class Writer:
    """Writes the documents of some threads, one at a time."""

    def __init__(self, outline: Outline, texts: NDArray[np.uint8], options: RedditOptions) -> None:
        self.outline = outline
        self.options = options
        heads = outline.threads.heads
        self.ends = document_ends(outline, options)
        # Views that give plain numbers: a list of them would be five times as large.
        self._texts = texts.data
        self._starts = outline.threads.text_starts.data
        self._stops = (outline.threads.text_starts + heads["num_bytes"]).data
        self._parents = outline.parents.data
        self._is_living = (heads["status"] == Status.LIVING).data
        self._authors = np.ascontiguousarray(heads["author"]).data
        self._threads = np.ascontiguousarray(heads["thread"]).data

    def documents(self, first: int = 0) -> Iterator[Document]:
        """The documents from number `first` on."""
        thread, split = None, ""
        for end in self.ends[first:].tolist():
            if self._threads[end] != thread:
                thread = self._threads[end]
                split = self.options.fractions.split_of(thread)
            is_whole_thread = self.options.form == "threads"
            places = self._whole_thread(end) if is_whole_thread else self._path(end)
            yield Document(text=self._text(places), split=split)

    def _path(self, place: int) -> list[int]:
        """From the first comment to this one."""
        places = []
        while place != POST:
            places.append(place)
            place = self._parents[place]
        places.reverse()
        return places

    def _whole_thread(self, first: int) -> list[int]:
        """Every comment followed by its answers, those by theirs."""
        answers: dict[int, list[int]] = {}
        stop, missing = first, len(self._parents) - 1
        while stop < missing and self._threads[stop] == self._threads[first]:
            if self.outline.is_on_path[stop]:
                parent = self._parents[stop]
                answers.setdefault(POST if parent == missing else parent, []).append(stop)
            stop += 1
        places, waiting = [], answers[POST][::-1]
        while waiting:
            place = waiting.pop()
            if self._parents[place] == missing:
                places.append(missing)
            places.append(place)
            waiting += reversed(answers.get(place, ()))
        return places

    def _text(self, places: Sequence[int]) -> str:
        pieces = [self._piece(place) for place in places]
        if self.options.speakers:
            marks = self._speakers(places)
            pieces = [
                SPEAKER_MARK.format(mark).encode() + bytes(piece)
                for mark, piece in zip(marks, pieces, strict=True)
            ]
        return self.options.separator.encode().join(pieces).decode()

    def _piece(self, place: int) -> bytes | memoryview:
        if place == len(self._is_living):
            return MISSING_TEXT.encode()
        if not self._is_living[place]:
            return REMOVED_TEXT.encode()
        return self._texts[self._starts[place] : self._stops[place]]

    def _speakers(self, places: Sequence[int]) -> list[str]:
        """A letter for each comment: the same for the same author, in the order of appearance."""
        letters = iter(ascii_letters[26:] + ascii_letters[:26])
        known: dict[int, str] = {UNKNOWN: NO_SPEAKER}
        marks = []
        for place in places:
            author = self._authors[place] if place < len(self._authors) else UNKNOWN
            if author not in known:
                known[author] = next(letters, NO_SPEAKER)
            marks.append(known[author])
        return marks
