"""How far a preparation is, and how long it will still take."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One phase of a preparation at one moment."""

    phase: str
    """'read the dumps' or 'rebuild the threads'."""
    done: int
    """Bytes of the dumps as stored, or groups of threads."""
    total: int
    """The same when the phase is over."""
    seconds_left: float | None
    """At the pace of this process; None before there is one."""

    def __str__(self) -> str:
        """One line.

        >>> print(Progress(phase="read the dumps", done=30, total=40, seconds_left=75.2))
        read the dumps: 75.0%, 0:01:15 left
        """
        percent = f"{100 * self.done / max(self.total, 1):.1f}%"
        if self.seconds_left is None:
            return f"{self.phase}: {percent}"
        minutes, seconds = divmod(round(self.seconds_left), 60)
        return f"{self.phase}: {percent}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


Listener = Callable[[Progress], None]
"""Who wants to know."""


class Clock:
    """Tells a listener about one phase; may be used by several threads.

    What was done before this process began is known and not timed, so that the time left is
    right from the start of a process that resumes.
    """

    def __init__(self, phase: str, total: int, listener: Listener | None) -> None:
        self.phase, self.total, self.listener = phase, total, listener
        self._done = 0
        self._timed = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def resume(self, amount: int) -> None:
        """Note what an earlier process did."""
        with self._lock:
            self._done += amount

    def advance(self, amount: int) -> None:
        """Note what has just been done, and tell."""
        with self._lock:
            self._done += amount
            self._timed += amount
            elapsed = time.monotonic() - self._start
            left = (self.total - self._done) * elapsed / self._timed if self._timed else None
            moment = Progress(
                phase=self.phase, done=self._done, total=self.total, seconds_left=left
            )
        if self.listener is not None:
            self.listener(moment)
