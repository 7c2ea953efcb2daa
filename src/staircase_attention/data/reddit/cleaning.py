"""Clean the text of a comment, and decide whether the comment has a usable text at all."""

import html
import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Literal, get_args

from staircase_attention.checks import check_choice, check_integer, input_error

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
# Matches `RemindMeBot`, `gifv-bot` and `HelperBot_2`, but neither `abbot` nor `robotics_fan`.
BOT_NAMES = r"(?:[-_][Bb]ot|[a-z0-9]Bot|BOT)(?:[-_]?\d*)$"

LINK = re.compile(r"https?://|\bwww\.", re.IGNORECASE)
# The semicolon is required: `&copy=1` occurs in many URLs.
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
BLANKS_AT_LINE_END = re.compile(r"[ \t\u00a0]+\n")
BLANK_LINES = re.compile(r"\n{3,}")
# Control characters except tab and newline, and the invisible filler of Reddit's editor.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]+")


class Status(IntEnum):
    """Whether a comment has a text, and if not, why.

    The numbers are stored on disk, and in lower case the names are those of CommentCounts.
    """

    LIVING, DELETED, REMOVED, EMPTY, BOTS, FILTERED = range(6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Which texts are accepted. A rejected comment counts as removed. The default accepts all.

    >>> Filters().allow("http://example.org"), Filters.of_roller().allow("http://example.org")
    (True, False)
    """

    fewest_characters: int = 1
    """Characters of the shortest accepted comment."""
    most_characters_without_space: int | None = None
    """Characters of the longest accepted comment without a space; None for no limit."""
    with_links: bool = True
    """Whether a comment may contain a URL."""
    with_foreign_start: bool = True
    """Whether the first character may be outside ASCII."""

    def __post_init__(self) -> None:
        check_integer("fewest_characters", self.fewest_characters, minimum=1, example=5)
        if self.most_characters_without_space is not None:
            limit = self.most_characters_without_space
            check_integer("most_characters_without_space", limit, minimum=1, example=2048)

    @classmethod
    def of_roller(cls) -> "Filters":
        """The rules of Roller et al. (2020), which the paper cites, that need only the text.

        Their limit on depth is `RedditOptions.maximum_depth`. Not here: at most 128 BPE tokens,
        which needs their tokeniser, and English subreddits, which needs their list.
        """
        return cls(
            fewest_characters=5,
            most_characters_without_space=2048,
            with_links=False,
            with_foreign_start=False,
        )

    def allow(self, text: str) -> bool:
        """Whether a cleaned text, which is not empty, is accepted."""
        if len(text) < self.fewest_characters:
            return False
        limit = self.most_characters_without_space
        if limit is not None and len(text) > limit and not any(map(str.isspace, text)):
            return False
        if not self.with_foreign_start and not text[0].isascii():
            return False
        return self.with_links or LINK.search(text) is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """How bodies are cleaned, and whose comments are left out."""

    whitespace: Whitespace = "paragraphs"
    """'paragraphs' keeps lines, with at most one blank line between them and no blanks at their
    ends; 'line' replaces every run of white space by one space."""
    bots: tuple[str, ...] = KNOWN_BOTS
    """Authors to leave out; case is ignored."""
    bot_names: str | None = BOT_NAMES
    """A regular expression for further authors to leave out; None for no others."""
    filters: Filters = field(default_factory=Filters)
    """Which texts are accepted."""

    def __post_init__(self) -> None:
        check_choice("whitespace", self.whitespace, get_args(Whitespace))
        try:
            re.compile(self.bot_names or "")
        except re.error as error:
            rule = f"bot_names must be a regular expression ({error})"
            raise input_error(
                rule, repr(self.bot_names), "escape its special characters"
            ) from error

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
        is_bot = author.casefold() in _casefolded(self.bots)
        if is_bot or (self.bot_names is not None and re.search(self.bot_names, author)):
            return Status.BOTS
        return Status.LIVING if self.filters.allow(text) else Status.FILTERED


@lru_cache(maxsize=4)
def _casefolded(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)


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
