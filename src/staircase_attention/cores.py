"""The cores of this machine, and processes that end with the one that started them."""

import os
import signal
import threading
import time
from pathlib import Path

# Set by a comparison for its runs, whose standard input ends when it dies.
STOP_AT_END_OF_INPUT = "STAIRCASE_STOP_AT_END_OF_INPUT"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(_allowed()) or os.cpu_count() or 1


def idle_cores(seconds: float = 0.2) -> float:
    """How many of the cores that this process may use are idle now; all, if that is not known."""
    # Not the load average, which still shows for a minute what has ended.
    before = _idle_ticks()
    time.sleep(seconds)
    after = _idle_ticks()
    if not before or not any(after.values()):
        return float(available_cores())
    ticks = sum(after[core] - before[core] for core in before)
    return min(float(len(before)), ticks / (seconds * os.sysconf("SC_CLK_TCK")))


def _allowed() -> set[int]:
    allowed = getattr(os, "sched_getaffinity", None)
    return allowed(0) if allowed else set()


def _idle_ticks() -> dict[int, int]:
    """Clock ticks so far in which each allowed core was idle; nothing outside Linux."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return {}
    # Of a core: cpuN, then ticks in user mode, niced, in the kernel, idle, waiting for a disk.
    cores = {line[0]: int(line[4]) + int(line[5]) for line in lines if line[0][3:].isdecimal()}
    return {core: cores[name] for core in _allowed() if (name := f"cpu{core}") in cores}


def watch_input() -> None:
    """Ask this process to stop once nobody can write to its standard input, if that is wanted."""

    def watch() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if STOP_AT_END_OF_INPUT in os.environ:
        threading.Thread(target=watch, daemon=True).start()
