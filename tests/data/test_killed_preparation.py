"""A preparation that is killed anywhere goes on, and ends with the same bytes as without."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import compressed, contents, small_bpe, text_of, write_lines

from staircase_attention.data import (
    BytePairTraining,
    Corpus,
    HeldOut,
    InputError,
    Silent,
    Storing,
    encoding,
    pieces,
    prepare_text,
    shards,
)
from staircase_attention.data.checksums import sha256_of
from staircase_attention.data.readers import compression
from staircase_attention.data.tokenisers import byte_pair
from staircase_attention.data.workplace import Workplace

BPE = small_bpe()


class Killed(BaseException):
    """Like a kill, it is caught by nothing."""


class KilledAfter(Silent):
    """Dies when so many batches have been written."""

    def __init__(self, num_batches):
        self.num_left = num_batches

    def advance(self, num_bytes, facts):
        self.num_left -= 1
        if self.num_left < 0:
            raise Killed


def make_inputs(folder: Path) -> list[Path]:
    """Sources of several kinds, with a text that is longer than a batch among them."""
    folder.mkdir()
    write_lines(folder / "a.jsonl", [text_of(number, 3 + number % 50) for number in range(60)])
    (folder / "b").mkdir()
    (folder / "b" / "long.txt").write_text(text_of(100, 600))
    (folder / "b" / "short.txt").write_text(text_of(101, 10))
    (folder / "c.txt.xz").write_bytes(compressed(text_of(102, 500).encode(), "xz"))
    return [folder / "a.jsonl", folder / "b", folder / "c.txt.xz"]


def run(inputs, folder, *, progress=None, commit_seconds=0.0, tokeniser=BPE):
    return prepare_text(
        inputs,
        folder,
        weights=[1.5, 2, 1],
        tokeniser=tokeniser,
        held_out=HeldOut(valid=0.2, test=0.2),
        storing=Storing(shard_tokens=500, commit_seconds=commit_seconds),
        progress=progress,
    )


@pytest.fixture(scope="module")
def patch():
    """Pieces, blocks and batches so small that a short text has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "BLOCK_BYTES", 256)
        patch.setattr(pieces, "LONGEST_PIECE", 300)
        patch.setattr(encoding, "BATCH_BYTES", 400)
        patch.setattr(BPE, "_shortest_piece", 80)
        patch.setattr(byte_pair, "SHORTEST_PIECE", 80)
        yield patch


@pytest.fixture(scope="module")
def inputs(patch, tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs") / "inputs")


@pytest.fixture(scope="module")
def straight(inputs, tmp_path_factory):
    """What a preparation gives that nobody kills."""
    return contents(run(inputs, tmp_path_factory.mktemp("straight") / "corpus").folder)


@settings(max_examples=8)
@given(kills=st.lists(st.integers(0, 40), min_size=1, max_size=3), rarely=st.booleans())
def test_kills_anywhere_leave_no_trace(kills, rarely, inputs, straight, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "corpus"
    commit_seconds = 0.003 if rarely else 0.0
    for num_batches in kills:
        try:
            run(inputs, folder, progress=KilledAfter(num_batches), commit_seconds=commit_seconds)
        except Killed:
            assert not folder.exists()
            with pytest.raises(InputError, match="run its preparation again"):
                Corpus.open(folder)
    assert contents(run(inputs, folder).folder) == straight
    assert not folder.with_name("corpus.unfinished").exists()


class Counting(Silent):
    """Notes what was there at the beginning, and what was done from there on."""

    def begin(self, total_bytes, done_bytes):
        self.total_bytes, self.done_bytes = total_bytes, done_bytes
        self.num_batches = self.num_bytes = 0

    def advance(self, num_bytes, facts):
        self.num_batches += 1
        self.num_bytes += num_bytes


class CountingUntilKilled(Counting):
    def advance(self, num_bytes, facts):
        if self.num_batches == 30:
            raise Killed
        super().advance(num_bytes, facts)


def test_work_that_was_done_is_not_done_again(inputs, tmp_path):
    whole, killed, resumed = Counting(), CountingUntilKilled(), Counting()
    run(inputs, tmp_path / "whole", progress=whole)
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=killed)
    run(inputs, tmp_path / "corpus", progress=resumed)
    assert resumed.done_bytes == killed.num_bytes > 0
    assert resumed.done_bytes + resumed.num_bytes == whole.num_bytes == whole.total_bytes
    assert resumed.num_batches < whole.num_batches


def test_a_learnt_tokeniser_is_not_learnt_again(inputs, tmp_path, monkeypatch):
    training = BytePairTraining(vocab_size=280, sample_bytes=5_000)
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=KilledAfter(3), tokeniser=training)
    monkeypatch.setattr("staircase_attention.data.preparing.train_bpe", None)
    assert run(inputs, tmp_path / "corpus", tokeniser=training).vocab_size == 280


