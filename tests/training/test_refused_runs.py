"""What a run does not begin with, go on with or give its weights for, and what is said then."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from small_runs import final_bytes, small_recipe

from staircase_attention import Staircase
from staircase_attention.schedules import SCHEDULES
from staircase_attention.training import OptimizerConfig, load_run, pack, resume, train
from staircase_attention.training.display import Display

SILENT_TASK = """
import numpy as np
from staircase_attention.tasks import IGNORED, Episodes, Task

class Mute(Task):
    input_symbols = ("a", "b")
    output_symbols = ("c",)

    def generate(self, generator, num_episodes):
        symbols = generator.integers(2, size=(num_episodes, 30))
        return Episodes.from_grid(symbols, np.full_like(symbols, IGNORED))

    def with_length(self, length):
        return self

class Broken(Mute):
    def generate(self, generator, num_episodes):
        return [][1]
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mute", "the valid split of mute must ask for an answer, got 30000 targets that are all"),
        ("Broken", r"generate of Broken must run .*IndexError: .* \(line 18 of mine.py\); correct"),
    ],
)
def test_a_task_with_a_mistake_is_refused_before_a_run_begins(tmp_path, name, message):
    (tmp_path / "mine.py").write_text(SILENT_TASK)
    task = {"kind": "task", "reference": f"{tmp_path}/mine.py:{name}", "options": {}}
    with pytest.raises(ValueError, match=message):
        train(small_recipe(task=task), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_setting_that_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match=r"evaluation_tokens is for a corpus, got 64 with a task;"):
        small_recipe(training__evaluation_tokens=64)


class Stop(Display):
    """A display that ends a run after some updates, as a kill would."""

    def __init__(self, update):
        self.update = update

    def advance(self, update, **facts):
        if update == self.update:
            raise RuntimeError("killed")


@pytest.mark.parametrize("kept", [None, 1, 100])
def test_a_run_whose_metrics_were_lost_says_so_and_goes_on_once_they_are_back(
    tmp_path, small_run, kept
):
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)
    (folder / "result.json").unlink()
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.unlink()
    if kept is not None:
        metrics.write_bytes(whole[:kept])
    message = rf"{len(whole)} bytes .*, got .*metrics.jsonl with {kept or 0}; put it back, or "
    with pytest.raises(ValueError, match=message) as caught:
        resume(folder)
    assert "\n" not in str(caught.value)
    assert metrics.exists() == (kept is not None)
    metrics.write_bytes(whole)
    assert resume(folder).status == "finished"
    assert final_bytes(folder) == final_bytes(small_run)


def test_a_run_goes_on_without_its_metrics_if_they_are_emptied_on_purpose(tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        train(small_recipe(), tmp_path / "run", progress=Stop(9))
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(b"")
    assert resume(tmp_path / "run").status == "finished"
    assert b'"update": 12' in metrics.read_bytes()
    assert b'"update": 2,' not in metrics.read_bytes()


def test_a_run_without_a_score_has_no_best_weights(tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        train(small_recipe(), tmp_path / "run", progress=Stop(4))
    message = r"the best weights .*, got .*run without a score .*; use --checkpoint latest"
    for use in (load_run, lambda run: pack(run, tmp_path / "packed")):
        with pytest.raises(ValueError, match=message) as caught:
            use(tmp_path / "run")
        assert "\n" not in str(caught.value)
    assert load_run(tmp_path / "run", checkpoint="latest").update == 0
    assert not (tmp_path / "packed").exists()


class Odd(Staircase):
    """A schedule that nobody knows the name of."""

    name = "odd"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": OptimizerConfig(kind="Adam", warm_up=1)},
            r"optimizer.kind must be one of .*'Adam'",
        ),
        ({"precision": "bf16"}, r"training.precision must be one of .*, got 'bf16'"),
        ({"num_updates": 1e1}, r"training.num_updates must be a whole number, got 10\.0"),
    ],
)
def test_a_run_that_could_not_be_read_again_is_not_begun(tmp_path, changes, message):
    recipe = small_recipe()
    recipe = replace(recipe, training=replace(recipe.training, **changes))
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_schedule_of_ones_own_is_trained_once_it_is_known_by_name(tmp_path, monkeypatch):
    recipe = small_recipe()
    recipe = replace(recipe, model=replace(recipe.model, schedule=Odd(chunk_size=3, num_passes=2)))
    with pytest.raises(ValueError, match=r"got 'odd'; take one of these, or add yours to SCHED"):
        train(recipe, tmp_path / "run")
    monkeypatch.setitem(SCHEDULES, "odd", Odd)
    result = train(recipe, tmp_path / "run")
    assert load_run(tmp_path / "run").model.schedule == recipe.model.schedule
    assert resume(tmp_path / "run") == result


def test_settings_may_be_changed_to_configs_and_to_numbers_of_numpy():
    recipe = small_recipe(seed=np.int64(3), model__schedule=Staircase(chunk_size=5, num_passes=1))
    assert (recipe.seed, type(recipe.seed)) == (3, int)
    assert recipe.model.schedule == Staircase(chunk_size=5, num_passes=1)
