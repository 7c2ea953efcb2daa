"""Enwik8: the first 100,000,000 bytes of a Wikipedia of 2006, in the usual splits."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.data.compression import open_decompressed
from staircase_attention.data.corpus import Corpus
from staircase_attention.data.documents import LONGEST_PIECE, Cursor, Document, HeldOut
from staircase_attention.data.mixture import Part
from staircase_attention.data.preparation import prepare
from staircase_attention.data.tokenisers import ByteTokeniser
from staircase_attention.display import Display

# In the order of the file.
SPLIT_BYTES = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
# Of the whole file.
MD5 = "a1fa5ffddb56f4953e226637dabbb36a"


class SplitFile:
    """A file that holds the splits one after another, one document each."""

    def __init__(self, path: str | Path, split_bytes: Mapping[str, int]) -> None:
        self.name = str(path)
        self._path, self._split_bytes = Path(path), split_bytes
        if not self._path.is_file():
            raise input_error("an input must be a file", f"{path}, not there", "check the name")
        self.parameters: Mapping[str, Any] = {"split_bytes": dict(split_bytes)}
        self.files: Sequence[Path] = (self._path,)
        self.total_bytes = self._path.stat().st_size

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """Parts of each split, up to its last byte."""
        first = 0 if cursor is None else cursor.place["part"]
        return islice(self._parts(), first, None)

    def _parts(self) -> Iterator[tuple[Document, Cursor]]:
        number = 0
        with open_decompressed(self._path) as file:
            for split, num_left in self._split_bytes.items():
                while num_left:
                    data = file.read(min(LONGEST_PIECE, num_left))
                    num_left -= len(data)
                    number += 1
                    after = Cursor(place={"part": number}, num_read=file.raw.num_stored_read)
                    yield Document(text=data, split=split, is_continued=num_left > 0), after


def prepare_enwik8(
    path: str | Path,
    folder: str | Path,
    *,
    progress: Display | None = None,
) -> Corpus:
    """Enwik8 as in the paper: 256 symbols; 90, 5 and 5 million bytes; no end symbol.

    The file may be plain or compressed: .zip, .gz, .bz2, .xz or .zst. `folder` must not exist.
    """
    source = SplitFile(path, SPLIT_BYTES)
    # Before anything is written: another file would give other numbers than the paper's.
    check_content(Path(path), MD5)
    return prepare(
        [Part(source=source)],
        folder,
        kind="enwik8",
        tokeniser=ByteTokeniser(has_end_symbol=False),
        held_out=HeldOut(valid=0, test=0),
        progress=progress,
    )


def check_content(path: Path, md5: str) -> None:
    """Refuse a file whose content, decompressed, has another MD5."""
    with open_decompressed(path) as file:
        found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if found != md5:
        remedy = "fetch enwik8 again: mattmahoney.net/dc/enwik8.zip"
        raise input_error(f"{path} must be enwik8, of md5 {md5}", f"one of md5 {found}", remedy)
