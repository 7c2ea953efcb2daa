"""Comments as they lie between the two halves of a preparation: a head each, and its text.

Heads have one size and are read as an array, a million at once; texts lie end to end. What the
threads need of an id is only whether two are equal, so ids become numbers.
"""

import hashlib
import re
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staircase_attention.data.reddit.cleaning import Cleaner, Cleaning
from staircase_attention.data.reddit.comments import (
    UNKNOWN_AUTHOR,
    Comment,
    Flaw,
    parse_comment,
)

FIELDS = (
    # The post: the number of its id.
    ("thread", "<u8"),
    ("id", "<u8"),
    # The comment answered, or NO_PARENT for the post.
    ("parent", "<u8"),
    # Seconds since 1970.
    ("created", "<i8"),
    # Bytes and characters of the text.
    ("num_bytes", "<u4"),
    ("num_characters", "<u4"),
    # A checksum of the name, UNKNOWN for an account that is gone.
    ("author", "<u4"),
    ("status", "u1"),
)
HEAD = np.dtype(list(FIELDS))
PACKED_HEAD = struct.Struct("<QQQqIIIB")
Heads = NDArray[np.void]

NO_PARENT = 0
UNKNOWN = 0

# Up to 36^12 < 2^63. A leading zero would make two ids one.
USUAL_ID = re.compile(r"[1-9a-z][0-9a-z]{0,11}")
GOLDEN_RATIO = 0x9E3779B97F4A7C15
WORD = 1 << 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedBatch:
    """What a batch of lines gives."""

    counts: dict[str, int]
    """Lines by what they were: 'comments', or a flaw."""
    parts: dict[int, tuple[bytes, bytes]]
    """For each bucket, the heads and the texts of its comments, in the order of the lines."""


def parse_batch(content: bytes, num_buckets: int, cleaning: Cleaning) -> ParsedBatch:
    """Parse, clean and sort into buckets: all the work that can be done line by line."""
    cleaner = Cleaner(cleaning)
    counts = dict.fromkeys(["comments", *Flaw], 0)
    heads: defaultdict[int, bytearray] = defaultdict(bytearray)
    texts: defaultdict[int, bytearray] = defaultdict(bytearray)
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        comment = parse_comment(line)
        if isinstance(comment, Flaw):
            counts[comment] += 1
            continue
        counts["comments"] += 1
        thread = number_of(comment.link_id)
        head, text = _packed(comment, thread, cleaner)
        bucket = bucket_of(thread, num_buckets)
        heads[bucket] += head
        texts[bucket] += text
    parts = {bucket: (bytes(heads[bucket]), bytes(texts[bucket])) for bucket in heads}
    return ParsedBatch(counts={str(name): count for name, count in counts.items()}, parts=parts)


def _packed(comment: Comment, thread: int, cleaner: Cleaner) -> tuple[bytes, bytes]:
    status, text = cleaner.clean(comment.author, comment.body)
    encoded = text.encode()
    parent, author = comment.parent_id, comment.author
    head = PACKED_HEAD.pack(
        thread,
        number_of(comment.id),
        NO_PARENT if parent is None else number_of(parent),
        comment.created,
        len(encoded),
        len(text),
        UNKNOWN if author == UNKNOWN_AUTHOR else zlib.crc32(author.encode(errors="replace")),
        status,
    )
    return head, encoded


def number_of(identity: str) -> int:
    """An id as a number, at least 1: ids count up in base 36, so that later ones are greater.

    An id that is not of this kind gets a number of 64 bits with the highest one set.

    >>> number_of("c13"), number_of("C13") > 2**63
    (15591, True)
    """
    if USUAL_ID.fullmatch(identity):
        return int(identity, 36)
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) | 1 << 63


def bucket_of(thread: int, num_buckets: int) -> int:
    """Where the comments of a thread go, all of them and from every file.

    >>> [bucket_of(thread, 4) for thread in range(1, 9)]
    [2, 0, 3, 1, 0, 2, 1, 3]
    """
    return (thread * GOLDEN_RATIO % WORD >> 32) * num_buckets >> 32
