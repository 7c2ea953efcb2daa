"""What every reader gives: the documents of one file, from any place in it on."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from staircase_attention.data.document import Document

LONGEST_RECORD = 1 << 25
"""Bytes of one line, row or page that are held at once."""


class Place(NamedTuple):
    """A place in a file between two documents, or between two parts of one."""

    record: int = 0
    """Records before it: lines, rows, pages or members, whichever the file is made of."""
    offset: int = 0
    """Bytes of content before it; in an archive, of the present member's."""
    num_read: int = 0
    """Bytes of the file, as stored, that were read to get here."""
    num_skipped: int = 0
    """Records before it that could not be used."""


class Reader(Protocol):
    """How one kind of file is read.

    A document without text says nothing but that reading has come as far as the place after it.
    """

    @property
    def skipped_name(self) -> str:
        """What records that cannot be used are called: 'broken lines'."""

    def check(self, path: Path) -> None:
        """Refuse a file that could not be read, before any work is done."""

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The documents of a file from a place on, each with the place after it."""
