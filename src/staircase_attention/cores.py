"""The cores of this machine, and processes that end with the one that started them."""

import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

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


def in_background(function: Callable[[Task], Result], task: Task) -> Future[Result]:
    """The result of a call, by a thread that a process does not wait for when it ends."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function(task))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def in_order(
    pool: Executor | None,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    num_ahead: int | None = None,
) -> Iterator[Result]:
    """Results in the order of the tasks.

    `num_ahead` tasks are computed ahead, by default two per core; without a pool, none.
    """
    if pool is None:
        yield from map(function, tasks)
        return
    num_ahead = 2 * available_cores() if num_ahead is None else num_ahead
    pending: deque[Future[Result]] = deque()
    for task in tasks:
        pending.append(pool.submit(function, task))
        if len(pending) > num_ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


@contextmanager
def worker_pool(num_workers: int) -> Iterator[Executor | None]:
    """Worker processes. One worker is this process itself, without a pool."""
    if num_workers == 1:
        yield None
        return
    # Every command imports this module, and few need these.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Forked workers share the memory of all that is imported already.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start_worker)
    try:
        with warnings.catch_warnings():
            # The threads of the caller hold no lock that a worker needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(os.getpid).result()
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Exit with the parent: the workers of a killed process would wait for a task forever."""
    from multiprocessing import connection, parent_process

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        connection.wait([parent.sentinel])
        os._exit(1)

    # Ctrl-C reaches all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
