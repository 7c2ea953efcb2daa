"""Enwik8: the first 100,000,000 bytes of a Wikipedia of 2006, byte by byte, in the usual split."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.data.corpus import Corpus
from staircase_attention.data.document import Cursor, Document
from staircase_attention.data.mixture import Part
from staircase_attention.data.pieces import LONGEST_PIECE
from staircase_attention.data.preparing import Storing, prepare
from staircase_attention.data.progress import Progress
from staircase_attention.data.readers import Stream
from staircase_attention.data.splits import HeldOut
from staircase_attention.data.tokenisers import ByteTokeniser

SPLIT_BYTES = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
"""One after another."""
MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
"""Of the whole file."""


class SplitFile:
    """One file in which the splits lie one after another, a document each."""

    def __init__(self, path: str | Path, split_bytes: Mapping[str, int]) -> None:
        self.path, self.split_bytes = Path(path), split_bytes
        if not self.path.is_file():
            raise input_error("an input must be a file", f"{path}, not there", "check the name")

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Where the splits are."""
        return {"split_bytes": dict(self.split_bytes)}

    @property
    def files(self) -> Sequence[Path]:
        """The one."""
        return [self.path]

    @property
    def total_bytes(self) -> int:
        """Its size, as stored."""
        return self.path.stat().st_size

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """Parts of each split, up to its end to the byte."""
        begin, offset = 0, 0 if cursor is None else cursor.place["offset"]
        with Stream(self.path) as stream:
            stream.skip_to(offset)
            for split, size in self.split_bytes.items():
                while offset < begin + size:
                    data = stream.read(min(LONGEST_PIECE, begin + size - offset))
                    offset += len(data)
                    is_continued = offset < begin + size
                    yield (
                        Document(text=data, split=split, is_continued=is_continued),
                        Cursor(place={"offset": offset}, num_read=stream.num_read),
                    )
                begin += size


def prepare_enwik8(
    path: str | Path,
    folder: str | Path,
    *,
    storing: Storing | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Enwik8 as the paper has it: 256 symbols; 90, 5 and 5 million bytes; no end symbol.

    Args:
        path: the file, as it is or compressed: .zip, .gz, .bz2, .xz or .zst.
        folder: the corpus to be.
        storing: how files are written.
        progress: who is told.
    """
    source = SplitFile(path, SPLIT_BYTES)
    check_content(source.path, sum(SPLIT_BYTES.values()), MD5)
    return prepare(
        [Part(source=source)],
        folder,
        kind="enwik8",
        tokeniser=ByteTokeniser(has_end_symbol=False),
        held_out=HeldOut(valid=0, test=0),
        splits=tuple(SPLIT_BYTES),
        storing=storing,
        progress=progress,
    )


def check_content(path: Path, num_bytes: int, md5: str) -> None:
    """Refuse a file that has another content, after decompression."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with Stream(path) as stream:
        while data := stream.read(LONGEST_PIECE):
            digest.update(data)
            size += len(data)
    if (size, digest.hexdigest()) != (num_bytes, md5):
        rule = f"{path} must have {num_bytes:,} bytes of md5 {md5}"
        received = f"{size:,} bytes of md5 {digest.hexdigest()}"
        raise input_error(rule, received, "fetch enwik8 again: mattmahoney.net/dc/enwik8.zip")
