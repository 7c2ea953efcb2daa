"""Documents, the sources that give them, the split of each, and where a long one may be cut.

A tokeniser of the GPT-2 kind first splits a text into words by a regular expression, and then
works inside each word. So a text may be cut between any two words. Between an ASCII letter and a
space is such a place, for GPT-2's expression and for later ones (a word may start with a space,
but does not continue across one). The end of a line that is not blank is another, for GPT-2's.
Text with neither in LONGEST_PIECE bytes is cut between two characters: the pieces still decode to
the text, but the word at the cut may get other tokens.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from staircase_attention.checks import input_error

SPLITS = ("train", "valid", "test")
# Only the first bytes of a document are hashed; documents that share them count as the same.
HASHED_BYTES = 1 << 16
DIGEST_BYTES = 8
# Bytes of a document that are held, or encoded, at once. Half of it, the shortest piece of a longer
# document, must be enough to hash.
LONGEST_PIECE = 1 << 17
# Within this many bytes a letter before a space is preferred to a nearer end of a line.
NEAR = 1 << 12
# The first two bits of a byte that continues a character of UTF-8, of four bytes at most.
CONTINUATION = 0b10

# Both match the character before the cut.
LETTER = re.compile(rb"[A-Za-z](?= )")
# No whitespace before the newline, of one, two or three bytes.
END_OF_LINE = re.compile(
    rb"[^\x00- ](?=\n)(?<!\xc2[\x85\xa0])(?<!\xe1\x9a\x80)"
    rb"(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text that stays in one split, or a part of one that is too long for memory."""

    text: str | bytes
    """A str is written as UTF-8. It may be any str that JSON can hold: half a surrogate pair
    becomes the three bytes that UTF-8 would use if it allowed them."""
    split: str | None = None
    """'train', 'valid' or 'test'; None to choose by a hash of the text."""
    is_continued: bool = False
    """Whether the source's next Document is the rest of this one."""

    @property
    def data(self) -> bytes:
        r"""The text as bytes.

        >>> Document(text="é").data
        b'\xc3\xa9'
        """
        if isinstance(self.text, bytes):
            return self.text
        return self.text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A position between two documents of a source, from which it can continue."""

    place: Mapping[str, Any]
    """Plain data that JSON can write and only the source itself reads."""
    num_read: int
    """Bytes of the source's files, as stored, before this position, roughly. Progress and the
    mixing of sources use it. It must depend on the position alone."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used so far, with counts: {'broken lines in a.jsonl': 3}."""


class DocumentSource(Protocol):
    """Documents in an order that never changes, available from any cursor on.

    What comes after a cursor must not depend on how the cursor was reached: a killed preparation
    resumes from the last cursor that it saved, and its result is the same byte for byte.
    """

    name: str
    """In the manifest and in messages."""
    parameters: Mapping[str, Any]
    """Every option that its documents depend on, as plain data."""
    files: Sequence[Path]
    """The files that it reads. The manifest records their checksums."""
    total_bytes: int
    """`num_read` at its end: usually the size of its files."""

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """Documents after a cursor (None: from the first), each with the cursor after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How much is held out, as fractions of all documents.

    The split of a document depends on its text alone: not on a seed, on the order or on other
    documents. So copies are in the same split, and stay there when documents are added.
    """

    valid: float = 0.005
    """Fraction for validation; 0 for no such split."""
    test: float = 0.005
    """Fraction for the final number; 0 for no such split."""

    def __post_init__(self) -> None:
        # Comparisons with NaN are false, so this asks for what must hold.
        if not (self.valid >= 0 and self.test >= 0 and self.valid + self.test < 1):
            rule = "valid and test must be fractions of at least 0, below 1 together"
            received = f"valid={self.valid}, test={self.test}"
            raise input_error(rule, received, "use for example valid=0.005, test=0.005")

    def split_of(self, data: bytes) -> str:
        """The split of a document.

        >>> HeldOut(valid=0.5, test=0.4).split_of(b"It was a bright cold day in April")
        'test'
        """
        share = hashed(data, "split")
        if share < self.valid:
            return "valid"
        return "test" if share < self.valid + self.test else "train"


def hashed(data: bytes, purpose: str) -> float:
    """A pseudorandom number in [0, 1) that depends on the first bytes and the purpose alone."""
    digest = hashlib.blake2b(
        data[:HASHED_BYTES], digest_size=DIGEST_BYTES, person=purpose.encode()
    ).digest()
    # A float holds 53 bits exactly; with more, rounding could give 1.0.
    return (int.from_bytes(digest) >> 11) / 2**53


def pieces(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bool]]:
    """All that `read` gives, in pieces, each with whether it is the last.

    >>> import io
    >>> [len(data) for data, _ in pieces(io.BytesIO(b"to be or not " * 11_000).read)]
    [65538, 77462]
    """
    rest = b""
    while True:
        data = rest + read(LONGEST_PIECE + 1 - len(rest))
        if len(data) <= LONGEST_PIECE:
            yield data, True
            return
        end = cut(data, LONGEST_PIECE // 2, LONGEST_PIECE)
        yield data[:end], False
        rest = data[end:]


def cut(data: bytes, shortest: int, longest: int) -> int:
    """Where the first piece of longer data ends.

    >>> cut(b"to be or not to be", shortest=4, longest=12)
    5
    """
    for stop in (min(shortest + NEAR, longest), longest):
        for pattern in (LETTER, END_OF_LINE):
            # One byte more, since the patterns look at the byte after the cut.
            found = pattern.search(data, shortest - 1, stop + 1)
            if found is not None:
                return found.end()
    places = range(longest, longest - 4, -1)
    return next((place for place in places if data[place] >> 6 != CONTINUATION), longest)
