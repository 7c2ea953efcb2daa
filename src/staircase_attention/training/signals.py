"""Ctrl-C, SIGTERM and a lost terminal as a wish that is granted between two updates."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequested(Exception):  # noqa: N818
    """The run was asked to stop, and has saved itself."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_status = 128 + number


class Wish:
    """The signal that asked the run to stop, if one has."""

    def __init__(self) -> None:
        self.number = 0

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal; a second Ctrl-C stops at once."""
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def wishes_to_stop() -> Iterator[Wish]:
    """While this lasts, Ctrl-C, SIGTERM and SIGHUP are remembered instead of obeyed."""
    wish = Wish()
    caught = [signal.SIGINT, signal.SIGTERM]
    # Under nohup a run goes on when its terminal is gone.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    before = [signal.signal(number, wish.take) for number in caught]
    try:
        yield wish
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)
