"""Zstandard: frames one after another, each with a window of what may be repeated."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from staircase_attention.data.checks import optional_module
from staircase_attention.data.reddit import windows

SKIPPED_FRAME = b"\x50\x2a\x4d\x18"
"""The first bytes of a frame that says nothing; parallel compressors write one at the front."""
LARGEST_WINDOW = 1 << 31
"""Pushshift writes its dumps with `--long=31`; a smaller limit refuses them."""
STORED_BYTES = 4 << 10
"""Compressed bytes handed over at a time: at the highest ratio there is, they give 128 MiB."""
FRAME_HEAD_BYTES = 18
"""The most that the head of a frame takes."""


class GarbledError(Exception):
    """A compressed file that ends too early or cannot be decompressed."""


def window_bytes(file: IO[bytes]) -> int:
    """What must be at hand to read a file's first frame, other than one to be skipped."""
    start = file.read(FRAME_HEAD_BYTES)
    while start.startswith(SKIPPED_FRAME):
        file.seek(int.from_bytes(start[4:8], "little") + 8 - len(start), os.SEEK_CUR)
        start = file.read(FRAME_HEAD_BYTES)
    file.seek(0)
    try:
        return int(_zstandard().get_frame_parameters(start).window_size)
    except _zstandard().ZstdError:
        return 0


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The content, with windows in memory.

    The package's own reader of many frames would not notice a file that is cut.
    """
    decompressor = _zstandard().ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    frame = None
    while stored := file.read(STORED_BYTES):
        while stored:
            frame = frame or decompressor.decompressobj()
            try:
                piece = frame.decompress(stored)
            except _zstandard().ZstdError as error:
                raise _error(str(error)) from error
            stored = b""
            if frame.eof:
                stored, frame = frame.unused_data, None
            if piece:
                yield piece
    if frame is not None:
        raise GarbledError("the file ends inside a frame")


def pieces_by_scratch(file: IO[bytes], scratch_folder: Path) -> Iterator[bytes]:
    """The content, with the window in a file, where the system has what that takes."""
    if windows.library() is None:
        yield from pieces(file)
        return
    try:
        yield from windows.decompressed(file, scratch_folder)
    except windows.WindowError as error:
        raise _error(str(error)) from error


def _error(message: str) -> Exception:
    """Too little memory is no fault of the file."""
    return MemoryError(message) if "memory" in message else GarbledError(message)


def _zstandard() -> Any:  # noqa: ANN401
    return optional_module("zstandard", needed_for="a .zst file")
