"""Reports on a preparation while it runs."""

import sys
import time

from staircase_attention.clock import clock


class PreparationProgress:
    """Receives reports, and ignores them. Bytes are those of the sources, as stored."""

    def begin(self, total_bytes: int, done_bytes: int) -> None:
        """Reading starts, or resumes after `done_bytes`."""

    def advance(self, num_bytes: int, facts: dict[str, int]) -> None:
        """Another `num_bytes` have been read; facts are counts so far, of tokens and documents."""

    def say(self, text: str) -> None:
        """A message for the user."""

    def end(self) -> None:
        """Reading ends, or stops on an error."""


class ProgressLines(PreparationProgress):
    """Prints a line to stderr every few seconds, with the time left."""

    def __init__(self, *, every_seconds: float = 5.0) -> None:
        self._every = every_seconds

    def begin(self, total_bytes: int, done_bytes: int) -> None:
        """Start the clock."""
        self._total, self._first, self._done = total_bytes, done_bytes, done_bytes
        self._started = self._last = time.monotonic()

    def advance(self, num_bytes: int, facts: dict[str, int]) -> None:
        """Print a line if the last one is old enough."""
        self._done += num_bytes
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        bytes_per_second = max(self._done - self._first, 1) / (now - self._started)
        left = clock((self._total - self._done) / bytes_per_second)
        counts = "".join(f"  {value:,} {name}" for name, value in facts.items())
        self.say(f"{100 * self._done / max(self._total, 1):.1f}%{counts}  {left} left")

    def say(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
