"""Zstandard with a window that lies in a file, for what would not fit into memory.

A frame written with `--long=31` may repeat what stood 2 GiB before, so that whoever reads it must
have 2 GiB at hand. The library can be given the place for them; here that is a file mapped into
memory, whose pages are let go every few MiB. They come back from the file when they are needed.
"""

import ctypes
import ctypes.util
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

WINDOW_LOG_PARAMETER = 100
"""ZSTD_d_windowLogMax."""
LARGEST_WINDOW_LOG = 31
PIECE_BYTES = 256 << 10
BYTES_BETWEEN_RELEASES = 4 << 20
"""Decompressed bytes after which the pages are let go."""


class WindowError(Exception):
    """What the library says of a frame that it cannot read."""


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer, and ZSTD_outBuffer."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("place", ctypes.c_size_t))


@cache
def library() -> Any:  # noqa: ANN401
    """The system's libzstd, or None where there is none that will do."""
    name = ctypes.util.find_library("zstd") if sys.platform == "linux" else None
    found = ctypes.CDLL(name) if name else None
    if found is None or not hasattr(found, "ZSTD_initStaticDStream"):
        return None
    for function in ("ZSTD_estimateDStreamSize", "ZSTD_decompressStream", "ZSTD_DCtx_setParameter"):
        getattr(found, function).restype = ctypes.c_size_t
    found.ZSTD_estimateDStreamSize.argtypes = [ctypes.c_size_t]
    found.ZSTD_initStaticDStream.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.ZSTD_initStaticDStream.restype = ctypes.c_void_p
    found.ZSTD_DCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    found.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(_Buffer)] * 2]
    found.ZSTD_isError.argtypes = [ctypes.c_size_t]
    found.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
    found.ZSTD_getErrorName.restype = ctypes.c_char_p
    return found


def decompressed(file: IO[bytes], scratch_folder: Path) -> Iterator[bytes]:
    """The content of all frames, in pieces."""
    size = _checked(library().ZSTD_estimateDStreamSize(1 << LARGEST_WINDOW_LOG))
    with tempfile.TemporaryFile(dir=scratch_folder) as scratch:
        # All of it at once: a mapped file that finds the disk full later ends the process.
        os.posix_fallocate(scratch.fileno(), 0, size)
        with mmap.mmap(scratch.fileno(), size) as window:
            place = ctypes.c_char.from_buffer(window)
            try:
                yield from _pieces(file, window, ctypes.addressof(place))
            finally:
                # A mapping cannot be closed while anything points into it.
                del place


def _pieces(file: IO[bytes], window: mmap.mmap, address: int) -> Iterator[bytes]:
    stream = library().ZSTD_initStaticDStream(address, len(window))
    _checked(library().ZSTD_DCtx_setParameter(stream, WINDOW_LOG_PARAMETER, LARGEST_WINDOW_LOG))
    space = ctypes.create_string_buffer(PIECE_BYTES)
    num_left, num_since_release = 0, 0
    while stored := file.read(PIECE_BYTES):
        fed = _Buffer(ctypes.cast(ctypes.c_char_p(stored), ctypes.c_void_p), len(stored), 0)
        is_more = True
        while is_more:
            given = _Buffer(ctypes.addressof(space), PIECE_BYTES, 0)
            num_left = _checked(
                library().ZSTD_decompressStream(stream, ctypes.byref(given), ctypes.byref(fed))
            )
            # A full output may have more behind it, even when all input is taken.
            is_more = fed.place < fed.size or given.place == given.size
            if given.place:
                yield ctypes.string_at(space, given.place)
            num_since_release += given.place
            if num_since_release >= BYTES_BETWEEN_RELEASES:
                window.madvise(mmap.MADV_DONTNEED)
                num_since_release = 0
    if num_left:
        raise WindowError("the file ends inside a frame")


def _checked(code: int) -> int:
    if library().ZSTD_isError(code):
        raise WindowError(library().ZSTD_getErrorName(code).decode())
    return code
