"""How far a mixture of sources has been read: all there is to save in order to go on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staircase_attention.data.document import Cursor


@dataclass(frozen=True, kw_only=True, slots=True)
class PartPlace:
    """How far one source has been read."""

    pass_number: int = 0
    """Passes that are over."""
    cursor: Cursor | None = None
    """In the present pass; None at its beginning."""
    split: str | None = None
    """Of the document that is going on; None between documents."""
    is_kept: bool = True
    """Whether that document is given in this pass."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used in the pass before this one."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON can write it."""
        return {
            "pass_number": self.pass_number,
            "cursor": self.cursor and self.cursor.as_plain(),
            "split": self.split,
            "is_kept": self.is_kept,
            "skipped": dict(self.skipped),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "PartPlace":
        """What as_plain wrote."""
        cursor = plain["cursor"]
        return cls(**{**plain, "cursor": cursor and Cursor.from_plain(cursor)})


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePlace:
    """How far all sources have been read."""

    parts: tuple[PartPlace, ...]
    """One for each source."""
    current: int | None = None
    """The source whose document is going on."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON can write it."""
        return {"parts": [part.as_plain() for part in self.parts], "current": self.current}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "MixturePlace":
        """What as_plain wrote."""
        parts = tuple(PartPlace.from_plain(part) for part in plain["parts"])
        return cls(parts=parts, current=plain["current"])
