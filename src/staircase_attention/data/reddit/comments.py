"""Parse lines of a dump into comments, and put them into Arrow columns."""

import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.data.reddit.cleaning import Cleaning

SCHEMA = pa.schema(
    [
        ("thread", pa.uint64()),  # The id of the post, as a number.
        ("id", pa.uint64()),
        ("parent", pa.uint64()),  # Null: the comment answers the post.
        ("created", pa.int64()),  # Seconds since 1970.
        ("author", pa.uint32()),  # A checksum of the name. Null: the account was deleted.
        ("status", pa.uint8()),
        ("text", pa.large_string()),  # Null unless the status is LIVING.
    ]
)
# The author's name in a dump if the account was deleted.
DELETED_ACCOUNT = "[deleted]"
# Seconds; a later time is invalid.
LATEST = 1 << 53
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Up to 36^12 < 2^63. With a leading zero two ids would have one number.
USUAL_ID = re.compile(r"[1-9a-z][0-9a-z]{0,11}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Counts that can be added up."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sums over the parts."""
        parts = list(parts)
        names = [field.name for field in fields(cls)]
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class LineCounts(Counts):
    """Lines of the dumps. Every line is counted once."""

    comments: int = 0
    blank: int = 0
    not_text: int = 0  # Not UTF-8.
    not_json: int = 0  # Or truncated.
    not_object: int = 0  # JSON, but not an object.
    incomplete: int = 0  # Without a valid id, thread, parent, body or time.
    overlong: int = 0  # More than 4 MiB; not parsed.

    @property
    def lines(self) -> int:
        """All lines."""
        return self.comments + self.blank + self.broken

    @property
    def broken(self) -> int:
        """Lines that are neither comments nor blank."""
        return self.not_text + self.not_json + self.not_object + self.incomplete + self.overlong


class Comment(NamedTuple):
    """The fields of a line that are used; ids are without their prefixes."""

    id: str
    parent_id: str | None  # None: it answers the post.
    link_id: str  # The post, which identifies the thread.
    author: str
    body: str  # As in the dump, with HTML entities; empty if it is null.
    created: int  # Seconds since 1970.


def parse_lines(content: bytes, cleaning: Cleaning) -> tuple[LineCounts, pa.RecordBatch]:
    """Parse and clean lines; the lines by kind, and the comments."""
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    parsed = [parse_comment(line) for line in lines]
    comments = [comment for comment in parsed if isinstance(comment, Comment)]
    flaws = [flaw for flaw in parsed if isinstance(flaw, str)]
    counts = {flaw: flaws.count(flaw) for flaw in set(flaws)}
    rows = [_row(comment, cleaning) for comment in comments]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return LineCounts(comments=len(comments), **counts), pa.record_batch(arrays, schema=SCHEMA)


def _row(comment: Comment, cleaning: Cleaning) -> tuple[Any, ...]:
    """A row of the schema."""
    parent, author = comment.parent_id, comment.author
    return (
        number_of(comment.link_id),
        number_of(comment.id),
        None if parent is None else number_of(parent),
        comment.created,
        None if author == DELETED_ACCOUNT else zlib.crc32(author.encode(errors="replace")),
        *cleaning.clean(author, comment.body),
    )


def parse_comment(line: bytes) -> Comment | str:
    """A comment, or the name of the LineCounts under which the line is counted.

    >>> parse_comment(b'{"id": "c7", "link_id": "t3_x", "parent_id": "t1_c2", '
    ...     b'"author": "someone", "body": "Yes", "created_utc": "1134365188", "score": 3}').created
    1134365188
    >>> parse_comment(b'{"id": "c7", "link_')
    'not_json'
    """
    if not line or line.isspace():
        return "blank"
    try:
        values = json.loads(line.removeprefix(BYTE_ORDER_MARK).decode())
    except UnicodeDecodeError:
        return "not_text"
    except (ValueError, RecursionError):
        return "not_json"
    if not isinstance(values, dict):
        return "not_object"
    try:
        link_id, author, body = (
            _bare(values["link_id"], "t3_"),
            values.get("author"),
            values["body"],
        )
        return Comment(
            _bare(values["id"], "t1_"),
            _parent(values["parent_id"], link_id),
            link_id,
            author if isinstance(author, str) and author else DELETED_ACCOUNT,
            "" if body is None else _text(body),
            _seconds(values["created_utc"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return "incomplete"


def _bare(value: object, prefix: str) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    bare = value.removeprefix(prefix)
    if not bare:
        raise ValueError(value)
    return bare


def _parent(value: object, link_id: str) -> str | None:
    """Pushshift's later interface gives null for the post and a number for a comment."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return np.base_repr(value, 36).lower()
    # A comment and a post may have the same digits: only the prefix tells them apart.
    bare = _bare(value, "t1_")
    is_post = bare.startswith("t3_") or value == link_id
    return None if is_post else bare


def _seconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    seconds = int(float(value))
    if not 0 <= seconds < LATEST:
        raise ValueError(value)
    return seconds


def _text(value: object) -> str:
    """A string without lone surrogates, which JSON can encode and UTF-8 cannot."""
    if not isinstance(value, str):
        raise TypeError(value)
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number_of(identity: str) -> int:
    """An id as a number of at least 1. Ids count up in base 36: later ids have larger numbers.

    Any other string is hashed to a 64-bit number with the highest bit set.

    >>> number_of("c13"), number_of("C13") > 2**63
    (15591, True)
    """
    if USUAL_ID.fullmatch(identity):
        return int(identity, 36)
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) | 1 << 63
