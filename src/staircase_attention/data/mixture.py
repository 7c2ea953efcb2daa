"""Several sources as one, each as often as its weight says, well mixed.

A weight is a number of passes. With weight 2, every training document of a source comes twice in
train, once in each of two passes over the source; with 2.5 half of them come a third time; with
0.5 half of them come at all. Which half, a hash of the document says. Documents of valid and test
come once, whatever the weight, so that what is measured does not depend on it.

Sources are mixed as evenly as whole documents allow: the next document is taken from the source
of whose reading the smallest part is done, so that all of them end together, and any stretch of the
corpus has them in the proportions of the whole.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from staircase_attention.checks import input_error
from staircase_attention.data.checks import check_weight
from staircase_attention.data.document import Document, Source
from staircase_attention.data.mixture_place import MixturePlace, PartPlace
from staircase_attention.data.splits import SPLITS, HeldOut, hashed


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A source, and how often it is to be seen."""

    source: Source
    """Where documents come from."""
    weight: float = 1.0
    """Passes over its training documents."""

    def __post_init__(self) -> None:
        """Refuse what is no weight."""
        check_weight(self.weight)

    @property
    def num_passes(self) -> int:
        """Times that the source is read."""
        return math.ceil(self.weight)


@dataclass(frozen=True, slots=True)
class Mixed:
    """A document or a part of one, with all that was decided about it."""

    data: bytes
    """What it says; never empty, but where a long document ends."""
    split: str
    """Where it goes."""
    source: int
    """The number of its source."""
    is_continued: bool
    """Whether the next one is the rest of this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Sources by their weights, and the splits of their documents."""

    parts: Sequence[Part]
    """What is mixed."""
    held_out: HeldOut
    """How much of what has no split yet goes to valid and test."""

    def __post_init__(self) -> None:
        """Refuse a mixture of nothing."""
        if not self.parts:
            raise input_error("a corpus must have a source", "none", "name a file or a folder")

    @property
    def total_bytes(self) -> int:
        """What is read in all passes over all sources, as stored."""
        return sum(part.source.total_bytes * part.num_passes for part in self.parts)

    def num_read(self, place: MixturePlace) -> int:
        """What has been read of that."""
        return sum(map(_num_read, self.parts, place.parts))

    def first_place(self) -> MixturePlace:
        """Before all documents."""
        return MixturePlace(parts=(PartPlace(),) * len(self.parts))

    def skipped(self, place: MixturePlace) -> list[dict[str, int]]:
        """What could not be used of each source, so far or in all."""
        return [
            dict(part.skipped) | dict(part.cursor.skipped if part.cursor else {})
            for part in place.parts
        ]

    def read(self, place: MixturePlace | None = None) -> "MixtureReading":
        """The documents after a place, from the first for None."""
        return MixtureReading(self, place or self.first_place())


class MixtureReading:
    """Goes through a mixture, and can say at any time how far it has come."""

    def __init__(self, mixture: Mixture, place: MixturePlace) -> None:
        self._readings = [
            _PartReading(number, part, mixture.held_out, place.parts[number])
            for number, part in enumerate(mixture.parts)
        ]
        self._current = None if place.current is None else self._readings[place.current]

    @property
    def place(self) -> MixturePlace:
        """After what was given last."""
        return MixturePlace(
            parts=tuple(reading.place for reading in self._readings),
            current=None if self._current is None else self._current.number,
        )

    def __iter__(self) -> Iterator[Mixed | None]:
        """What comes; None where nothing is to be kept, but reading has come further."""
        unfinished = [reading for reading in self._readings if not reading.is_over]
        while unfinished:
            current = self._current
            if current is None:
                current = min(unfinished, key=_PartReading.share_done)
            mixed = current.next()
            self._current = current if current.split is not None else None
            if current.is_over:
                unfinished.remove(current)
            yield mixed


class _PartReading:
    """One source on its way through its passes."""

    def __init__(self, number: int, part: Part, held_out: HeldOut, place: PartPlace) -> None:
        self.number = number
        self._part, self._held_out = part, held_out
        self._total, self._num_passes = max(part.source.total_bytes, 1), part.num_passes
        self._pass_number, self._cursor = place.pass_number, place.cursor
        self.split, self._is_kept = place.split, place.is_kept
        self._skipped = place.skipped
        self._documents = part.source.documents(place.cursor)

    @property
    def place(self) -> PartPlace:
        return PartPlace(
            pass_number=self._pass_number,
            cursor=self._cursor,
            split=self.split,
            is_kept=self._is_kept,
            skipped=self._skipped,
        )

    @property
    def is_over(self) -> bool:
        return self._pass_number == self._num_passes

    def share_done(self) -> float:
        """Of all passes."""
        in_pass = self._cursor.num_read / self._total if self._cursor else 0.0
        return (self._pass_number + in_pass) / self._num_passes

    def next(self) -> Mixed | None:
        """The next document or part; None where it is not wanted, or a pass ends."""
        found = next(self._documents, None)
        if found is None:
            self._end_pass()
            return None
        document, self._cursor = found
        data = document.data
        is_first = self.split is None
        if is_first:
            self._decide(document, data)
        split = self.split
        assert split is not None
        if not document.is_continued:
            self.split = None
        if not self._is_kept or (is_first and not data):
            return None
        return Mixed(data, split, self.number, document.is_continued)

    def _end_pass(self) -> None:
        self._skipped = self._cursor.skipped if self._cursor else {}
        self._pass_number, self._cursor, self.split = self._pass_number + 1, None, None
        self._documents = self._part.source.documents(None)

    def _decide(self, document: Document, data: bytes) -> None:
        """In which split a document is that begins here, and whether it is given in this pass."""
        split = document.split or self._held_out.split_of(data)
        if split not in SPLITS:
            rule = f"a document's split must be one of {', '.join(SPLITS)}"
            raise input_error(rule, repr(split), f"correct {self._part.source.name}")
        if split == "train":
            chance = self._part.weight - self._pass_number
            self._is_kept = chance >= 1 or hashed(data, "weight") < chance
        else:
            self._is_kept = self._pass_number == 0
        self.split = split


def _num_read(part: Part, place: PartPlace) -> int:
    before = place.pass_number * part.source.total_bytes
    return before + (place.cursor.num_read if place.cursor else 0)
