"""Where a text may be cut in two without a trace in its tokens.

A tokeniser of the GPT-2 kind first splits a text into words by a regular expression, and then
works inside each word. So a text may be cut between any two words. An ASCII letter followed by a
space is such a place, for GPT-2's expression and for those that came after it (a word may begin
with a space, and none goes on over one); the end of a line that is not blank is another, for
GPT-2's. Text without either in LONGEST_PIECE bytes is cut between two characters: the pieces still
decode to the text, but one word of it may be split unlike in the whole.
"""

import re
from collections.abc import Callable, Iterator

LONGEST_PIECE = 1 << 18
"""Bytes of a document that are held, or encoded, at once."""

NEAR = 1 << 12
"""Bytes within which the better of two places is taken, though the other may be nearer."""

# Both match the character before the cut.
LETTER = re.compile(rb"[A-Za-z](?= )")
# No whitespace before the newline, be it of one, two or three bytes.
END_OF_LINE = re.compile(
    rb"[^\x00- ](?=\n)(?<!\xc2[\x85\xa0])(?<!\xe1\x9a\x80)"
    rb"(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)"
)


def cut(data: bytes, start: int, shortest: int, longest: int) -> int:
    """The end of the piece that begins at `start`: all of the data if it is not too long.

    >>> cut(b"to be or not to be", 0, shortest=4, longest=12)
    5
    """
    if len(data) - start <= shortest:
        return len(data)
    first, last = start + shortest, start + longest
    for upto in (min(first + NEAR, last), last):
        for pattern in (LETTER, END_OF_LINE):
            # One byte more, since the patterns look at what follows the cut.
            found = pattern.search(data, first - 1, upto + 1)
            if found is not None:
                return found.end()
    return len(data) if len(data) <= last else _character_boundary(data, last)


def _character_boundary(data: bytes, at: int) -> int:
    """The last place from `at` back that is not inside a character of UTF-8."""
    for place in range(at, at - 4, -1):
        if data[place] & 0xC0 != 0x80:  # noqa: PLR2004 (a byte 10xxxxxx goes on with a character)
            return place
    return at


def pieces(data: bytes, shortest: int) -> Iterator[bytes]:
    """A text in pieces of at least `shortest` bytes, but for the last.

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
    """What `read` gives until its end, in pieces, each with whether it is the last.

    Each cut depends only on what follows the one before, so that reading on from any of them
    gives the same.
    """
    carried = b""
    while True:
        data = carried + read(LONGEST_PIECE + 1 - len(carried))
        if len(data) <= LONGEST_PIECE:
            yield data, True
            return
        end = cut(data, 0, LONGEST_PIECE // 2, LONGEST_PIECE)
        yield data[:end], False
        carried = data[end:]
