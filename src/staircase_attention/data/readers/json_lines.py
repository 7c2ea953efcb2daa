"""JSON, one object a line; a line that cannot be used is counted and passed over."""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from staircase_attention.data.document import Document
from staircase_attention.data.readers.compression import Stream, check_compression
from staircase_attention.data.readers.reader import LONGEST_RECORD, Place

# json.loads would look for encodings and options at every line.
DECODE = json.JSONDecoder().decode


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines:
    """One document a line: the text in one field of an object.

    The field may hold a string, or a list: then each item is a line of the document, and an item
    that is itself a list is joined by ': '. So [["Ann", "Hello"], ["Bob", "Hi"]] is a dialogue.
    A line of more than LONGEST_RECORD bytes counts as broken.
    """

    text_field: str = "text"
    """The name of the field."""
    skipped_name: str = "broken lines"

    def check(self, path: Path) -> None:
        """See that it can be decompressed."""
        check_compression(path)

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The documents of the lines from a place on; a line that is broken gives an empty one."""
        num_skipped, record = place.num_skipped, place.record
        with Stream(path) as stream:
            stream.skip_to(place.offset)
            while line := _line(stream):
                record += 1
                if line.isspace():
                    continue
                text = self._text(line)
                num_skipped += text is None
                after = Place(
                    record=record,
                    offset=stream.offset,
                    num_read=stream.num_read,
                    num_skipped=num_skipped,
                )
                yield Document(text=text or ""), after

    def _text(self, line: bytes) -> str | None:
        """What the line says; None if it is broken."""
        if len(line) > LONGEST_RECORD:
            return None
        try:
            # Some programs begin a file with a mark, which is no part of it.
            record = DECODE(line.removeprefix(codecs.BOM_UTF8).decode())
            return flattened(record[self.text_field])
        except (ValueError, LookupError, TypeError, RecursionError):
            return None


def _line(stream: Stream) -> bytes:
    """The next line; of one that is too long, the first part."""
    line = stream.read_line(LONGEST_RECORD + 1)
    rest = line
    while len(rest) > LONGEST_RECORD and not rest.endswith(b"\n"):
        rest = stream.read_line(LONGEST_RECORD + 1)
    return line


def flattened(value: object) -> str:
    r"""A string as it is; a list as lines.

    >>> flattened([["Ann", "Hello"], "and so on"])
    'Ann: Hello\nand so on'
    """
    return _joined(value, ("\n", ": "))


def _joined(value: object, separators: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and separators:
        return separators[0].join(_joined(item, separators[1:]) for item in value)
    raise TypeError
