"""Where a text may be cut without a change of its tokens.

A tokeniser of the GPT-2 kind first splits a text into words by a regular expression, and then
works inside each word. So a text may be cut between any two words. Between an ASCII letter and a
space is such a place, for GPT-2's expression and for later ones (a word may start with a space,
but does not continue across one). The end of a line that is not blank is another, for GPT-2's.
Text with neither in LONGEST_PIECE bytes is cut between two characters: the pieces still decode to
the text, but the word at the cut may get other tokens.
"""

import re
from collections.abc import Callable, Iterator

LONGEST_PIECE = 1 << 18
"""Bytes of a document that are held, or encoded, at once."""
NEAR = 1 << 12
"""Within this many bytes a letter before a space is preferred to a nearer end of a line."""
CONTINUATION = 0b10
"""The first two bits of a byte that continues a character of UTF-8, of four bytes at most."""

# Both match the character before the cut.
LETTER = re.compile(rb"[A-Za-z](?= )")
# No whitespace before the newline, of one, two or three bytes.
END_OF_LINE = re.compile(
    rb"[^\x00- ](?=\n)(?<!\xc2[\x85\xa0])(?<!\xe1\x9a\x80)"
    rb"(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)"
)


def pieces(data: bytes, shortest: int) -> Iterator[bytes]:
    """A text in pieces of at least `shortest` bytes, except for the last.

    >>> list(pieces(b"to be or not to be", 8))
    [b'to be or', b' not to be']
    """
    if len(data) <= shortest:
        yield data
        return
    start = 0
    while start < len(data):
        end = cut(data, start, shortest, LONGEST_PIECE)
        yield data[start:end]
        start = end


def streamed_pieces(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bool]]:
    """All that `read` gives, in pieces, each with whether it is the last.

    A cut depends only on what follows the previous one, so that reading from any cut on gives the
    same pieces.
    """
    rest = b""
    while True:
        data = rest + read(LONGEST_PIECE + 1 - len(rest))
        if len(data) <= LONGEST_PIECE:
            yield data, True
            return
        end = cut(data, 0, LONGEST_PIECE // 2, LONGEST_PIECE)
        yield data[:end], False
        rest = data[end:]


def cut(data: bytes, start: int, shortest: int, longest: int) -> int:
    """The end of the piece that starts at `start`: the end of the data if that is near enough.

    >>> cut(b"to be or not to be", 0, shortest=4, longest=12)
    5
    """
    if len(data) - start <= shortest:
        return len(data)
    first, last = start + shortest, start + longest
    for stop in (min(first + NEAR, last), last):
        for pattern in (LETTER, END_OF_LINE):
            # One byte more, since the patterns look at the byte after the cut.
            found = pattern.search(data, first - 1, stop + 1)
            if found is not None:
                return found.end()
    if len(data) <= last:
        return len(data)
    starts = (place for place in range(last, last - 4, -1) if data[place] >> 6 != CONTINUATION)
    return next(starts, last)
