"""Files as they come, plain or compressed, told by their first bytes and not by their name."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from staircase_attention.checks import InputError, input_error
from staircase_attention.data.checks import optional_module

BLOCK_BYTES = 1 << 20
"""Bytes of content read at a time."""
ZST_FEED_BYTES = 1 << 12
"""Compressed bytes given to zstandard at a time: they unfold to 128 MiB at the very most."""
ZST_LONGEST_WINDOW = 1 << 31
"""What `zstd --long=31` writes, as the Reddit dumps of Pushshift were; it is held in memory."""

DAMAGE = (
    EOFError,
    OSError,
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
)
"""What the libraries raise for a file that they cannot decompress."""
MAGIC = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"\x50\x2a\x4d\x18": "zst",
    b"PK\x03\x04": "zip",
}
"""The first bytes of a compressed file; 50 2a 4d 18 is what `pzstd` begins with."""


def compression_of(path: Path) -> str | None:
    """How a file is compressed: 'gz', 'bz2', 'xz', 'zst', 'zip', or None if it is not."""
    with path.open("rb") as file:
        start = file.read(max(map(len, MAGIC)))
    return next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)


def check_compression(path: Path) -> None:
    """Refuse a file that needs a package which is not there."""
    if compression_of(path) == "zst":
        optional_module("zstandard", needed_for="a .zst file")


class Stream:
    """The content of a file, read once from front to back.

    It is read in blocks that begin at multiples of BLOCK_BYTES whatever is asked for, so that
    `num_read` is the same at the same offset however that was reached.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compression = compression_of(path)
        self._stored = path.open("rb")
        try:
            self._content = _OPENERS[self.compression](self._stored)
        except (InputError, *DAMAGE) as error:
            self._stored.close()
            raise self._damage(error) from error
        self._block = b""
        self._block_offset = 0
        self._place = 0
        self.num_read = 0
        """Bytes of the file, as stored, that have been taken in."""

    @property
    def offset(self) -> int:
        """Bytes of content given so far."""
        return self._block_offset + self._place

    def read(self, size: int) -> bytes:
        """That many bytes; fewer only at the end."""
        parts = []
        while size > 0 and self._fill():
            part = self._block[self._place : self._place + size]
            parts.append(part)
            self._place += len(part)
            size -= len(part)
        return b"".join(parts)

    def read_line(self, longest: int) -> bytes:
        """Up to and with the next newline, or the end of the file; b"" at the end.

        A line of more than `longest` bytes comes in parts of at least that many.
        """
        parts: list[bytes] = []
        size = 0
        while size < longest and self._fill():
            end = self._block.find(b"\n", self._place) + 1
            parts.append(self._block[self._place : end or len(self._block)])
            self._place += len(parts[-1])
            size += len(parts[-1])
            if end:
                break
        return b"".join(parts)

    def skip_to(self, offset: int) -> None:
        """Go forward to an offset: at once in a plain file, by reading in a compressed one."""
        assert self.offset <= offset
        if self.compression is None:
            self._block_offset = offset - offset % BLOCK_BYTES
            self._block, self._place = b"", 0
            self._stored.seek(self._block_offset)
        while self._block_offset + len(self._block) < offset and self._next_block():
            pass
        self._place = offset - self._block_offset

    def close(self) -> None:
        """Let go of the file."""
        self._content.close()
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _fill(self) -> bool:
        """Whether there is more to give, having read it if need be."""
        return self._place < len(self._block) or self._next_block()

    def _next_block(self) -> bool:
        self._block_offset += len(self._block)
        self._place = 0
        try:
            self._block = self._content.read(BLOCK_BYTES)
        except DAMAGE as error:
            raise self._damage(error) from error
        self.num_read = self._stored.tell()
        return bool(self._block)

    def _damage(self, error: Exception) -> Exception:
        """A clear line for what decompression says; what the system says is left as it is."""
        if isinstance(error, InputError) or getattr(error, "errno", None) is not None:
            return error
        received = f"{self.path} ({error})"
        return input_error("a file must be whole", received, "fetch it again, or leave it out")


class _ZstandardFile(io.RawIOBase):
    """Frames of Zstandard one after another; a file that ends inside one is noticed."""

    def __init__(self, stored: IO[bytes]) -> None:
        self._module = optional_module("zstandard", needed_for="a .zst file")
        self._decompressor = self._module.ZstdDecompressor(max_window_size=ZST_LONGEST_WINDOW)
        self._stored = stored
        self._frame: Any = None
        self._left = b""
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        while not self._ready:
            fed = self._left or self._stored.read(ZST_FEED_BYTES)
            if not fed:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._ready = self._frame.decompress(fed)
            except self._module.ZstdError as error:
                raise EOFError(str(error)) from error
            self._left = b""
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _open_zip(stored: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(stored)
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        raise input_error(
            "a .zip must hold one file", f"{len(members)} in {stored.name}", "unpack it"
        )
    return archive.open(members[0])


_OPENERS: dict[str | None, Callable[[IO[bytes]], Any]] = {
    None: lambda stored: stored,
    "gz": lambda stored: gzip.GzipFile(fileobj=stored, mode="rb"),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zst": lambda stored: io.BufferedReader(_ZstandardFile(stored), BLOCK_BYTES),
    "zip": _open_zip,
}
