"""Which split a document belongs to, and which documents a weight keeps: told by hashes alone."""

import hashlib
from dataclasses import dataclass

from staircase_attention.checks import input_error

SPLITS = ("train", "valid", "test")
HEAD_BYTES = 1 << 16
"""Only so much of a document is hashed; what begins alike for so long is taken to be the same."""
DIGEST_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How much is held out, as fractions of all documents.

    The split of a document depends on its text alone: on no seed, no order and no other document.
    So a document that occurs twice is in one split, and stays there when others are added.
    """

    valid: float = 0.005
    """For choosing between models; 0 for no such split."""
    test: float = 0.005
    """For the final number; 0 for no such split."""

    def __post_init__(self) -> None:
        """Refuse what leaves nothing for training."""
        # Asked for what must hold: all comparisons with a number that is none are false.
        if not (self.valid >= 0 and self.test >= 0 and self.valid + self.test < 1):
            rule = "valid and test must be fractions of at least 0, below 1 together"
            received = f"valid={self.valid}, test={self.test}"
            raise input_error(rule, received, "use for example valid=0.005, test=0.005")

    def split_of(self, data: bytes) -> str:
        """The split of a document, by its beginning.

        >>> HeldOut(valid=0.5, test=0.4).split_of(b"It was a bright cold day in April")
        'test'
        """
        place = hashed(data, "split")
        if place < self.valid:
            return "valid"
        return "test" if place < self.valid + self.test else "train"

    @property
    def names(self) -> tuple[str, ...]:
        """The splits that there must be."""
        shares = {"train": 1.0, "valid": self.valid, "test": self.test}
        return tuple(name for name in SPLITS if shares[name] > 0)


def hashed(data: bytes, purpose: str) -> float:
    """A number from 0 up to 1 that looks random, always the same for the same beginning.

    Numbers for different purposes have nothing to do with one another.
    """
    digest = hashlib.blake2b(
        data[:HEAD_BYTES], digest_size=DIGEST_BYTES, person=purpose.encode()
    ).digest()
    # 53 bits are as many as a float holds exactly: 1.0 itself is never reached.
    return (int.from_bytes(digest) >> 11) / 2**53
