"""Several sources mixed into one stream of documents, each according to its weight.

A weight is a number of passes. With weight 2, every training document of a source comes twice,
once in each of two passes over the source; with 2.5, half of them come a third time; with 0.5,
half of them come at all. A hash of the document decides which half. Documents of valid and test
come once, whatever the weight, so that scores do not depend on it.

Sources are mixed as evenly as whole documents allow: the next document comes from the source that
is least far through its passes. So all sources end together, and every stretch of the corpus has
them in the proportions of the whole.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from staircase_attention.checks import check_choice, check_number, input_error
from staircase_attention.data.documents import SPLITS, Cursor, DocumentSource, HeldOut, hashed


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A source of a mixture, and its weight."""

    source: DocumentSource
    weight: float = 1.0
    """Passes over its training documents."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, above=0, example=1)

    @property
    def num_passes(self) -> int:
        """How often the source is read."""
        return math.ceil(self.weight)


@dataclass(frozen=True, slots=True)
class Piece:
    """A document or a part of one, with its split."""

    data: bytes
    """Its text; empty only at the end of a long document."""
    split: str
    source: int
    is_last: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PartPosition:
    """How far one source has been read."""

    pass_number: int = 0
    """Passes that are over."""
    cursor: Cursor | None = None
    """In the current pass; None at its start."""
    split: str | None = None
    """Of the current document; None between documents."""
    is_kept: bool = True
    """Whether the current document is used in this pass."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used in the previous pass."""


# How far each source has been read: all that is needed to resume.
MixturePosition = tuple[PartPosition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Sources with their weights, and how their documents are split."""

    parts: Sequence[Part]
    held_out: HeldOut
    """For documents without a split of their own."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise input_error("a corpus must have a source", "none", "name a file or a folder")

    @property
    def total_bytes(self) -> int:
        """Bytes to read in all passes over all sources, as stored."""
        return sum(part.source.total_bytes * part.num_passes for part in self.parts)

    def num_read(self, position: MixturePosition) -> int:
        """The bytes of these that have been read."""
        return sum(
            at.pass_number * part.source.total_bytes + (at.cursor.num_read if at.cursor else 0)
            for part, at in zip(self.parts, position, strict=True)
        )

    def skipped(self, position: MixturePosition) -> list[dict[str, int]]:
        """What could not be used of each source."""
        return [dict(at.skipped) | dict(at.cursor.skipped if at.cursor else {}) for at in position]

    def first_position(self) -> MixturePosition:
        """The position before all documents."""
        return (PartPosition(),) * len(self.parts)

    def read(self, start: MixturePosition) -> Iterator[tuple[Piece | None, MixturePosition]]:
        """The pieces after a position, each with the position after it.

        A piece is None where reading has advanced but nothing is used.
        """
        positions = list(start)
        readings = [
            _read(number, part, self.held_out, positions[number])
            for number, part in enumerate(self.parts)
        ]

        def order(number: int) -> tuple[bool, float]:
            part, at = self.parts[number], positions[number]
            in_pass = at.cursor.num_read / max(part.source.total_bytes, 1) if at.cursor else 0.0
            # A source that is inside a document comes first, so that documents stay whole.
            return at.split is None, (at.pass_number + in_pass) / part.num_passes

        while unfinished := [
            number
            for number, part in enumerate(self.parts)
            if positions[number].pass_number < part.num_passes
        ]:
            number = min(unfinished, key=order)
            piece, positions[number] = next(readings[number])
            yield piece, tuple(positions)


def _read(
    number: int, part: Part, held_out: HeldOut, at: PartPosition
) -> Iterator[tuple[Piece | None, PartPosition]]:
    """The pieces of one source, pass by pass; None where it is not used, or a pass ends."""
    while True:
        for document, cursor in part.source.documents(at.cursor):
            data, split, is_kept, is_first = document.data, at.split, at.is_kept, at.split is None
            if split is None:
                split = document.split or held_out.split_of(data)
                check_choice(f"a document's split in {part.source.name}", split, SPLITS)
                # Valid and test come once, whatever the weight.
                weight_left = part.weight if split == "train" else 1.0
                weight_left -= at.pass_number
                is_kept = weight_left >= 1 or hashed(data, "weight") < weight_left
            after = split if document.is_continued else None
            at = replace(at, cursor=cursor, split=after, is_kept=is_kept)
            is_used = is_kept and (data or not is_first)
            yield Piece(data, split, number, not document.is_continued) if is_used else None, at
        # Every pass skips the same records, so they are reported for one pass.
        skipped = at.cursor.skipped if at.cursor else {}
        at = PartPosition(pass_number=at.pass_number + 1, skipped=skipped)
        yield None, at
