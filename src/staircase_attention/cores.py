"""The cores of this machine, and processes that end with the one that started them."""

import os
import signal
import threading

# Set by a comparison for its runs, whose standard input ends when it dies.
STOP_AT_END_OF_INPUT = "STAIRCASE_STOP_AT_END_OF_INPUT"


def available_cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def watch_input() -> None:
    """Ask this process to stop once nobody can write to its standard input, if that is wanted."""

    def watch() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if STOP_AT_END_OF_INPUT in os.environ:
        threading.Thread(target=watch, daemon=True).start()
