"""A stream of bytes as batches of whole lines, in bounded memory however long a line is."""

from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_LINE = 4 << 20
"""Bytes after which a line is given up: no comment comes near, and a garbled file may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Whole lines, and the place in the stream after them."""

    content: bytes
    """The lines with their newlines; the last line of a stream may lack its own."""
    end: int
    """Where the next line starts: reading from there goes on with nothing lost or doubled."""
    num_overlong: int = 0
    """Lines given up just before this batch's end, none of whose bytes are in it."""


def line_batches(blocks: Iterator[bytes], start: int = 0) -> Iterator[Batch]:
    r"""Cut blocks, the first of which begins at `start`, after their last newline.

    >>> [batch.content for batch in line_batches(iter([b"one\ntw", b"o\nthree"]))]
    [b'one\n', b'two\n', b'three']
    """
    rest, end, is_overlong = b"", start, False
    for block in blocks:
        if is_overlong:
            first_cut = block.find(b"\n") + 1
            end += first_cut or len(block)
            if not first_cut:
                continue
            is_overlong = False
            yield Batch(content=b"", end=end, num_overlong=1)
            block = block[first_cut:]
        cut = block.rfind(b"\n") + 1
        if cut:
            end += len(rest) + cut
            yield Batch(content=rest + block[:cut], end=end)
            rest = b""
        rest += block[cut:]
        if len(rest) > LONGEST_LINE:
            end, rest, is_overlong = end + len(rest), b"", True
    if rest or is_overlong:
        yield Batch(content=rest, end=end + len(rest), num_overlong=int(is_overlong))
