"""After a power loss, whatever was not synced: an earlier state or the present one, and whole."""

import json
import random
import shutil
from itertools import islice
from unittest.mock import Mock

import pytest
from small_corpora import SOME, contents, storing, text_of, write_lines
from small_runs import Interrupting, KilledError, final_bytes
from small_streams import lstm
from text_runs import make_corpus, text_recipe

from power_loss import Disk
from staircase_attention.data import ByteTokeniser, Corpus, load_tokeniser, prepare_text, writer
from staircase_attention.data.corpus import unfinished_folder
from staircase_attention.files import sha256_of
from staircase_attention.generation import load_stream, save_stream, stream
from staircase_attention.training import resume, train
from staircase_attention.training.checkpoint import CheckpointFolder
from staircase_attention.training.run_folder import RunFolder


def crashes(disk, tmp_path, count):
    """Folders that power losses at random moments may leave, and what had been promised."""
    draw = random.Random(count)
    for number in range(count):
        moment = draw.randint(0, len(disk.operations))
        target = tmp_path / f"crash-{number}"
        disk.write_what_is_left(moment, draw, target)
        yield target, disk.promised(moment)
        shutil.rmtree(target)


def announced(disk, function, describe):
    """A function after which something is promised."""

    def call(*arguments, **options):
        result = function(*arguments, **options)
        disk.done(describe(*arguments))
        return result

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The disk of a run that was killed, resumed and extended; recipe, folder, final bytes."""
    folder = tmp_path_factory.mktemp("run")
    budget = {"training__num_updates": 8, "training__evaluate_every": 4}
    recipe = text_recipe(make_corpus(folder), **budget, training__checkpoint_every=2)
    disk = Disk(folder / "disk")
    disk.root.mkdir()
    run = disk.root / "some" / "run"
    with pytest.MonkeyPatch.context() as patch, disk.recording(patch):
        # Nothing depends on what TensorBoard writes in its own time.
        patch.setattr("staircase_attention.training.run_folder.SummaryWriter", Mock())
        # Saving goes on in the background; a checkpoint is promised when it is published.
        publish = announced(disk, CheckpointFolder._publish, lambda _, name, *rest: name)
        patch.setattr(CheckpointFolder, "_publish", publish)
        with pytest.raises(KilledError):
            train(recipe, run, progress=Interrupting(5))
        ends = {}
        for num_updates in (None, 10):
            result = resume(run, num_updates=num_updates)
            disk.done(f"result of {result.num_updates}")
            ends[result.num_updates] = final_bytes(run)
    return disk, recipe, run, ends


def check_run(folder, promised, whole):
    """Whether a run can be resumed from what it had saved."""
    run = RunFolder(folder)
    if run.is_unbegun:
        assert not promised
        return
    num_updates = run.read_config()["recipe"]["training"]["num_updates"]
    assert load_tokeniser(run.tokeniser).vocab_size == 257
    if run.is_finished:
        assert run.read_result().num_updates == num_updates
    assert "result of 10" not in promised or (run.is_finished and num_updates == 10)
    names = run.checkpoints.names()
    checkpoints = {name: run.checkpoints.read(name).trainer for name in names}
    saved = [one for one in promised if not isinstance(one, str)]
    assert not saved or names[-1] >= saved[-1]
    if names:
        latest = checkpoints[names[-1]]
        best = run.checkpoints.notes()[names[-1]]["best"]
        assert best is None or best in checkpoints
        num_bytes = latest["metrics_bytes"]
        assert (run.metrics.read_bytes() if num_bytes else b"")[:num_bytes] == whole[:num_bytes]


def test_a_run_resumes_from_its_latest_checkpoint_with_all_metrics(run, tmp_path):
    disk, _, folder, ends = run
    for crash, promised in crashes(disk, tmp_path, 400):
        check_run(crash / folder.relative_to(disk.root), promised, ends[10][1])


def test_a_run_ends_the_same_and_what_was_unfinished_is_gone(run, tmp_path):
    disk, recipe, folder, ends = run
    for crash, _ in crashes(disk, tmp_path, 3):
        left = crash / folder.relative_to(disk.root)
        is_unbegun = RunFolder(left).is_unbegun
        result = train(recipe, left) if is_unbegun else resume(left)
        assert final_bytes(left) == ends[result.num_updates]
        assert not list(left.rglob(".*"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The disk of a preparation, its source and its corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    source = write_lines(folder / "raw.jsonl", [text_of(n, 3 + n % 20) for n in range(40)])
    disk = Disk(folder / "disk")
    disk.root.mkdir()
    with pytest.MonkeyPatch.context() as patch, disk.recording(patch):
        patch.setattr("staircase_attention.data.preparation.BATCH_BYTES", 400)
        durable = announced(disk, writer.CorpusWriter.make_durable, lambda one, _: dict(one.facts))
        patch.setattr(writer.CorpusWriter, "make_durable", durable)
        prepare_again(source, disk.root / "corpus")
        disk.done("corpus")
    return disk, source


def prepare_again(source, folder):
    with storing(shard_tokens=1000, commit_seconds=0.0):
        return prepare_text([source], folder, tokeniser=ByteTokeniser(), held_out=SOME)


def check_corpus(folder, promised, whole):
    """Whether a corpus is whole, or can be continued from all that had been saved."""
    if folder.exists():
        corpus = Corpus.open(folder)
        corpus.verify()
        assert contents(folder) == contents(whole)
        return
    assert "corpus" not in promised
    work = unfinished_folder(folder)
    tokeniser = load_tokeniser(work / "tokeniser") if (work / "tokeniser").exists() else None
    journal = work / writer.JOURNAL
    if (work / "manifest.json").exists():
        for path in whole.glob("*.bin"):
            assert sha256_of(work / path.name) == sha256_of(path)
        return
    assert journal.exists() or not promised
    if not journal.exists():
        return
    before = json.loads(journal.read_text())
    resumed = writer.CorpusWriter(work, tokeniser, num_sources=1, shard_tokens=1000)
    resumed.close()
    assert not promised or resumed.facts["tokens"] >= promised[-1]["tokens"]
    for split, state in before["splits"].items():
        for record in state["shards"]:
            assert sha256_of(work / record["file"]) == record["sha256"]
        last = f"{split}-{len(state['shards']):05d}.bin"
        if state["num_open_tokens"]:
            content = (work / last).read_bytes()
            assert content == (whole / last).read_bytes()[: len(content)]


def test_a_corpus_is_whole_or_continues_from_its_latest_durable_point(corpus, tmp_path):
    disk, _ = corpus
    for crash, promised in crashes(disk, tmp_path, 400):
        check_corpus(crash / "corpus", promised, disk.root / "corpus")


def test_a_preparation_ends_the_same_and_what_was_unfinished_is_gone(corpus, tmp_path):
    disk, source = corpus
    for crash, _ in crashes(disk, tmp_path, 20):
        prepare_again(source, crash / "corpus")
        assert contents(crash / "corpus") == contents(disk.root / "corpus")
        assert [entry.name for entry in crash.iterdir()] == ["corpus"]


def test_a_saved_stream_is_the_latest_or_the_one_before(tmp_path):
    model, disk = lstm(), Disk(tmp_path / "disk")
    disk.root.mkdir()
    tokens, path = stream(model, [[1, 2]], max_tokens=30), disk.root / "stream"
    with pytest.MonkeyPatch.context() as patch, disk.recording(patch):
        for _ in range(5):
            save_stream(tokens, path)
            disk.done(path.read_bytes())
            list(islice(tokens, 4))
    saved = disk.promised(None)
    for crash, promised in crashes(disk, tmp_path, 300):
        assert not promised or (crash / "stream").exists()
        if (crash / "stream").exists():
            load_stream(crash / "stream", model)
            found = saved.index((crash / "stream").read_bytes())
            assert found >= len(promised) - 1
