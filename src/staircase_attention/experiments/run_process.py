"""A run in a process of its own, as seen from the process that started it."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from staircase_attention.experiments.planned_run import PlannedRun, Resume, Train

CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""The signals by which a run is asked to stop."""
STOPPED = tuple(128 + number for number in CAUGHT)
"""Exit statuses of a process whose run was asked to stop, and has."""
DONE = "done"
"""The last word of a process whose run was carried out, well or not."""
# A module run by its name would be in the program twice, as the package has read it already.
START = "from staircase_attention.experiments.run_worker import main; main()"

Message = tuple[str, tuple[Any, ...], dict[str, Any]]
"""What is called of a display, and with what; or that the run is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a process is told that has a run to carry out."""

    run: PlannedRun
    train: Train
    resume: Resume
    num_threads: int | None
    """For PyTorch; as it likes where None."""
    command: tuple[str, ...]
    """By which the whole was started, for the run's records."""


class RunProcess:
    """A run under way in another process.

    What the process has to say comes through a connection, whose end is the end of the process. The
    other way round too: when this program dies, the run saves itself and stops.
    """

    def __init__(self, job: Job) -> None:
        self.run = job.run
        self.was_trained = job.run.is_trained
        """Whether there was nothing left to do but to score it."""
        self.is_done = False
        """Whether the run was carried out, well or not."""
        self.connection, theirs = Pipe()
        self.process = _start(theirs)
        # A process that has died already is noticed where all deaths are.
        with suppress(OSError):
            self.connection.send(job)

    def messages(self) -> Iterator[Message | None]:
        """What has been said since, without waiting; None at the end of the process."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if message[0] == DONE:
                    self.is_done = True
                else:
                    yield message
        except (EOFError, OSError):
            yield None

    def ask_to_stop(self) -> None:
        """Let the run save itself and stop."""
        self.process.terminate()

    def kill(self) -> None:
        """Stop at once; the run's latest checkpoint is whole all the same."""
        self.process.kill()

    def close(self) -> None:
        """Wait for the end; a run still under way saves itself and stops."""
        self.connection.close()
        self.process.wait()

    def death(self, *, is_stopping: bool) -> str | None:
        """What the process died of, in words; None where it ended as it should."""
        status = self.process.wait()
        was_asked = is_stopping and (status in STOPPED or -status in CAUGHT)
        if self.is_done or self.run.is_over or was_asked:
            return None
        if status < 0:
            hint = ", perhaps for want of memory" if status == -signal.SIGKILL else ""
            return f"its process was killed by {signal.Signals(-status).name}{hint}"
        if status in STOPPED:
            return f"it was stopped by a {signal.Signals(status - 128).name} from elsewhere, saved"
        return f"its process ended with exit status {status} without a word"


def check_portable(**functions: Train | Resume) -> None:
    """Refuse functions that another process could not find."""
    for name, function in functions.items():
        try:
            is_found = b"__main__" not in pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError):
            is_found = False
        if not is_found:
            raise ValueError(
                f"with more than one job, {name} must be at the top level of a module, got "
                f"{function!r}; move it there, or leave jobs at 1"
            )


def _start(connection: Connection) -> subprocess.Popen[bytes]:
    """A new Python that has the connection, and looks for modules where this one does."""
    place = connection.fileno()
    folders = [folder or os.getcwd() for folder in sys.path]
    # A signal that comes before the process can take it is kept for it until it can.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", START, str(place)],
            stdin=subprocess.DEVNULL,
            pass_fds=[place],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.close()
