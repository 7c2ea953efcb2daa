"""Which split a thread belongs to: told by its name alone, so that splits never share one."""

import hashlib
from dataclasses import dataclass

from staircase_attention.checks import input_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Fractions:
    """How much is held out, as fractions of all threads; train is the rest.

    >>> Fractions(valid=0.5, test=0.5).split_of(12345) in ("valid", "test")
    True
    """

    valid: float = 0.01
    """For choosing models."""
    test: float = 0.01
    """For the last number."""
    seed: int = 0
    """Another seed holds out other threads."""

    def __post_init__(self) -> None:
        """Refuse what leaves less than nothing."""
        if self.valid < 0 or self.test < 0 or self.valid + self.test > 1:
            rule = "valid and test must be fractions, of at most 1 together"
            received = f"valid={self.valid}, test={self.test}"
            raise input_error(rule, received, "use for example valid=0.01, test=0.01")

    def split_of(self, thread: int) -> str:
        """The split of a thread, given by the number of its post.

        A thread keeps its split when further dumps are added, and when `valid` grows it moves
        from train only: the two are counted from opposite ends.
        """
        content = f"{self.seed}:{thread}".encode()
        place = int.from_bytes(hashlib.blake2b(content, digest_size=6).digest()) / 2**48
        if place < self.valid:
            return "valid"
        return "test" if place >= 1 - self.test else "train"
