"""A preparation that is killed at any time ends with the same result."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from reddit_dumps import random_comments, write_dump
from small_corpora import killed, started, wait_until

from staircase_attention.data import reddit


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "sync", lambda: None)


class KilledError(BaseException):
    """Like a kill, it must not be caught."""


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Two dumps with many batches and commits."""
    monkeypatch.setattr(reddit, "BLOCK_BYTES", 1_500)
    monkeypatch.setattr(reddit, "BUFFER_BYTES", 1_000)
    monkeypatch.setattr(reddit, "FEWEST_PARTITIONS", 3)
    comments = random_comments(0, 100)
    return [
        write_dump(tmp_path / "first.xz", comments[:60], "xz"),
        write_dump(tmp_path / "second.gz", comments[60:], "gz"),
    ]


def everything(dumps, folder, **choices):
    prepared = reddit.RedditSource(dumps, folder, **{"num_workers": 1} | choices)
    return list(prepared.documents(None))


class Saboteur:
    """Kills before or after one of the moments at which a file changes."""

    def __init__(self, monkeypatch, moment):
        self.moment, self.passed = moment, 0
        monkeypatch.setattr(os, "sync", self.dangerous(lambda: None))
        monkeypatch.setattr(Path, "replace", self.dangerous(Path.replace))
        # Partitions are opened one after another, and what is written lasts when they are closed.
        monkeypatch.setattr(Path, "open", self.dangerous(Path.open, only="ab"))

    def dangerous(self, function, only=None):
        def call(*arguments, **choices):
            is_dangerous = only is None or only in arguments
            self.passed += is_dangerous
            if is_dangerous and self.passed == self.moment:
                raise KilledError
            return function(*arguments, **choices)

        return call


def test_a_kill_at_any_moment_of_writing_changes_nothing(tmp_path, dumps, monkeypatch):
    expected = everything(dumps, tmp_path / "whole")
    for moment in range(1, 10_000):
        folder = tmp_path / f"killed-{moment}"
        with monkeypatch.context() as patched:
            saboteur = Saboteur(patched, moment)
            with suppress(KilledError):
                everything(dumps, folder)
        if saboteur.passed < moment:
            break
        if '"is_done": false' in "".join(map(Path.read_text, folder.rglob("read.json"))):
            for path in folder.rglob("*.arrow"):
                path.write_bytes(path.read_bytes() + b"part of a batch")
        assert everything(dumps, folder) == expected
    assert moment > 25


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_process_leaves_no_workers_and_the_next_one_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(reddit, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(reddit, "BUFFER_BYTES", 5_000)
    comments = random_comments(1, 4_000, num_threads=300)
    dumps = [
        write_dump(tmp_path / "first.gz", comments[:2_000], "gz"),
        write_dump(tmp_path / "second.gz", comments[2_000:], "gz"),
    ]
    expected = everything(dumps, tmp_path / "whole")
    folder = tmp_path / "killed"

    def stored_bytes(folder):
        return sum(path.stat().st_size for path in folder.rglob("*.arrow"))

    half = stored_bytes(tmp_path / "whole") // 2
    process = started(everything, dumps, folder, num_workers=2)
    wait_until(lambda: stored_bytes(folder) >= half)
    workers = children(process.pid)
    killed(process)
    assert len(workers) == 2
    wait_until(lambda: not any(is_running(pid) for pid in workers))
    assert everything(dumps, folder, num_workers=2) == expected


def children(pid):
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def is_running(pid):
    try:
        # A process that has ended and was not asked for its result is a zombie.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False
