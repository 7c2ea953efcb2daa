"""Dump files as they come: plain or compressed, told by their first bytes, perhaps damaged."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from staircase_attention.data.reddit import zst
from staircase_attention.data.reddit.zst import GarbledError

Compression = Literal["plain", "gz", "bz2", "xz", "zst"]

MAGIC_BYTES: dict[bytes, Compression] = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    zst.SKIPPED_FRAME: "zst",
}
BLOCK_BYTES = 1 << 20
"""Decompressed bytes given at a time, about."""
PIECE_BYTES = 64 << 10
"""Decompressed bytes asked for at a time."""


def compression_of(path: Path) -> Compression:
    """How a file is compressed, whatever its name says."""
    with path.open("rb") as file:
        start = file.read(max(map(len, MAGIC_BYTES)))
    for magic_bytes, compression in MAGIC_BYTES.items():
        if start.startswith(magic_bytes):
            return compression
    return "plain"


class Archive:
    """One dump file, read once from front to back.

    A file that ends too early or is garbled gives what can be read of it, and `damage` then says
    what was wrong: a broken download must not cost the rest of a preparation.
    """

    def __init__(
        self,
        path: Path,
        scratch_folder: Path | None = None,
        largest_window_bytes: int = zst.LARGEST_WINDOW,
    ) -> None:
        """Name the file, and a folder for windows of Zstandard that are larger than said."""
        self.path = path
        self.scratch_folder = scratch_folder
        self.largest_window_bytes = largest_window_bytes
        self.compression = compression_of(path)
        self.position = 0
        """Bytes of the file, as stored, that have been taken in so far."""
        self.damage: str | None = None

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """The content from byte `start` on, counted after decompression."""
        with self.path.open("rb") as file:
            to_skip = start
            if self.compression == "plain":
                file.seek(start)
                to_skip = 0
            for block in self._all_blocks(file):
                self.position = file.tell()
                if to_skip < len(block):
                    yield block[to_skip:]
                to_skip = max(to_skip - len(block), 0)

    def _all_blocks(self, file: IO[bytes]) -> Iterator[bytes]:
        """Pieces gathered into blocks; what came before a damaged place is given too."""
        gathered = bytearray()
        try:
            for piece in self._pieces(file):
                gathered += piece
                if len(gathered) >= BLOCK_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
        except GarbledError as error:
            self.damage = str(error)
        if gathered:
            yield bytes(gathered)

    def _pieces(self, file: IO[bytes]) -> Iterator[bytes]:
        if self.compression == "plain":
            return iter(lambda: file.read(PIECE_BYTES), b"")
        if self.compression != "zst":
            return _standard_pieces(file, self.compression)
        if zst.window_bytes(file) > self.largest_window_bytes and self.scratch_folder:
            return zst.pieces_by_scratch(file, self.scratch_folder)
        return zst.pieces(file)


def _standard_pieces(file: IO[bytes], compression: Compression) -> Iterator[bytes]:
    open_content: Any = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[compression]
    content = open_content(file)
    while True:
        try:
            # read1 gives what there is before a damaged place, where read would give nothing.
            piece: bytes = content.read1(PIECE_BYTES)
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            raise GarbledError(str(error)) from error
        except OSError as error:
            # bz2 and gzip say OSError too; only what comes from the system has a number.
            if error.errno is not None:
                raise
            raise GarbledError(str(error)) from error
        if not piece:
            return
        yield piece
