"""Processes that work on one task after another; results come in the order of the tasks."""

import gc
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

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """As many processes as asked for; with one, everything is done here."""

    def __init__(self, num_workers: int, pool: Executor | None) -> None:
        self.num_workers = num_workers
        self._pool = pool

    def in_order(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], num_ahead: int
    ) -> Iterator[Result]:
        """Results one by one; at most `num_ahead` tasks are taken before their turn."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        pending: deque[Future[Result]] = deque()
        for task in tasks:
            pending.append(self._pool.submit(function, task))
            if len(pending) > num_ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def workers(num_workers: int) -> Iterator[Workers]:
    """Processes that end when the block does, and when this process is killed."""
    if num_workers == 1:
        yield Workers(1, None)
        return
    # Forked, a worker shares all that was imported; torch alone would be 200 MB in each.
    method = "fork" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_begin)
    try:
        with warnings.catch_warnings():
            # Threads of a caller hold no lock that a worker takes: it only parses and counts.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(os.getpid).result()
        yield Workers(num_workers, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    # Ctrl-C reaches all processes, and the parent is the one that tidies up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What was shared at the fork stays shared: the collector does not touch it any more.
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
