"""What a preparation tells whoever watches."""

import sys
import time
from typing import Protocol

from staircase_attention.clock import clock


class Progress(Protocol):
    """Told how far a preparation is; bytes are those of the sources, as stored."""

    def begin(self, total_bytes: int, done_bytes: int) -> None:
        """Encoding begins, or goes on where it was stopped."""

    def advance(self, num_bytes: int, facts: dict[str, int]) -> None:
        """So much more has been read; facts are counts so far, of tokens and documents."""

    def say(self, text: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """Encoding is over, or stops."""


class Silent:
    """Says nothing."""

    def begin(self, total_bytes: int, done_bytes: int) -> None:
        """Nothing."""

    def advance(self, num_bytes: int, facts: dict[str, int]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines:
    """A plain line now and then, with the time that is left."""

    def __init__(self, *, every_seconds: float = 5.0) -> None:
        self._every = every_seconds

    def begin(self, total_bytes: int, done_bytes: int) -> None:
        """Start the clock."""
        self._total, self._first, self._done = total_bytes, done_bytes, done_bytes
        self._began = self._last = time.monotonic()

    def advance(self, num_bytes: int, facts: dict[str, int]) -> None:
        """Say how it stands, if that is long ago."""
        self._done += num_bytes
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        left = seconds_left(now - self._began, self._done - self._first, self._total - self._done)
        known = "".join(f"  {value:,} {name}" for name, value in facts.items())
        self.say(f"{100 * self._done / max(self._total, 1):.1f}%{known}  {clock(left)} left")

    def say(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Nothing."""


def seconds_left(seconds: float, num_done: int, num_left: int) -> float:
    """At the pace so far.

    >>> seconds_left(10.0, 200, 100)
    5.0
    """
    return seconds * num_left / max(num_done, 1)