def test_checksums_are_not_computed_again(inputs, tmp_path, monkeypatch):
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=KilledAfter(3))
    seen = []
    monkeypatch.setattr(
        "staircase_attention.data.checksums.sha256_of",
        lambda path: seen.append(path) or sha256_of(path),
    )
    run(inputs, tmp_path / "corpus")
    assert seen == []


@pytest.mark.parametrize("moment", ["keep_tokeniser", "finish", "_publish"])
def test_a_kill_between_two_stages_leaves_no_trace(moment, inputs, straight, tmp_path, monkeypatch):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Workplace, moment, killed)
        with pytest.raises(Killed):
            run(inputs, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    assert contents(run(inputs, tmp_path / "corpus").folder) == straight


def test_a_full_disk_can_be_gone_on_from(inputs, straight, tmp_path, monkeypatch):
    writes = []

    def full(self, data):
        writes.append(data)
        if len(writes) > 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, data)

    original = shards.GrowingFile.write
    with monkeypatch.context() as patch:
        patch.setattr(shards.GrowingFile, "write", full)
        with pytest.raises(
            OSError, match=r"room on its disk, got none .*No space left.*; free some"
        ):
            run(inputs, tmp_path / "corpus")
    assert (tmp_path / "corpus.unfinished").is_dir()
    assert contents(run(inputs, tmp_path / "corpus").folder) == straight


def test_going_on_with_other_options_is_refused_and_loses_nothing(inputs, straight, tmp_path):
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=KilledAfter(20))
    with pytest.raises(InputError, match=r"corpus\.unfinished must be prepared from the same"):
        prepare_text(inputs, tmp_path / "corpus", tokeniser=BPE)
    assert contents(run(inputs, tmp_path / "corpus").folder) == straight


def test_going_on_with_a_changed_file_is_refused(tmp_path):
    inputs = make_inputs(tmp_path / "inputs")
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=KilledAfter(2))
    inputs[0].write_text(inputs[0].read_text().replace("cat", "dog"))
    with pytest.raises(InputError, match="from the same files with the same options as before"):
        run(inputs, tmp_path / "corpus")


def test_two_processes_do_not_prepare_the_same_corpus(inputs, tmp_path):
    class Another(Silent):
        def begin(self, total_bytes, done_bytes):
            with pytest.raises(InputError, match="by one process at a time, got two; wait"):
                run(inputs, tmp_path / "corpus")

    run(inputs, tmp_path / "corpus", progress=Another())


PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_killed_preparation as here
from staircase_attention.data import Silent, encoding, pieces
from staircase_attention.data.readers import compression

compression.BLOCK_BYTES, pieces.LONGEST_PIECE, encoding.BATCH_BYTES = 256, 300, 400
here.BPE._shortest_piece = 80

class Slow(Silent):
    def advance(self, num_bytes, facts):
        time.sleep(0.05)

inputs = [Path(path) for path in sys.argv[3:]]
here.run(inputs, Path(sys.argv[2]), progress=Slow())
"""


def test_a_process_killed_by_the_system_leaves_no_trace(inputs, straight, tmp_path):
    folder = tmp_path / "corpus"
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, here, str(folder), *map(str, inputs)]
    process = subprocess.Popen(command)
    journal = tmp_path / "corpus.unfinished" / "journal.json"
    deadline = time.monotonic() + 60
    while not journal.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.4)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not folder.exists()
    assert journal.exists()
    assert contents(run(inputs, folder).folder) == straight
