"""The plain text of a Wikipedia article, by a few rules and no grammar."""

import html
import re

# What is not closed goes on to the end, as in a browser; this also keeps the time linear.
ELEMENTS = re.compile(
    r"<!--.*?(?:-->|\Z)|<(ref|math|gallery|timeline)\b[^<>]*?(?:/>|>.*?(?:</\1>|\Z))",
    re.DOTALL | re.IGNORECASE,
)
TAGS = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
TEMPLATES = re.compile(r"\{\{[^{}]*\}\}")
TABLES = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
LINKS = re.compile(r"\[\[([^\[\]]*)\]\]")
# [[Image:...]], [[Category:...]], [[de:...]] are no part of the running text.
ASIDE = re.compile(r"\s*(?:image|file|category|media|[a-z]{2,3}(?:-[a-z-]+)?)\s*:", re.IGNORECASE)
ADDRESSES = re.compile(r"\[(?:https?|ftp|mailto):[^\s\]]*\s*([^\]]*)\]")
HEADINGS = re.compile(r"^=+[ \t]*(.*?)[ \t]*=+[ \t]*$", re.MULTILINE)
# Bold and italics, words like __NOTOC__, bullets and rules.
SIGNS = re.compile(r"'{2,5}|__[A-Z]+__|^(?:[*#:;]+[ \t]*|-{4,})", re.MULTILINE)
BLANK_LINES = re.compile(r"[ \t]*\n(?:[ \t]*\n)+")
DEEPEST = 12
"""Templates, tables and links are taken away from the inside out, this many times at most."""


def plain_text(markup: str) -> str:
    r"""What a reader of the article sees, about; '' for a redirect.

    >>> plain_text("'''Bees''' are [[insect|insects]].{{fact}}\n== See ==\n* [[Wasp]] [[de:Biene]]")
    'Bees are insects.\nSee\nWasp'
    """
    if markup.lstrip()[:9].upper() == "#REDIRECT":
        return ""
    # Twice, since the dump itself is escaped: &amp;nbsp; is &nbsp; in the article.
    text = ELEMENTS.sub("", html.unescape(html.unescape(markup)))
    text = _without(TEMPLATES, text)
    text = _without(TABLES, text)
    for _ in range(DEEPEST):
        text, num_found = LINKS.subn(_label, text)
        if not num_found:
            break
    text = ADDRESSES.sub(r"\1", text)
    text = SIGNS.sub("", TAGS.sub("", text))
    text = HEADINGS.sub(r"\1", text)
    return BLANK_LINES.sub("\n\n", text).strip()


def _without(pattern: re.Pattern[str], text: str) -> str:
    for _ in range(DEEPEST):
        text, num_found = pattern.subn("", text)
        if not num_found:
            break
    return text


def _label(link: re.Match[str]) -> str:
    return "" if ASIDE.match(link[1]) else link[1].rpartition("|")[2]
