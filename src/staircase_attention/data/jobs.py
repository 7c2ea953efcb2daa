"""A pool of workers with results in order."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TypeVar

from staircase_attention.cores import available_cores

Task = TypeVar("Task")
Result = TypeVar("Result")


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
    # Ctrl-C reaches all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Without this, the workers of a killed process would wait for a task forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
