"""What becomes of a body: who speaks as a machine, what was taken away, which characters stay."""

import html
import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, get_args

from staircase_attention.checks import input_error
from staircase_attention.data.reddit.filters import Filters

Whitespace = Literal["paragraphs", "line"]

DELETED_BODIES = frozenset({"[deleted]", "[deleted by user]"})
REMOVED_BODIES = frozenset({"[removed]", "[removed by reddit]", "[ removed by reddit ]"})
KNOWN_BOTS = (
    "AutoModerator",
    "autotldr",
    "autowikibot",
    "Decronym",
    "imguralbumbot",
    "sneakpeekbot",
    "TotesMessenger",
    "totes_meta_bot",
    "TweetPoster",
    "WikiTextBot",
)
BOT_NAMES = r"(?:[-_][Bb]ot|[a-z0-9]Bot|BOT)(?:[-_]?\d*)$"
"""`RemindMeBot`, `gifv-bot`, `HelperBot_2`; and neither `abbot` nor `robotics_fan`."""

# With the semicolon only: `&copy=1` stands in many an address.
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
BLANK_ENDS = (" \n", "\t\n", "\u00a0\n")
BLANKS_AT_LINE_END = re.compile(r"[ \t\u00a0]+\n")
BLANK_LINES = re.compile(r"\n{3,}")
# Control characters other than tab and newline, and the invisible filler of Reddit's editor.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]+")


class Status(IntEnum):
    """Whether a comment has a text of its own, and if not, why."""

    LIVING = 0
    DELETED = 1
    """By its author: the body is `[deleted]`."""
    REMOVED = 2
    """By a moderator: the body is `[removed]`."""
    EMPTY = 3
    """No visible character."""
    BOT = 4
    """Written by a machine, as far as the name tells."""
    FILTERED = 5
    """Refused by the filters, if there are any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """How bodies are cleaned, and whose are left out."""

    whitespace: Whitespace = "paragraphs"
    """'paragraphs' keeps lines, with one blank line between them at most and no blanks at their
    ends; 'line' makes every run of white space one space, so that a comment is one line."""
    bots: tuple[str, ...] = KNOWN_BOTS
    """Names of authors to leave out, in whichever case."""
    bot_names: str | None = BOT_NAMES
    """A regular expression for further such names; None for no others."""
    filters: Filters = field(default_factory=Filters)
    """What else to leave out; nothing unless said."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a rule."""
        if self.whitespace not in get_args(Whitespace):
            choices = " or ".join(map(repr, get_args(Whitespace)))
            rule = f"whitespace must be {choices}"
            raise input_error(rule, repr(self.whitespace), "use for example 'paragraphs'")
        try:
            re.compile(self.bot_names or "")
        except re.error as error:
            rule = f"bot_names must be a regular expression ({error})"
            raise input_error(
                rule, repr(self.bot_names), "escape its special characters"
            ) from error


class Cleaner:
    """Applies a Cleaning to one comment after another."""

    def __init__(self, rules: Cleaning) -> None:
        self.rules = rules
        self._bots = frozenset(name.casefold() for name in rules.bots)
        self._bot_names = re.compile(rules.bot_names) if rules.bot_names else None

    def clean(self, author: str, body: str) -> tuple[Status, str]:
        """The status of a comment, and its text, which is empty unless it is living.

        >>> Cleaner(Cleaning()).clean("someone", "1 &lt; 2 &amp;amp; so on  ")
        (<Status.LIVING: 0>, '1 < 2 & so on')
        >>> Cleaner(Cleaning()).clean("AutoModerator", "Welcome!")
        (<Status.BOT: 4>, '')
        """
        status, text = self._status_and_text(author, body)
        return (status, text) if status is Status.LIVING else (status, "")

    def is_bot(self, author: str) -> bool:
        """Whether a name is that of a machine."""
        if author.casefold() in self._bots:
            return True
        return self._bot_names is not None and self._bot_names.search(author) is not None

    def _status_and_text(self, author: str, body: str) -> tuple[Status, str]:
        text = clean_text(body, self.rules.whitespace)
        if not text:
            return Status.EMPTY, ""
        if text[0] == "[" and text[-1] == "]":
            if text.casefold() in DELETED_BODIES:
                return Status.DELETED, ""
            if text.casefold() in REMOVED_BODIES:
                return Status.REMOVED, ""
        if self.is_bot(author):
            return Status.BOT, ""
        if not self.rules.filters.allow(text):
            return Status.FILTERED, ""
        return Status.LIVING, text


def clean_text(body: str, whitespace: Whitespace) -> str:
    r"""A body as its readers saw it, in characters worth learning.

    Reddit escapes `&`, `<` and `>` once; what is left to decode after that, `&nbsp;` say, the
    author had written, and the page showed decoded. So entities are decoded twice.

    >>> clean_text("&gt; quoted\r\n\r\n\r\nSo it is.&amp;#x200B; \r\n", "paragraphs")
    '> quoted\n\nSo it is.'
    """
    text = body
    if "&" in text:
        text = _decoded(_decoded(text))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Most texts need none of this, and a look costs a tenth of a search.
    if not text.replace("\n", "").isprintable():
        text = UNWANTED.sub("", text)
    if whitespace == "line":
        return " ".join(text.split())
    return _with_paragraphs(text).strip() if "\n" in text else text.strip()


def _with_paragraphs(text: str) -> str:
    if any(end in text for end in BLANK_ENDS):
        text = BLANKS_AT_LINE_END.sub("\n", text)
    return BLANK_LINES.sub("\n\n", text) if "\n\n\n" in text else text


def _decoded(text: str) -> str:
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
