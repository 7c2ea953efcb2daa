"""A run in a process of its own, as seen from that process."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import torch

from staircase_attention.experiments.run_process import CAUGHT, DONE, Job
from staircase_attention.training import StopRequested

EVERY_SECONDS = 0.2
"""How often it is told that updates are done."""
INTERRUPTED = 128 + signal.SIGINT


class Relay:
    """A display that passes on what it is told. Updates are told now and then only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._facts: dict[str, float] = {}
        self._update: int | None = None
        """An update that has not been told yet."""
        self._last = 0.0

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Pass it on."""
        self.send("begin", name, update, num_updates)

    def advance(self, update: int, **facts: float) -> None:
        """Pass it on, if the last one is long ago."""
        self._facts |= facts
        self._update = update
        if time.monotonic() - self._last >= EVERY_SECONDS:
            self._tell()

    def say(self, text: str) -> None:
        """Pass it on."""
        self.send("say", text)

    def end(self) -> None:
        """Pass it on, after the latest update."""
        self._tell()
        self.send("end")

    def send(self, word: str, *values: Any, **facts: float) -> None:  # noqa: ANN401
        """Say something, if there is anyone to hear it."""
        with suppress(OSError):
            self._connection.send((word, values, facts))

    def _tell(self) -> None:
        if self._update is not None:
            self.send("advance", self._update, **self._facts)
            self._update, self._last = None, time.monotonic()


def main() -> None:
    """Carry out the run that comes through a connection; its number is on the command line."""
    place = int(sys.argv[1])
    os.set_inheritable(place, False)
    connection = Connection(place)
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):
        status = _carry_out(connection.recv(), connection)
    _hear_no_more()
    for number in CAUGHT:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(status)


def _carry_out(job: Job, connection: Connection) -> int:
    """Do the work; the exit status."""
    sys.argv = list(job.command)
    if job.num_threads is not None:
        torch.set_num_threads(job.num_threads)
    for number in CAUGHT:
        signal.signal(number, _give_up)
    threading.Thread(target=_stop_when_alone, args=[connection], daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
    relay = Relay(connection)
    try:
        job.run.carry_out(job.train, job.resume, relay)
    except StopRequested as stop:
        return stop.exit_status
    relay.send(DONE)
    return 0


def _give_up(_number: int, _frame: FrameType | None) -> None:
    """Before the trainer takes the signals over there is nothing to save."""
    _hear_no_more()
    raise KeyboardInterrupt


def _hear_no_more() -> None:
    """Let further signals pass; those already here may not be ignored, only taken."""
    for number in CAUGHT:
        signal.signal(number, lambda *_: None)


def _stop_when_alone(connection: Connection) -> None:
    """Ask the run to stop when the program that wanted it is gone."""
    with suppress(EOFError, OSError):
        connection.recv()
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
