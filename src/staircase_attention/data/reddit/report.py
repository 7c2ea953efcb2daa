"""What was counted: lines, comments, texts. In each, every one is counted in one place."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

WITHOUT_TEXT = ("deleted", "removed", "empty", "bots", "filtered")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Numbers that add up over parts of the data."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum, name by name."""
        parts = list(parts)
        names = [field.name for field in fields(cls)]
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class LineCounts(Counts):
    """What the lines of the dumps are."""

    comments: int = 0
    """Comments, whatever is in them."""
    blank: int = 0
    """Nothing but white space."""
    not_text: int = 0
    """Bytes that are not UTF-8."""
    not_json: int = 0
    """Not JSON, or cut short."""
    not_object: int = 0
    """JSON, but not an object."""
    incomplete: int = 0
    """Objects without an id, a thread, a parent, a body or a time that can be read."""
    overlong: int = 0
    """Lines of more than 4 MiB, which are not looked at."""

    @property
    def lines(self) -> int:
        """All of them."""
        return self.comments + self.blank + self.broken

    @property
    def broken(self) -> int:
        """Those that are neither comments nor blank."""
        return self.not_text + self.not_json + self.not_object + self.incomplete + self.overlong


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentCounts(Counts):
    """What the comments are: duplicates, five kinds without a text, four kinds with one."""

    duplicates: int = 0
    """Comments that came before, in this dump or another."""
    deleted: int = 0
    """By their authors."""
    removed: int = 0
    """By moderators."""
    empty: int = 0
    """No visible character."""
    bots: int = 0
    """By machines."""
    filtered: int = 0
    """Refused by filters."""
    in_cycles: int = 0
    """With a text, but among their own ancestors, or below such a comment."""
    below_missing: int = 0
    """With a text, but the path begins with an orphan; orphans are among them."""
    below_removed: int = 0
    """With a text and all ancestors, but one of these has none."""
    whole: int = 0
    """With a text and a whole path."""
    orphans: int = 0
    """Of all but duplicates: those whose parent is in no file, or in another thread."""
    examples: int = 0
    """Of those with a text: those that the options make examples of."""

    @property
    def comments(self) -> int:
        """All of them: what the lines gave."""
        return self.duplicates + self.without_text + self.with_text

    @property
    def without_text(self) -> int:
        """Those that can be no example."""
        return self.deleted + self.removed + self.empty + self.bots + self.filtered

    @property
    def with_text(self) -> int:
        """Those that can be one."""
        return self.in_cycles + self.below_missing + self.below_removed + self.whole


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCounts(Counts):
    """What is written."""

    threads: int = 0
    """Threads that any comment belongs to."""
    threads_with_examples: int = 0
    """Those that something is written of."""
    documents: int = 0
    """Texts."""
    characters: int = 0
    """In all the texts, separators and marks included."""
    distinct_characters: int = 0
    """In the comments alone, each counted once however often it is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that was counted in a preparation."""

    dumps: dict[str, LineCounts]
    """Of each dump, by its path: what its lines are."""
    damage: dict[str, str]
    """Of each dump that could not be read to its end: why."""
    comments: CommentCounts
    """Of all dumps: what the comments are."""
    splits: dict[str, TextCounts]
    """Of each split: what is written."""

    @property
    def lines(self) -> LineCounts:
        """Of all dumps: what the lines are."""
        return LineCounts.total(self.dumps.values())

    @property
    def texts(self) -> TextCounts:
        """Of all splits: what is written."""
        return TextCounts.total(self.splits.values())

    def as_plain(self) -> dict[str, Any]:
        """All numbers, for a manifest."""
        lines = self.lines
        plain = asdict(self)
        plain["lines"] = asdict(lines) | {"lines": lines.lines, "broken": lines.broken}
        plain["texts"] = asdict(self.texts)
        return plain

    def skipped(self) -> dict[str, int]:
        """What could not be used, in words; only what there is."""
        words: Counter[str] = Counter()
        for path, lines in self.dumps.items():
            words[f"broken lines in {Path(path).name}"] += lines.broken
        words.update(f"damaged files: {Path(path).name}" for path in self.damage)
        words.update({f"comments: {name}": getattr(self.comments, name) for name in WITHOUT_TEXT})
        words["comments: duplicates"] = self.comments.duplicates
        words["comments: no whole path"] = self.comments.with_text - self.comments.examples
        return {what: count for what, count in words.items() if count}
