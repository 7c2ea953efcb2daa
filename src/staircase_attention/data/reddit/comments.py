"""One line of a dump as a comment, or as one of the ways in which it is none."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

UNKNOWN_AUTHOR = "[deleted]"
"""How a dump names an author whose account is gone."""
LATEST = 1 << 53
"""Seconds; what is later is no time."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Flaw(StrEnum):
    """Why a line is no comment."""

    BLANK = "blank"
    """Nothing but white space."""
    NOT_TEXT = "not_text"
    """Bytes that are not UTF-8."""
    NOT_JSON = "not_json"
    """No JSON, or cut short."""
    NOT_OBJECT = "not_object"
    """JSON, but a number, a string, a list."""
    INCOMPLETE = "incomplete"
    """An object that lacks an id, a thread, a parent, a body or a time, or has nonsense there."""


@dataclass(frozen=True, slots=True)
class Comment:
    """What is taken from a line, unchanged but for the prefixes of the ids."""

    id: str
    """Without its `t1_`."""
    parent_id: str | None
    """The comment it answers, without its `t1_`; None where it answers the post itself."""
    link_id: str
    """The post, and so the thread; without its `t3_`."""
    author: str
    """`[deleted]` where the account is gone, or where no name is given."""
    body: str
    """As the dump has it: HTML entities and all; empty where it is null."""
    created: int
    """Seconds since 1970."""


def parse_comment(line: bytes) -> Comment | Flaw:
    """Read one line in any order of fields, whatever else is in it.

    >>> parse_comment(b'{"id": "c7", "link_id": "t3_x", "parent_id": "t1_c2", '
    ...     b'"author": "someone", "body": "Yes", "created_utc": "1134365188", "score": 3}').created
    1134365188
    >>> parse_comment(b'{"id": "c7", "link_')
    <Flaw.NOT_JSON: 'not_json'>
    """
    if not line or line.isspace():
        return Flaw.BLANK
    try:
        fields = json.loads(line.removeprefix(BYTE_ORDER_MARK).decode())
    except UnicodeDecodeError:
        return Flaw.NOT_TEXT
    except (ValueError, RecursionError):
        return Flaw.NOT_JSON
    if not isinstance(fields, dict):
        return Flaw.NOT_OBJECT
    try:
        return _comment(fields)
    except (KeyError, TypeError, ValueError, OverflowError):
        return Flaw.INCOMPLETE


def _comment(fields: dict[str, Any]) -> Comment:
    link_id = _bare(fields["link_id"], "t3_")
    author = fields.get("author")
    body = fields["body"]
    return Comment(
        _bare(fields["id"], "t1_"),
        _parent(fields["parent_id"], link_id),
        link_id,
        author if isinstance(author, str) and author else UNKNOWN_AUTHOR,
        "" if body is None else _sound_text(body),
        _seconds(fields["created_utc"]),
    )


def _bare(value: object, prefix: str) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    bare = value.removeprefix(prefix)
    if not bare:
        raise ValueError(value)
    return bare


def _parent(value: object, link_id: str) -> str | None:
    """Pushshift's later interface gives null for the post and a plain number for a comment."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_base_36(value)
    # A comment and a post may have the same digits, so that a prefix must be believed.
    bare = _bare(value, "t1_")
    is_post = bare.startswith("t3_") or value == link_id
    return None if is_post else bare


def _in_base_36(number: int) -> str:
    digits = ""
    while number > 0:
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return _bare(digits, "")


def _seconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    seconds = int(float(value))
    if not 0 <= seconds < LATEST:
        raise ValueError(value)
    return seconds


def _sound_text(value: object) -> str:
    """Without halves of characters, which JSON can say and UTF-8 cannot."""
    if not isinstance(value, str):
        raise TypeError(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
