"""Runs that are extended, started from another run's weights, or written by an older version."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_runs import Interrupting, KilledError, final_bytes, metrics_of, small_recipe

from staircase_attention.training import load_run, pack, resume, train
from staircase_attention.training.run_folder import RunFolder

OLD_RUN = Path(__file__).parent / "saved" / "run-format-1"
"""An unfinished run of `small_recipe()`, written by version 0.1.0."""


@pytest.fixture
def finished(small_run, tmp_path):
    """A finished run of 12 updates that may be changed."""
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def test_a_finished_run_is_extended_as_though_it_had_never_stopped(finished, tmp_path):
    train(small_recipe(training__num_updates=20), tmp_path / "whole")
    result = resume(finished, num_updates=20)
    assert (result.status, result.num_updates) == ("finished", 20)
    assert resume(finished) == result
    assert load_run(finished).recipe.training.num_updates == 20
    assert final_bytes(finished)[0] == final_bytes(tmp_path / "whole")[0]
    # The metrics also have the last score of the shorter run.
    added = [line for line in metrics_of(finished) if line not in metrics_of(tmp_path / "whole")]
    assert [(line["kind"], line["update"]) for line in added] == [("valid", 12)]


def test_an_extended_run_that_was_killed_resumes_bit_for_bit(finished, tmp_path):
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    resume(finished, num_updates=20)
    for update in (14, 18):
        budget = 20 if update == 14 else None
        with pytest.raises(KilledError):
            resume(other, num_updates=budget, progress=Interrupting(update))
    assert resume(other).num_updates == 20
    assert final_bytes(other) == final_bytes(finished)


def test_the_learning_rate_of_an_extended_run_follows_the_new_number_of_updates(tmp_path):
    decay = {"training__optimizer__decay": "linear", "training__log_every": 1}
    train(small_recipe(**decay), tmp_path / "run")
    resume(tmp_path / "run", num_updates=24)
    rates = [line["learning_rate"] for line in metrics_of(tmp_path / "run") if "error" in line
             and line["kind"] == "train"]  # fmt: skip
    assert rates[11] == pytest.approx(1e-2 * (1 - 8 / 9))
    assert rates[12] == pytest.approx(1e-2 * (1 - 9 / 21))


def test_a_run_shorter_than_its_logging_interval_logs_its_last_update(tmp_path):
    train(small_recipe(training__log_every=100), tmp_path / "run")
    [line] = [line for line in metrics_of(tmp_path / "run") if line["kind"] == "train"]
    train(small_recipe(training__log_every=1), tmp_path / "all")
    each = [one["loss"] for one in metrics_of(tmp_path / "all") if one["kind"] == "train"]
    assert line["update"] == 12
    assert line["loss"] == pytest.approx(sum(each) / 12, rel=0.02)


@pytest.mark.parametrize("num_updates", [12, 3, 0, True])
def test_a_run_is_not_extended_to_what_it_has_done(small_run, num_updates):
    with pytest.raises(ValueError, match=r"num_updates must be .*, got "):
        resume(small_run, num_updates=num_updates)
    assert RunFolder(small_run).is_finished


def test_a_packed_run_is_not_extended(small_run, tmp_path):
    with pytest.raises(ValueError, match="which is packed"):
        resume(pack(small_run, tmp_path / "packed"), num_updates=20)


@pytest.mark.parametrize("is_packed", [False, True], ids=["run folder", "packed run"])
def test_a_run_starts_from_another_run_s_weights(small_run, tmp_path, is_packed):
    given = load_run(small_run)
    init = pack(small_run, tmp_path / "packed", numbers="float32") if is_packed else small_run
    recipe = small_recipe(seed=5, model__core__dropout=0.0)
    with pytest.raises(KilledError):
        train(recipe, tmp_path / "run", init=init, progress=Interrupting(2))
    first = load_run(tmp_path / "run", checkpoint="latest")
    assert first.update == 0
    for name, weight in given.model.state_dict().items():
        assert torch.equal(weight, first.model.state_dict()[name])
    noted = json.loads((tmp_path / "run" / "config.json").read_text())["init"]
    assert noted == {"run": str(init), "update": given.update}
    train(recipe, tmp_path / "whole", init=small_run)
    shutil.rmtree(init) if is_packed else None
    resume(tmp_path / "run")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")


def test_a_run_killed_before_its_first_checkpoint_reads_the_weights_again(small_run, tmp_path):
    train(small_recipe(), tmp_path / "whole", init=small_run)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for name in ("result.json", "metrics.jsonl"):
        (tmp_path / "run" / name).unlink()
    resume(tmp_path / "run")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")


def test_weights_of_another_shape_are_refused_before_a_run_starts(small_run, tmp_path):
    recipe = small_recipe(model__core__width=16)
    message = r"whose embedding.weight is \[.*, 16\], got \[.*, 8\] from .*; choose a run of this"
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run", init=small_run)
    assert not (tmp_path / "run").exists()


def test_a_run_of_format_1_is_loaded_resumed_and_rolled_back(tmp_path):
    run = Path(shutil.copytree(OLD_RUN, tmp_path / "run"))
    assert load_run(run).recipe == small_recipe()
    assert (load_run(run).update, load_run(run, checkpoint="latest").update) == (5, 8)
    notes = RunFolder(run).checkpoints.notes()
    assert [note["is_healthy"] for note in notes.values()] == [True, True]
    before = (run / "metrics.jsonl").read_bytes()
    assert resume(run).num_updates == 12
    assert (run / "metrics.jsonl").read_bytes().startswith(before[: len(before) // 2])


@pytest.mark.parametrize("options", [{}, {"distribution": "authors"}])
def test_an_algorithm_run_of_format_1_keeps_its_distribution(tmp_path, options):
    config = json.loads((OLD_RUN / "config.json").read_text())
    config["recipe"]["task"] = {"kind": "task", "reference": "algorithm", "options": options}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = RunFolder(tmp_path).read_config()["recipe"]["task"]["options"]
    assert found == {"distribution": "redraw"} | options
    (tmp_path / "config.json").write_text(json.dumps(config | {"format": 2}))
    assert RunFolder(tmp_path).read_config()["recipe"]["task"]["options"] == options
