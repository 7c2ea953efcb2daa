"""Parse lines of a dump into comments, and put them into Arrow columns."""

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.data.reddit.cleaning import Cleaning

SCHEMA = pa.schema(
    [
        ("thread", pa.uint64()),
        ("id", pa.uint64()),
        ("parent", pa.uint64()),
        ("created", pa.int64()),
        ("author", pa.uint32()),
        ("status", pa.uint8()),
        ("text", pa.large_string()),
    ]
)
# The author's name in a dump if the account was deleted.
DELETED_ACCOUNT = "[deleted]"
# Seconds; a later time is invalid.
LATEST = 1 << 53
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Up to 36^12 < 2^63. With a leading zero two ids would have one number.
USUAL_ID = re.compile(r"[1-9a-z][0-9a-z]{0,11}")


class Comment(NamedTuple):
    """A row of SCHEMA."""

    thread: int  # The id of the post, as a number.
    id: int
    parent: int | None  # None: it answers the post.
    created: int  # Seconds since 1970.
    author: int | None  # A checksum of the name. None: the account was deleted.
    status: int
    text: str | None  # None unless the status is LIVING.


def parse_lines(
    lines: Iterable[bytes | None], cleaning: Cleaning
) -> tuple[Counter[str], pa.RecordBatch]:
    """Count lines as 'comments' or by their flaws, and give the comments. None is overlong."""
    parsed = ["overlong" if line is None else parse_comment(line, cleaning) for line in lines]
    comments = [comment for comment in parsed if isinstance(comment, Comment)]
    counts = Counter(flaw for flaw in parsed if isinstance(flaw, str))
    counts["comments"] = len(comments)
    columns = zip(*comments, strict=True) if comments else [()] * len(SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return counts, pa.record_batch(arrays, schema=SCHEMA)


def parse_comment(line: bytes, cleaning: Cleaning) -> Comment | str:
    """A comment, or the flaw of a line that has none.

    >>> parse_comment(b'{"id": "c7", "link_id": "t3_x", "parent_id": "t1_c2", "author": "someone",'
    ...     b'"body": "Yes", "created_utc": "1134365188", "score": 3}', Cleaning()).text
    'Yes'
    >>> parse_comment(b'{"id": "c7", "link_', Cleaning())
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
        if not isinstance(author, str) or not author:
            author = DELETED_ACCOUNT
        return Comment(
            number_of(link_id),
            number_of(_bare(values["id"], "t1_")),
            _parent(values["parent_id"], link_id),
            _seconds(values["created_utc"]),
            None if author == DELETED_ACCOUNT else zlib.crc32(author.encode(errors="replace")),
            *cleaning.clean(author, "" if body is None else _text(body)),
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


def _parent(value: object, link_id: str) -> int | None:
    """Pushshift's later interface gives null for the post and a number for a comment."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return number_of(np.base_repr(value, 36).lower())
    # A comment and a post may have the same digits: only the prefix tells them apart.
    bare = _bare(value, "t1_")
    is_post = bare.startswith("t3_") or value == link_id
    return None if is_post else number_of(bare)


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
