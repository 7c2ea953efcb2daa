"""Clean the text of a comment, and decide whether the comment has a usable text at all."""

import html
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, get_args

from staircase_attention.checks import check_choice

Whitespace = Literal["paragraphs", "line"]
Filters = Literal["none", "roller"]

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
