"""Parse lines of a dump into comments, clean their texts, and put them into Arrow columns."""

import hashlib
import html
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.checks import check_choice

Whitespace = Literal["paragraphs", "line"]
Filters = Literal["none", "roller"]

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

DELETED_BODIES = frozenset({"[deleted]", "[deleted by user]"})
REMOVED_BODIES = frozenset({"[removed]", "[removed by reddit]", "[ removed by reddit ]"})
# Well-known bots, and names such as `RemindMeBot`, `gifv-bot` and `HelperBot_2`, but neither
# `abbot` nor `robotics_fan`.
BOTS = (
    "(?i:AutoModerator|autotldr|autowikibot|Decronym|imguralbumbot|sneakpeekbot|TotesMessenger"
    "|totes_meta_bot|TweetPoster|WikiTextBot)"
    r"|.*(?:[-_][Bb]ot|[a-z0-9]Bot|BOT)[-_]?\d*"
)

FEWEST_CHARACTERS, MOST_CHARACTERS_WITHOUT_SPACE = 5, 2_048
LINK = re.compile(r"https?://|\bwww\.", re.IGNORECASE)
# The semicolon is required: `&copy=1` occurs in many URLs.
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
BLANKS_AT_LINE_END = re.compile(r"[ \t\u00a0]+\n")
BLANK_LINES = re.compile(r"\n{3,}")
# Control characters except tab and newline, and the invisible filler of Reddit's editor.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]+")


class Status(IntEnum):
    """Whether a comment has a text, and if not, why.

    The numbers are stored on disk, and in lower case the names are those of the counts.
    """

    LIVING, DELETED, REMOVED, EMPTY, BOTS, FILTERED = range(6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """How bodies are cleaned, and whose comments are left out."""

    whitespace: Whitespace = "paragraphs"
    """'paragraphs' keeps lines, with at most one blank line between them and no blanks at their
    ends; 'line' replaces every run of white space by one space."""
    bots: str | None = BOTS
    """A regular expression for the names of authors to leave out; None for nobody."""
    filters: Filters = "none"
    """'roller' rejects texts by the rules of Roller et al. (2020), which the paper cites, that need
    only the text. Not here: at most 128 BPE tokens, which needs their tokeniser, and English
    subreddits, which needs their list. Their limit on depth is `RedditOptions.maximum_depth`."""

    def __post_init__(self) -> None:
        check_choice("whitespace", self.whitespace, get_args(Whitespace))
        check_choice("filters", self.filters, get_args(Filters))

    def clean(self, author: str, body: str) -> tuple[Status, str | None]:
        """The status of a comment, and its text, which is None unless the status is LIVING.

        >>> Cleaning().clean("someone", "1 &lt; 2 &amp;amp; so on  ")
        (<Status.LIVING: 0>, '1 < 2 & so on')
        >>> Cleaning().clean("AutoModerator", "Welcome!")
        (<Status.BOTS: 4>, None)
        """
        text = clean_text(body, self.whitespace)
        status = self._status(author, text)
        return status, text if status is Status.LIVING else None

    def _status(self, author: str, text: str) -> Status:
        if not text:
            return Status.EMPTY
        if text[0] == "[" and text[-1] == "]":
            if text.casefold() in DELETED_BODIES:
                return Status.DELETED
            if text.casefold() in REMOVED_BODIES:
                return Status.REMOVED
        if self.bots is not None and re.fullmatch(self.bots, author):
            return Status.BOTS
        is_rejected = self.filters == "roller" and not is_allowed_by_roller(text)
        return Status.FILTERED if is_rejected else Status.LIVING


def is_allowed_by_roller(text: str) -> bool:
    """At least 5 characters, no URL, ASCII first, a space if there are over 2,048 characters.

    >>> is_allowed_by_roller("Well said."), is_allowed_by_roller("see http://example.org")
    (True, False)
    """
    return (
        len(text) >= FEWEST_CHARACTERS
        and text[0].isascii()
        and LINK.search(text) is None
        and (len(text) <= MOST_CHARACTERS_WITHOUT_SPACE or any(map(str.isspace, text)))
    )


def clean_text(body: str, whitespace: Whitespace) -> str:
    r"""A body as its readers saw it, without invisible characters.

    Reddit escapes `&`, `<` and `>` once. Entities that are left after that, `&nbsp;` for example,
    were written by the author, and the page showed them decoded. So entities are decoded twice.

    >>> clean_text("&gt; quoted\r\n\r\n\r\nSo it is.&amp;#x200B; \r\n", "paragraphs")
    '> quoted\n\nSo it is.'
    """
    text = body
    if "&" in text:
        for _ in range(2):
            text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Most texts need no substitution, and this check costs a tenth of one.
    if not text.replace("\n", "").isprintable():
        text = UNWANTED.sub("", text)
    if whitespace == "line":
        return " ".join(text.split())
    if "\n" in text:
        text = BLANK_LINES.sub("\n\n", BLANKS_AT_LINE_END.sub("\n", text))
    return text.strip()


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
        link_id = _bare(values["link_id"], "t3_")
        author, body = values.get("author"), values["body"]
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
