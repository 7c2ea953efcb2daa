"""Runs that take no time: `fake_staircase.py` in place of the command `staircase`."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import fake_staircase
import pytest

from staircase_attention.experiments import compare, figures, runner
from staircase_attention.training import run_folder


class FakeStaircase:
    """Lets runs do what a test wants, and knows what was called."""

    def __init__(self, patch, calls):
        self._patch, self._calls = patch, calls
        self.waiting = Path(f"{calls}.waiting")
        """There once a run waits to be stopped."""
        patch.setattr(runner, "STAIRCASE", [sys.executable, "-I", "-S", fake_staircase.__file__])
        patch.setattr(figures, "draw_figures", lambda *_, **__: {})
        patch.setenv("FAKE_CALLS", str(calls))
        patch.setenv("FAKE_FORMAT", str(run_folder.FORMAT))
        self.let(error=0.25)

    def let(self, error=0.25, trouble=()):
        """The error of seed 0, and what happens once in runs, by "name, seed"."""
        self._patch.setenv("FAKE_ERROR", str(error))
        self._patch.setenv("FAKE_TROUBLE", json.dumps(dict(trouble)))

    @property
    def processes(self):
        """Their numbers."""
        return [call[3] for call in self._read()]

    @property
    def calls(self):
        """Command, recipe's name and seed, in order."""
        return [tuple(call[:3]) for call in self._read()]

    def forget(self):
        self._calls.write_text("")

    def _read(self):
        text = self._calls.read_text() if self._calls.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


def wait_until(is_so):
    latest = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < latest
        time.sleep(0.01)


def send_when(waiting, *numbers):
    """Send signals to this process as soon as a run waits."""

    def send():
        wait_until(waiting.exists)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    threading.Thread(target=send, daemon=True).start()


def compare_fakes(recipe, folder, trouble):
    """A comparison, to be killed, whose calls are listed in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        FakeStaircase(patch, folder / "calls").let(trouble=trouble)
        compare([recipe], folder=folder)
