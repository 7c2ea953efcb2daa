"""Files as they come, plain or compressed: one function opens them all for reading.

The first bytes of a file say how it is compressed, not its name.
"""

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from staircase_attention.checks import InputError, import_extra, input_error

Compression = Literal["gz", "bz2", "xz", "zst", "zip"]

# Bytes of content that are decompressed at a time.
BLOCK_BYTES = 1 << 20
# A longer line is skipped. No usual record is that long, but a line of a corrupt file may be.
LONGEST_LINE = 1 << 25
OVERLONG = f"lines of over {LONGEST_LINE >> 20} MiB"
# Compressed bytes given to zstandard at a time. They expand to 128 MiB at most.
ZST_INPUT_BYTES = 1 << 12
# The window of `zstd --long=31`, which Pushshift's dumps need. It is held in memory.
ZST_MAX_WINDOW = 1 << 31

# The content of a file, with its usual `read` and `readline`; `raw` knows the file itself.
DecompressedFile: TypeAlias = "io.BufferedReader[_DecompressedBlocks]"
MAGIC_BYTES: dict[bytes, Compression] = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    # A skippable frame: parallel compressors write one at the front.
    b"\x50\x2a\x4d\x18": "zst",
    b"PK\x03\x04": "zip",
}
# What the libraries raise for a file that they cannot decompress.
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, RuntimeError)


class DamagedFileError(InputError):
    """A file that ends early or is corrupt."""

    def __init__(self, path: str | Path, why: object) -> None:
        self.why = why
        super().__init__(
            f"a file must be whole, got {path} ({why}); fetch it again, leave it out, or use what "
            "comes before the damage: staircase prepare text or reddit, with --allow-damaged (in "
            "Python allow_damaged=True)"
        )


def compression_of(path: Path) -> Compression | None:
    """How a file is compressed; None for a plain file."""
    with path.open("rb") as file:
        start = file.read(max(map(len, MAGIC_BYTES)))
    return next((name for magic, name in MAGIC_BYTES.items() if start.startswith(magic)), None)


def open_decompressed(path: Path, *, allow_damaged: bool = False) -> DecompressedFile:
    """Open a file for reading its content from front to back, as bytes.

    A damaged file gives all content before the damage; then it raises DamagedFileError, or ends if
    that is allowed.
    """
    compression = compression_of(path)
    stored = path.open("rb")
    try:
        content = _OPENERS[compression](stored)
    except (*DAMAGE, InputError) as error:
        # A zip is checked when it is opened, the others when they are read.
        stored.close()
        raise error if isinstance(error, InputError) else DamagedFileError(path, error) from error
    return io.BufferedReader(_DecompressedBlocks(stored, content, allow_damaged), BLOCK_BYTES)


class _DecompressedBlocks(io.RawIOBase):
    """The content in blocks of BLOCK_BYTES; only the last one may be shorter."""

    def __init__(self, stored: IO[bytes], content: Any, allow_damaged: bool) -> None:  # noqa: ANN401
        self._stored, self._content, self._allow_damaged = stored, content, allow_damaged
        self.name = stored.name
        self.num_stored_read = self._num_content = 0
        """Bytes of the file, as stored, that were read to get here. It depends only on the
        position, since content is always decompressed in the same blocks."""
        self.damage: str | None = None
        """What is wrong at the place up to which the file was read, if anything is."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        view, num_bytes = memoryview(buffer)[:BLOCK_BYTES], 0
        try:
            # Unlike read, read1 loses nothing of what comes before damage.
            while (
                self.damage is None
                and num_bytes < len(view)
                and (piece := self._content.read1(len(view) - num_bytes))
            ):
                view[num_bytes : num_bytes + len(piece)] = piece
                num_bytes += len(piece)
        except DAMAGE as error:
            if getattr(error, "errno", None) is not None:
                # The system failed, not the file.
                raise
            stored_bytes = os.fstat(self._stored.fileno()).st_size
            self.damage = (
                f"{error}, after {self._num_content + num_bytes:,} bytes of content; what follows "
                f"byte {self._stored.tell():,} of {stored_bytes:,} as stored is lost"
            )
        if self.damage is not None and not num_bytes and not self._allow_damaged:
            raise DamagedFileError(self.name, self.damage)
        self._num_content += num_bytes
        self.num_stored_read = self._stored.tell()
        return num_bytes

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._stored.close()
        super().close()


def whole_lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a file; None for one of over LONGEST_LINE bytes, which is never held whole."""
    while line := file.readline(LONGEST_LINE + 1):
        is_overlong = len(line) > LONGEST_LINE
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)
        yield None if is_overlong else line


class _ZstandardFrames:
    """Zstandard frames one after another. The package's own reader misses a truncated file."""

    def __init__(self, stored: IO[bytes]) -> None:
        self._zstandard = import_extra("zstandard", needed_for="a .zst file")
        self._decompressor = self._zstandard.ZstdDecompressor(max_window_size=ZST_MAX_WINDOW)
        self._stored = stored
        self._frame: Any = None
        self._compressed = b""
        self._content = memoryview(b"")

    def read1(self, size: int) -> memoryview:
        while not self._content:
            compressed = self._compressed or self._stored.read(ZST_INPUT_BYTES)
            if not compressed:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                break
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._content = memoryview(self._frame.decompress(compressed))
            except self._zstandard.ZstdError as error:
                # A window may be larger than the memory of this machine: the file is not to blame.
                kind = MemoryError if "not enough memory" in str(error) else EOFError
                raise kind(str(error)) from error
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        piece, self._content = self._content[:size], self._content[size:]
        return piece

    def close(self) -> None:
        self._frame = None


def zipped_name(path: Path) -> str:
    """The name of the file in a zip; none for other files, which are refused when opened."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = _files_in(archive)
    except DAMAGE:
        return ""
    return names[0] if len(names) == 1 else ""


def _files_in(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if not name.endswith("/")]


def _open_zip(stored: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(stored)
    names = _files_in(archive)
    if len(names) != 1:
        rule = "a .zip must hold one file"
        raise input_error(rule, f"{len(names)} in {stored.name}", "unpack it")
    return archive.open(names[0])


_OPENERS: dict[Compression | None, Callable[[IO[bytes]], Any]] = {
    None: lambda stored: stored,
    "gz": lambda stored: gzip.GzipFile(fileobj=stored, mode="rb"),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zst": _ZstandardFrames,
    "zip": _open_zip,
}
