"""A dump of Wikipedia: each article is a document, its markup taken away."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from staircase_attention.data.document import Document
from staircase_attention.data.readers.compression import Stream, check_compression
from staircase_attention.data.readers.reader import LONGEST_RECORD, Place
from staircase_attention.data.readers.wiki_markup import plain_text

FIRST_BYTES = b"<mediawiki"
"""How such a dump begins."""
TEXT = re.compile(rb"<text[^>]*?(/?)>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wikipedia:
    """One document a page, without redirects.

    A page in which the file ends is taken as far as it goes: enwik8 ends like that. Of a page of
    more than LONGEST_RECORD bytes only these are taken.
    """

    skipped_name: str = "redirects and pages without text"

    def check(self, path: Path) -> None:
        """See that it can be decompressed."""
        check_compression(path)

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The pages from a place on; one without text gives an empty document."""
        num_skipped = place.num_skipped
        with Stream(path) as stream:
            stream.skip_to(place.offset)
            for record, page in enumerate(_pages(stream), start=place.record + 1):
                text = plain_text(article(page).decode("utf-8", "replace"))
                num_skipped += not text
                after = Place(
                    record=record,
                    offset=stream.offset,
                    num_read=stream.num_read,
                    num_skipped=num_skipped,
                )
                yield Document(text=text), after


def _pages(stream: Stream) -> Iterator[bytes]:
    """What stands between <page> and </page>."""
    lines: list[bytes] = []
    size, is_inside = 0, False
    while line := stream.read_line(LONGEST_RECORD):
        mark = line.strip()
        if mark == b"<page>":
            lines, size, is_inside = [], 0, True
        elif mark == b"</page>" and is_inside:
            yield b"".join(lines)
            is_inside = False
        elif is_inside and size < LONGEST_RECORD:
            lines.append(line)
            size += len(line)
    if is_inside:
        yield b"".join(lines)


def article(page: bytes) -> bytes:
    """The text of a page, as the dump has it.

    >>> article(b'<title>Bee</title> <text xml:space="preserve">A bee.</text>')
    b'A bee.'
    """
    opening = TEXT.search(page)
    if opening is None or opening[1]:
        return b""
    closing = page.find(b"</text>", opening.end())
    return page[opening.end() : closing if closing >= 0 else len(page)]
