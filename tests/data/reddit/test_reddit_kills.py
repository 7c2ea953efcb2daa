"""A preparation that is killed, at whatever moment, ends as if nothing had happened."""

import multiprocessing
import os
import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from reddit_dumps import Watcher, random_comments, write_dump

from staircase_attention.data.reddit import Limits, RedditSource, archives, preparation

SMALL_RUNS = Limits(run_bytes=3_000)


@pytest.fixture(autouse=True)
def _hasty_disk(monkeypatch):
    """Asking the disk takes most of the time, and matters only when the machine itself stops."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class KilledError(BaseException):
    """As a kill, it is not to be caught."""


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Two dumps of many batches and runs."""
    monkeypatch.setattr(archives, "BLOCK_BYTES", 700)
    monkeypatch.setattr(archives, "PIECE_BYTES", 200)
    monkeypatch.setattr(preparation, "FEWEST_BUCKETS", 5)
    comments = random_comments(0, 150)
    return [
        write_dump(tmp_path / "first.xz", comments[:90], "xz"),
        write_dump(tmp_path / "second.gz", comments[90:], "gz"),
    ]


def everything(dumps, folder, **choices):
    source = RedditSource(dumps, folder, limits=SMALL_RUNS, **{"num_workers": 1} | choices)
    return list(source.documents(None)), source.report


class Saboteur:
    """Kills at one of the moments when something is about to be made to last, or just has been."""

    def __init__(self, monkeypatch, moment):
        self.moment, self.passed = moment, 0
        monkeypatch.setattr(os, "fsync", self.dangerous(lambda descriptor: None))
        monkeypatch.setattr(Path, "replace", self.dangerous(Path.replace))

    def dangerous(self, function):
        def call(*arguments, **choices):
            self.pass_by()
            result = function(*arguments, **choices)
            self.pass_by()
            return result

        return call

    def pass_by(self):
        self.passed += 1
        if self.passed == self.moment:
            raise KilledError


def test_a_kill_at_any_moment_of_writing_changes_nothing(tmp_path, dumps, monkeypatch):
    expected = everything(dumps, tmp_path / "whole")
    for moment in range(1, 10_000, 2):
        folder = tmp_path / f"killed-{moment}"
        with monkeypatch.context() as patched:
            saboteur = Saboteur(patched, moment)
            with suppress(KilledError):
                everything(dumps, folder)
        if saboteur.passed < moment:
            break
        assert everything(dumps, folder) == expected
    assert moment > 50


def test_many_kills_of_one_preparation_change_nothing(tmp_path, dumps):
    expected = everything(dumps, tmp_path / "whole")

    def kill_now_and_then(num_told):
        if num_told % 13 == 0:
            raise KilledError

    watcher = Watcher(kill_now_and_then)
    found = None
    while found is None:
        with suppress(KilledError):
            found = everything(dumps, tmp_path / "killed", progress=watcher)
    assert found == expected
    assert watcher.num_told > 2 * 13


def test_work_that_is_done_is_not_done_again(tmp_path, dumps):
    everything(dumps, tmp_path / "work")
    files = sorted((tmp_path / "work").rglob("*.*"))
    times = [file.stat().st_mtime_ns for file in files]
    watcher = Watcher()
    everything(dumps, tmp_path / "work", progress=watcher)
    assert watcher.said == []
    assert [file.stat().st_mtime_ns for file in files] == times


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_process_leaves_no_workers_and_the_next_one_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(archives, "PIECE_BYTES", 2_000)
    comments = random_comments(1, 4_000, num_threads=300)
    dumps = [
        write_dump(tmp_path / "first.gz", comments[:2_000], "gz"),
        write_dump(tmp_path / "second.gz", comments[2_000:], "gz"),
    ]
    expected = everything(dumps, tmp_path / "whole")
    folder = tmp_path / "killed"
    for num_runs in (1, 30, 60):
        process = started(everything, dumps, folder, num_workers=2)
        wait_until(lambda wanted=num_runs: len(list(folder.glob("runs/*.json"))) >= wanted)
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert len(workers) == 2
        wait_until(lambda pids=workers: not any(is_running(pid) for pid in pids))
    runs_before = {file: file.stat().st_mtime_ns for file in folder.glob("runs/*.json")}
    assert everything(dumps, folder, num_workers=2) == expected
    assert all(file.stat().st_mtime_ns == moment for file, moment in runs_before.items())


def started(function, *arguments, **choices):
    """A process of its own, which need not import anything again."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=function, args=arguments, kwargs=choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def wait_until(condition, seconds=20):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


def children(pid):
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def is_running(pid):
    try:
        # A process that has ended and was not asked for its result is a zombie.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False
