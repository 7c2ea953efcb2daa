"""A preparation that is killed anywhere resumes, and ends with the same bytes as without."""

import errno
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import (
    SOME,
    RecordedProgress,
    compressed,
    contents,
    killed,
    started,
    storing,
    text_of,
    wait_until,
    write_lines,
)

from staircase_attention.data import (
    BytePairTraining,
    Corpus,
    InputError,
    compression,
    documents,
    preparation,
    prepare_text,
)
from staircase_attention.data.writer import CorpusWriter, WorkFolder

TRAINING = BytePairTraining(vocab_size=280, sample_bytes=5_000)


class Killed(BaseException):
    """Like a kill, it is caught by nothing."""


def kill(*_):
    raise Killed


def killed_after(num_batches):
    """Dies when this many batches have been written."""
    return RecordedProgress(lambda number: number > num_batches and kill())


def make_inputs(folder: Path) -> list[Path]:
    """Sources of several formats, with a text that is longer than a batch among them."""
    folder.mkdir()
    write_lines(folder / "a.jsonl", [text_of(number, 3 + number % 50) for number in range(60)])
    (folder / "b").mkdir()
    (folder / "b" / "long.txt").write_text(text_of(100, 600))
    (folder / "b" / "short.txt").write_text(text_of(101, 10))
    (folder / "c.txt.xz").write_bytes(compressed(text_of(102, 500).encode(), "xz"))
    return [folder / "a.jsonl", folder / "b", folder / "c.txt.xz"]


def make_all_small(patch):
    """Pieces, blocks and batches so small that a short text has many."""
    patch.setattr(compression, "BLOCK_BYTES", 256)
    patch.setattr(documents, "LONGEST_PIECE", 160)
    patch.setattr(preparation, "BATCH_BYTES", 400)


def run(inputs, folder, *, progress=None, commit_seconds=0.0, tokeniser=TRAINING):
    options = {"weights": [1.5, 2, 1], "tokeniser": tokeniser, "held_out": SOME}
    with storing(shard_tokens=200, commit_seconds=commit_seconds):
        return prepare_text(inputs, folder, progress=progress, **options)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        make_all_small(patch)
        yield make_inputs(tmp_path_factory.mktemp("inputs") / "inputs")


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
            run(inputs, folder, progress=killed_after(num_batches), commit_seconds=commit_seconds)
        except Killed:
            assert not folder.exists()
            with pytest.raises(InputError, match="run its preparation again"):
                Corpus.open(folder)
    assert contents(run(inputs, folder).folder) == straight
    assert not folder.with_name("corpus.unfinished").exists()


def test_work_that_was_done_is_not_done_again(inputs, tmp_path, monkeypatch):
    interrupted, resumed = killed_after(30), RecordedProgress()
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=interrupted)
    monkeypatch.setattr(preparation.tokenisers, "train_bpe", None)
    run(inputs, tmp_path / "corpus", progress=resumed)
    _, total_bytes, done_bytes = resumed.reports[0]
    # The last batch was reported, but not committed.
    assert 0 < interrupted.reports[-2][1] == done_bytes
    assert resumed.reports[-1][1] == total_bytes


@pytest.mark.parametrize(
    ("owner", "moment"),
    [(preparation, "save_folder"), (WorkFolder, "finish"), (WorkFolder, "_publish")],
)
def test_a_kill_between_two_stages_leaves_no_trace(
    owner, moment, inputs, straight, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, kill)
        with pytest.raises(Killed):
            run(inputs, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    assert contents(run(inputs, tmp_path / "corpus").folder) == straight


def test_a_full_disk_does_not_end_a_preparation(inputs, straight, tmp_path, monkeypatch):
    calls = []

    def full(self, pieces, encoded):
        calls.append(pieces)
        original(self, pieces, encoded)
        if len(calls) > 20:
            raise OSError(errno.ENOSPC, "No space left on device")

    original = CorpusWriter.add
    with monkeypatch.context() as patch:
        patch.setattr(CorpusWriter, "add", full)
        with pytest.raises(
            OSError, match=r"space on its disk, got none .*No space left.*; free some"
        ):
            run(inputs, tmp_path / "corpus")
    assert (tmp_path / "corpus.unfinished").is_dir()
    assert contents(run(inputs, tmp_path / "corpus").folder) == straight


def test_resuming_with_other_options_or_changed_files_is_refused_and_loses_nothing(
    straight, tmp_path, monkeypatch
):
    inputs = make_inputs(tmp_path / "inputs")
    with pytest.raises(Killed):
        run(inputs, tmp_path / "corpus", progress=killed_after(20))
    with pytest.raises(InputError, match=r"corpus\.unfinished must be prepared from the same"):
        run(inputs, tmp_path / "corpus", tokeniser="bytes")
    before = inputs[0].read_text()
    inputs[0].write_text(before.replace("cat", "dog"))
    with pytest.raises(InputError, match="from the same files with the same options as before"):
        run(inputs, tmp_path / "corpus")
    inputs[0].write_text(before)
    found = contents(run(inputs, tmp_path / "corpus").folder)
    # Only the names of the inputs differ.
    named = {file: straight[file] for file in ("manifest.json", "checksums.json")}
    assert found | named == straight


def test_two_processes_do_not_prepare_the_same_corpus(inputs, tmp_path):
    def prepare_again(_):
        with pytest.raises(ValueError, match=r"by one process at a time, got two for .*; wait"):
            run(inputs, tmp_path / "corpus")

    run(inputs, tmp_path / "corpus", progress=RecordedProgress(prepare_again))


def test_a_process_killed_by_the_system_leaves_no_trace(inputs, straight, tmp_path):
    folder = tmp_path / "corpus"
    slow = RecordedProgress(lambda _: time.sleep(0.05))
    process = started(run, inputs, folder, progress=slow)
    wait_until((tmp_path / "corpus.unfinished" / "journal.json").exists)
    time.sleep(0.2)
    killed(process)
    assert not folder.exists()
    assert contents(run(inputs, folder).folder) == straight


def test_a_preparation_writes_to_nothing_that_a_link_leads_to(tmp_path):
    inputs, notes = make_inputs(tmp_path / "in"), tmp_path / "notes"
    notes.write_text("mine")
    (tmp_path / "corpus.unfinished").mkdir()
    (tmp_path / "corpus.unfinished" / "train-00000.bin").symlink_to(notes)
    with pytest.raises(InputError, match=r"must be a regular one, got .*bin, a link; replace it"):
        prepare_text(inputs, tmp_path / "corpus", tokeniser=TRAINING, held_out=SOME)
    assert notes.read_text() == "mine"
