"""Documents, and the sources that give them: in a fixed order, from any place on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text that is kept whole, or a part of one that is too long to be held at once."""

    text: str | bytes
    """What it says. A str is written as UTF-8, and may be any str that JSON can write: half a
    surrogate pair becomes its three bytes, as UTF-8 would write it if that were allowed."""
    split: str | None = None
    """Where it must go, 'train', 'valid' or 'test'; None where the preparation decides, by a hash
    of the text."""
    is_continued: bool = False
    """Whether the next that the source gives is the rest of this one."""

    @property
    def data(self) -> bytes:
        r"""The text as bytes.

        >>> Document(text="é").data
        b'\xc3\xa9'
        """
        if isinstance(self.text, bytes):
            return self.text
        return self.text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place between two documents of a source, from which it can go on."""

    place: Mapping[str, Any]
    """Plain data, such as JSON can write, that only the source itself reads."""
    num_read: int
    """Bytes of the source's files, as stored, that lie before this place, more or less: for
    progress, and for mixing sources evenly. The same for the same place, however it is reached."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used before this place, and how many: {'broken lines in a.jsonl': 3}."""

    def as_plain(self) -> dict[str, Any]:
        """The cursor as JSON can write it."""
        return {
            "place": dict(self.place),
            "num_read": self.num_read,
            "skipped": dict(self.skipped),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Cursor":
        """The cursor that as_plain wrote."""
        return cls(**plain)


class Source(Protocol):
    """Documents in an order that never changes, to be had from any cursor on.

    What comes after a cursor must not depend on how the cursor was reached: a preparation that
    was killed goes on from the last one it wrote down, and its result is the same to the byte.
    """

    @property
    def name(self) -> str:
        """What the manifest and messages call it."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Every option that its documents depend on, as plain data."""

    @property
    def files(self) -> Sequence[Path]:
        """The files that it reads, whose checksums the manifest records."""

    @property
    def total_bytes(self) -> int:
        """`num_read` at its end: as a rule, the size of its files."""

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, from the first for None; each with the cursor after it."""
