"""Articles of a Wikipedia dump as documents, for `words.py`: a source of your own, in one file."""

import html
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from staircase_attention.data import Cursor, Document
from staircase_attention.data.compression import open_decompressed

# Bytes of a page that are read; the rest of a longer page is dropped.
LONGEST_PAGE = 1 << 25
TEXT = re.compile(rb"<text[^>]*?(/?)>")

# An unclosed element extends to the end, as in a browser. This also keeps the time linear.
ELEMENTS = re.compile(
    r"<!--.*?(?:-->|\Z)|<(ref|math|gallery|timeline)\b[^<>]*?(?:/>|>.*?(?:</\1>|\Z))",
    re.DOTALL | re.IGNORECASE,
)
TAGS = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
TEMPLATES = re.compile(r"\{\{[^{}]*\}\}")
TABLES = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
LINKS = re.compile(r"\[\[([^\[\]]*)\]\]")
# [[Image:...]], [[Category:...]] and [[de:...]] are not part of the running text.
ASIDE = re.compile(r"\s*(?:image|file|category|media|[a-z]{2,3}(?:-[a-z-]+)?)\s*:", re.IGNORECASE)
ADDRESSES = re.compile(r"\[(?:https?|ftp|mailto):[^\s\]]*\s*([^\]]*)\]")
HEADINGS = re.compile(r"^=+[ \t]*(.*?)[ \t]*=+[ \t]*$", re.MULTILINE)
# Bold and italics, words like __NOTOC__, bullets and rules.
SIGNS = re.compile(r"'{2,5}|__[A-Z]+__|^(?:[*#:;]+[ \t]*|-{4,})", re.MULTILINE)
BLANK_LINES = re.compile(r"[ \t]*\n(?:[ \t]*\n)+")
# Nested templates, tables and links are removed from the inside out, at most this often.
MAX_DEPTH = 12


class Articles:
    """Every article of a dump that is not a redirect, without its markup."""

    def __init__(self, path: Path, split: str) -> None:
        self.name, self.split, self.files = str(path), split, (path,)
        self.parameters = {"split": split}
        self.total_bytes = path.stat().st_size

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """The articles after a cursor; a page without one has no text."""
        first = 0 if cursor is None else cursor.place["page"]
        with open_decompressed(self.files[0]) as file:
            for number, page in enumerate(islice(pages(file), first, None), start=first + 1):
                num_read = min(file.raw.num_stored_read, self.total_bytes)
                after = Cursor(place={"page": number}, num_read=num_read)
                yield Document(text=article(page), split=self.split), after


def article(page: bytes) -> str:
    """The plain text of a page; '' for a redirect or a page without text.

    A page that the end of the file cuts off is used as far as it goes: enwik8 ends like that.
    """
    opening = TEXT.search(page)
    if opening is None or opening[1]:
        return ""
    closing = page.find(b"</text>", opening.end())
    markup = page[opening.end() : closing if closing >= 0 else len(page)]
    return plain_text(markup.decode("utf-8", "replace"))


def pages(file: IO[bytes]) -> Iterator[bytes]:
    """The pages of a dump: the lines between <page> and </page>."""
    lines: list[bytes] = []
    size, is_inside = 0, False
    while line := file.readline(LONGEST_PAGE):
        tag = line.strip()
        if tag == b"<page>":
            lines, size, is_inside = [], 0, True
        elif tag == b"</page>" and is_inside:
            yield b"".join(lines)
            is_inside = False
        elif is_inside and size < LONGEST_PAGE:
            lines.append(line)
            size += len(line)
    if is_inside:
        yield b"".join(lines)


def plain_text(markup: str) -> str:
    r"""Roughly what a reader of the article sees; '' for a redirect.

    >>> plain_text("'''Bees''' are [[insect|insects]].{{fact}}\n== See ==\n* [[Wasp]] [[de:Biene]]")
    'Bees are insects.\nSee\nWasp'
    """
    if markup.lstrip()[:9].upper() == "#REDIRECT":
        return ""
    # Twice, since the dump itself is escaped: &amp;nbsp; is &nbsp; in the article.
    text = ELEMENTS.sub("", html.unescape(html.unescape(markup)))
    text = _remove_nested(TEMPLATES, text)
    text = _remove_nested(TABLES, text)
    text = _remove_nested(LINKS, text, _label)
    text = ADDRESSES.sub(r"\1", text)
    text = SIGNS.sub("", TAGS.sub("", text))
    text = HEADINGS.sub(r"\1", text)
    return BLANK_LINES.sub("\n\n", text).strip()


def _label(link: re.Match[str]) -> str:
    return "" if ASIDE.match(link[1]) else link[1].rpartition("|")[2]


def _remove_nested(
    pattern: re.Pattern[str], text: str, label: Callable[[re.Match[str]], str] | str = ""
) -> str:
    for _ in range(MAX_DEPTH):
        text, num_found = pattern.subn(label, text)
        if not num_found:
            break
    return text
