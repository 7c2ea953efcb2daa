"""Trainers for runs in processes of their own, which can only be given what a module has."""

import os
import signal
import time

from fake_training import FakeTrainer

from staircase_attention import training
from staircase_attention.training.run_folder import RunFolder

PATIENCE = 600.0
"""Seconds after which nobody waits any more."""


class WaitsAtUpdate:
    """A display that holds a run at an update until it is asked to stop, and says so."""

    def __init__(self, update, progress):
        self.update, self.progress = update, progress
        self.begin, self.say, self.end = progress.begin, progress.say, progress.end

    def advance(self, update, **facts):
        self.progress.advance(update, **facts)
        if update == self.update:
            self.say("waiting")
            latest = time.monotonic() + PATIENCE
            while not signal.getsignal(signal.SIGTERM).__self__.number:
                assert time.monotonic() < latest, "nobody asked"
                time.sleep(0.01)


def train_until_asked(recipe, folder, *, progress=None):
    return training.train(recipe, folder, progress=WaitsAtUpdate(3, progress))


def train_by_name(recipe, folder, *, progress=None):
    """What the name says; otherwise a run that takes no time."""
    progress.say(f"process {os.getpid()}")
    if recipe.name == "waits":
        return train_until_asked(recipe, folder, progress=progress)
    RunFolder(folder).create(recipe)
    if recipe.name == "raises":
        raise RuntimeError("CUDA out of\nmemory")
    return FakeTrainer().resume(folder)


LIGHT_WORKER = """
import os, signal, sys, time
from multiprocessing.connection import Connection

connection = Connection(int(sys.argv[1]))
connection.recv_bytes()
connection.send(("say", (f"process {{os.getpid()}}",), {{}}))
{death}
"""
"""A process that begins at once, as it reads no package, and does no run."""
