"""What stands in a run folder, whoever left it, and what a run does about it."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
from small_runs import Interrupting, small_recipe

from staircase_attention import files
from staircase_attention.training import (
    default_folder,
    load_run,
    pack,
    resume,
    train,
)
from staircase_attention.training.checkpoint import CheckpointFolder
from staircase_attention.training.learner import Learner
from staircase_attention.training.run_folder import RunFolder
from staircase_attention.training.trainer import Trainer


def test_a_folder_left_by_a_run_that_was_killed_while_it_started_is_used_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.started(small_recipe()):
        assert not folder.is_unbegun
    folder.config.unlink()
    assert not folder.is_unbegun, "somebody else may have written the rest"
    folder.starting.touch()
    assert folder.is_unbegun
    # Of a run with another recipe, which had one.
    (tmp_path / "run" / ".tokeniser.partial").mkdir()
    assert train(small_recipe(), tmp_path / "run").status == "finished"


def test_two_runs_do_not_work_in_one_folder(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with RunFolder(run).locked():
        with pytest.raises(ValueError, match="one process at a time"):
            train(small_recipe(), run)
        assert list(run.iterdir()) == []
    train(small_recipe(), run)
    (run / "result.json").unlink()
    with RunFolder(run).locked(), pytest.raises(ValueError, match="one process at a time"):
        resume(run)
    assert resume(run).status == "finished"


@pytest.mark.parametrize("is_there", [False, True], ids=["a new folder", "an empty one"])
def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_run(tmp_path, is_there):
    if is_there:
        (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="enough different episodes"):
        train(small_recipe(task__options__length=2), tmp_path / "run")
    assert list(tmp_path.rglob("*")) == ([tmp_path / "run"] if is_there else [])
    assert train(small_recipe(), tmp_path / "run").status == "finished"


@pytest.mark.parametrize(
    "name", ["checkpoints/mine.pt", "tokeniser/mine.txt", "environment.json", "mine.partial"]
)
def test_what_somebody_has_under_a_name_of_ours_is_left_alone(tmp_path, name):
    mine = tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(ValueError, match="a new run needs a folder that is new or empty"):
        train(small_recipe(), tmp_path / "run")
    assert mine.read_text() == "precious"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_no_two_runs_are_given_the_same_folder(tmp_path):
    names = [default_folder(small_recipe(), tmp_path) for _ in range(3)]
    assert names == [tmp_path / "small" / number for number in ("001", "002", "003")]
    assert train(small_recipe(), names[1]).status == "finished"


def test_a_run_whose_folder_was_removed_does_not_bring_it_back(tmp_path, monkeypatch):
    # TensorBoard's thread would fail in its own time.
    monkeypatch.setattr("staircase_attention.training.run_folder.SummaryWriter", Mock())
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match=str(folder)):
        train(small_recipe(), folder, progress=Interrupting(3, lambda: shutil.rmtree(folder)))
    assert not folder.exists()


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "gone"])
def test_a_best_checkpoint_that_is_lost_does_not_keep_a_run_from_its_end(
    tmp_path, monkeypatch, is_damaged
):
    ranks = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(
        "staircase_attention.training.dataset.TaskData.rank", lambda *_: (next(ranks),)
    )
    assert train(small_recipe(), tmp_path / "run").best_update == 5
    (tmp_path / "run" / "result.json").unlink()
    best = tmp_path / "run" / "checkpoints" / "update-00000005"
    (best / "weights.safetensors").write_bytes(b"") if is_damaged else shutil.rmtree(best)
    display = Interrupting()
    result = resume(tmp_path / "run", progress=display)
    assert (result.status, result.best_update) == ("finished", 12)
    assert any("damaged checkpoint" in line and "update 12" in line for line in display.said)
    assert load_run(tmp_path / "run").update == 12


def test_the_best_weights_are_scored_though_their_optimiser_state_is_damaged(tmp_path, monkeypatch):
    ranks = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(
        "staircase_attention.training.dataset.TaskData.rank", lambda *_: (next(ranks),)
    )
    before = train(small_recipe(), tmp_path)
    (tmp_path / "result.json").unlink()
    (tmp_path / "checkpoints" / "update-00000005" / "optimizer.safetensors").write_bytes(b"")
    assert resume(tmp_path) == before
    assert load_run(tmp_path).update == before.best_update == 5


def test_a_damaged_result_is_refused_and_can_be_made_again(small_run, tmp_path):
    result = resume(small_run)
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    odd = json.dumps(asdict(result) | {"test": {"loss": 1.0, "error": "x"}})
    for content in ("", "{}", "[]", '{"status": ', odd):
        (run / "result.json").write_text(content)
        for use in (resume, lambda run: pack(run, tmp_path / "packed")):
            with pytest.raises(ValueError, match=r"must be as it was written, .*; delete"):
                use(run)
    (run / "result.json").unlink()
    assert resume(run) == result


def test_metrics_can_be_read_while_a_checkpoint_is_saved(small_run, tmp_path, monkeypatch):
    folder = RunFolder(shutil.copytree(small_run, tmp_path / "run"))
    folder.result.unlink()
    earlier, last = folder.checkpoints.names()[-2:]
    whole, counted = folder.metrics.read_bytes(), folder.checkpoints.notes()[earlier]
    before = whole[: counted["metrics_bytes"]]
    saved = (folder.checkpoints.path / str(last)).rename(tmp_path / "saved")
    folder.metrics.write_bytes(before)
    read = files.read_file

    def reading(path, **options):
        content = read(path, **options)
        if path == folder.metrics:
            path.write_bytes(whole)
            saved.rename(folder.checkpoints.path / str(last))
        return content

    monkeypatch.setattr(files, "read_file", reading)
    assert folder.read_metrics() == before != whole


@pytest.mark.parametrize(("checkpoint", "listed"), [("best", 1), ("best", 2), ("latest", 1)])
def test_weights_can_be_read_while_checkpoints_are_saved_and_pruned(
    small_run, tmp_path, monkeypatch, checkpoint, listed
):
    """What was listed so many times is gone before it is read, and a new checkpoint is there."""
    folder = RunFolder(shutil.copytree(small_run, tmp_path / "run"))
    first, last = folder.checkpoints.names()
    saved = (folder.checkpoints.path / str(last)).rename(tmp_path / "saved")
    expected, names = load_run(small_run, checkpoint=checkpoint), CheckpointFolder.names
    calls = []

    def listing(checkpoints):
        found = names(checkpoints)
        calls.append(found)
        if len(calls) == listed:
            saved.rename(checkpoints.path / str(last))
            checkpoints.remove([first])
        return found

    monkeypatch.setattr(CheckpointFolder, "names", listing)
    assert load_run(folder.path, checkpoint=checkpoint).update == expected.update == last.update


def test_every_best_that_a_kept_checkpoint_knows_of_is_kept(tmp_path, monkeypatch):
    """A better score in troubled times must not cost a rollback its own best."""
    scores = iter([0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03])
    monkeypatch.setattr(
        "staircase_attention.training.dataset.TaskData.rank", lambda *_: (next(scores),)
    )
    recipe = small_recipe(training__num_updates=20, training__evaluate_every=4)
    monkeypatch.setattr(Trainer, "_record", troubled_after(Trainer._record, 6))
    train(recipe, tmp_path / "run")
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    updates = {name.update for name in folder.names()}
    for note in folder.notes().values():
        assert note["progress"]["best_update"] in {None, *updates}


def troubled_after(watch, update):
    def watching(self, *arguments):
        watch(self, *arguments)
        if self.progress.update > update:
            self.progress.watch.num_high = 1

    return watching


def test_weights_that_are_not_finite_are_never_the_best(tmp_path, monkeypatch):
    true_update = Learner.update

    def update(self, *arguments, **options):
        outcome = true_update(self, *arguments, **options)
        self.model.output.bias.data.fill_(float("nan"))
        return outcome

    monkeypatch.setattr(Learner, "update", update)
    result = train(small_recipe(training__divergence__max_skips=100), tmp_path / "run")
    assert result.status == "diverged"
    assert result.best_update is None
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line
        json.loads(line)


def test_a_damaged_config_is_called_that(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"format"')
    with pytest.raises(
        ValueError, match=r"must be as it was written, got .*config.json .*; restore it"
    ):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
def test_a_resumed_run_writes_to_nothing_that_a_link_leads_to(small_run, tmp_path, name):
    folder, other = shutil.copytree(small_run, tmp_path / "run"), tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text("mine")
    (folder / "result.json").unlink()
    (folder / "checkpoints" / ".partial-update-00000016").symlink_to(other)
    (folder / name).rename(other / name)
    (folder / name).symlink_to(other / name)
    before = (other / name).read_bytes()
    with pytest.raises(ValueError, match=rf"must be a regular one, got .*{name}.*; replace it"):
        resume(folder, num_updates=16)
    assert (other / name).read_bytes() == before
    (folder / name).unlink()
    shutil.copy(other / name, folder / name)
    assert resume(folder, num_updates=16).num_updates == 16
    assert {path.name for path in other.iterdir()} == {"manifest.json", name}
    assert (other / "manifest.json").read_text() == "mine"
