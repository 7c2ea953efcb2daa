"""A .tar of text files: each of them is a document."""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from staircase_attention.checks import input_error
from staircase_attention.data.document import Document
from staircase_attention.data.pieces import streamed_pieces
from staircase_attention.data.readers.compression import Stream, check_compression
from staircase_attention.data.readers.reader import Place

SKIP_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TextArchive:
    """One document a member, for members whose names end in .txt or have no ending."""

    skipped_name: str = "members that are no text"

    def check(self, path: Path) -> None:
        """See that it can be decompressed."""
        check_compression(path)

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The members from a place on, in the order of the archive."""
        with Stream(path) as stream:
            try:
                yield from _documents(stream, place)
            except tarfile.TarError as error:
                rule, received = "an archive must be whole", f"{path} ({error})"
                raise input_error(rule, received, "fetch it again, or leave it out") from error


def _documents(stream: Stream, place: Place) -> Iterator[tuple[Document, Place]]:
    num_skipped = place.num_skipped
    # Front to back, without ever going back: the archive may be compressed.
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
        for record, member in enumerate(archive):
            # The library would remember every member that it has seen.
            archive.members = []
            if record < place.record or not member.isfile():
                continue
            content: IO[bytes] = archive.extractfile(member)
            num_skipped += not is_text(member.name)
            if not is_text(member.name):
                content = io.BytesIO()
            offset = _skipped(content, place.offset) if record == place.record else 0
            for data, is_last in streamed_pieces(content.read):
                offset += len(data)
                after = Place(
                    record=record + is_last,
                    offset=0 if is_last else offset,
                    num_read=stream.num_read,
                    num_skipped=num_skipped,
                )
                yield Document(text=data, is_continued=not is_last), after


def is_text(name: str) -> bool:
    """Whether a member is a document, by its name.

    >>> is_text("novels/Woolf_Night_1919.txt"), is_text("novels/.hidden"), is_text("cover.jpg")
    (True, False, False)
    """
    last = PurePosixPath(name)
    return not last.name.startswith(".") and last.suffix.lower() in ("", ".txt")


def _skipped(content: IO[bytes], offset: int) -> int:
    """The offset, once everything before it has been passed over."""
    left = offset
    while left and (passed := content.read(min(left, SKIP_BYTES))):
        left -= len(passed)
    return offset
