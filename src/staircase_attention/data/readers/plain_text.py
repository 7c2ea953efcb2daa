"""Plain text: a file is a document, or each of its paragraphs is."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from staircase_attention.data.document import Document
from staircase_attention.data.pieces import streamed_pieces
from staircase_attention.data.readers.compression import Stream, check_compression
from staircase_attention.data.readers.reader import LONGEST_RECORD, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeText:
    """One document a file, given in parts where it is long."""

    skipped_name: str = "texts"

    def check(self, path: Path) -> None:
        """See that it can be decompressed."""
        check_compression(path)

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The file from a place on."""
        if place.record:
            return
        with Stream(path) as stream:
            stream.skip_to(place.offset)
            offset = place.offset
            for data, is_last in streamed_pieces(stream.read):
                offset += len(data)
                after = Place(record=int(is_last), offset=offset, num_read=stream.num_read)
                yield Document(text=data, is_continued=not is_last), after


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraphs:
    """One document for each run of lines that are not blank, without the newline at its end.

    A paragraph of more than LONGEST_RECORD bytes becomes several documents.
    """

    skipped_name: str = "texts"

    def check(self, path: Path) -> None:
        """See that it can be decompressed."""
        check_compression(path)

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The paragraphs of the file from a place on."""
        with Stream(path) as stream:
            stream.skip_to(place.offset)
            lines: list[bytes] = []
            size, record = 0, place.record
            while True:
                line = stream.read_line(LONGEST_RECORD)
                is_over = not line or line.isspace()
                if not is_over:
                    lines.append(line)
                    size += len(line)
                if lines and (is_over or size >= LONGEST_RECORD):
                    record += 1
                    text = b"".join(lines).rstrip(b"\r\n")
                    yield Document(text=text), _after(record, stream)
                    lines, size = [], 0
                if not line:
                    return


def _after(record: int, stream: Stream) -> Place:
    return Place(record=record, offset=stream.offset, num_read=stream.num_read)
