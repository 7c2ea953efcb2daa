"""Code that a run folder names is executed only if this user trained with it."""

import json
import sys

import pytest
from small_runs import small_recipe

from staircase_attention.training import load_run, pack, resume, train

TASK = """
from pathlib import Path
from staircase_attention.tasks import Permutations

Path(__file__).with_suffix(".executed").touch()

class Mine(Permutations):
    pass
"""

BLOCK = """
from torch import nn
from staircase_attention.layers import Block, KeysValues

class Mine(Block):
    def __init__(self, *, width):
        super().__init__()
        self.width, self.inner = width, nn.Linear(width, width)

    def keys_values(self, hidden):
        return KeysValues(hidden[:, None], hidden[:, None])

    def transform(self, hidden, context, *, view):
        return self.inner(hidden)
"""


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """An empty store."""
    monkeypatch.setenv("STAIRCASE_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def own_run(tmp_path):
    """A run on a user's own task, the task's file, and the trace of its execution."""
    file = tmp_path / "mine.py"
    file.write_text(TASK)
    recipe = small_recipe(training__num_updates=2)
    task = recipe.to_plain()["task"] | {"reference": f"{file}:Mine"}
    train(recipe.override({"task": task}), tmp_path / "run")
    trace = file.with_suffix(".executed")
    trace.unlink()
    # Another process would execute the file again; this one has it already.
    for name in [name for name in sys.modules if name.startswith("staircase_mine_")]:
        del sys.modules[name]
    return tmp_path / "run", file, trace


def test_one_s_own_run_is_loaded_and_resumed(own_run, tmp_path):
    run, _, trace = own_run
    assert load_run(run).update == load_run(pack(run, tmp_path / "packed")).update
    (run / "result.json").unlink()
    assert resume(run).status == "finished"
    assert trace.exists()


def test_a_block_s_file_that_is_not_found_is_what_the_error_names(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(BLOCK)
    monkeypatch.chdir(tmp_path)
    core = {"width": 8, "dropout": 0.0, "reference": "mine.py:Mine"}
    train(small_recipe(training__num_updates=2, model__core=core), "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with pytest.raises(ValueError, match=r"block file must exist, got 'mine.py'; name its whole"):
        load_run("../run", trust_code=True)


@pytest.mark.parametrize("is_packed", [False, True], ids=["run folder", "packed run"])
def test_a_run_of_another_user_executes_nothing(own_run, tmp_path, monkeypatch, is_packed):
    run, file, trace = own_run
    run = pack(run, tmp_path / "packed") if is_packed else run
    trace.unlink(missing_ok=True)
    monkeypatch.setenv("STAIRCASE_STATE_HOME", str(tmp_path / "elsewhere"))
    for use in (load_run, resume):
        with pytest.raises(ValueError, match=f"got {file}, which you never trained with") as caught:
            use(run)
        assert "\n" not in str(caught.value)
        assert "--trust-code" in str(caught.value)
    assert not trace.exists()
    assert load_run(run, trust_code=True).update <= 2
    assert trace.exists()


def test_a_file_that_changed_is_refused_until_it_is_trained_with(own_run, tmp_path):
    run, file, trace = own_run
    file.write_text(TASK + "\n# changed\n")
    with pytest.raises(ValueError, match="which changed since you trained with it"):
        load_run(run)
    assert not trace.exists()
    train(load_run(run, trust_code=True).recipe, tmp_path / "again")
    load_run(run)


@pytest.mark.parametrize(
    "setting",
    ["task.reference", "model.schedule.reference", "model.schedule.name", "model.core.reference"],
)
@pytest.mark.parametrize("reference", ["evil.py:Cls", "evil:Cls"])
def test_no_setting_of_a_downloaded_run_can_name_other_code(
    small_run, tmp_path, monkeypatch, setting, reference
):
    packed = pack(small_run, tmp_path / "packed")
    config = json.loads((packed / "config.json").read_text())
    *groups, last = setting.split(".")
    place = config["recipe"]
    for name in groups:
        place = place[name]
    place[last] = reference
    (packed / "config.json").write_text(json.dumps(config))
    (packed / "checksums.json").unlink()
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"code named by a run folder must be .*evil"):
        load_run(packed)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "trusted_code.json").write_text("damaged")
    with pytest.raises(ValueError, match="code named by a run folder"):
        load_run(packed)


@pytest.mark.parametrize("setting", ["reference", "name"])
def test_a_list_is_not_taken_for_the_name_of_code(setting, small_run, tmp_path, monkeypatch):
    packed = pack(small_run, tmp_path / "packed")
    config = json.loads((packed / "config.json").read_text())
    # As text this is "['/evil.py:Cls']", a file in a folder that may come with the run.
    config["recipe"]["model"]["schedule"] = {setting: ["/evil.py:Cls"]}
    (packed / "config.json").write_text(json.dumps(config))
    (packed / "checksums.json").unlink()
    (tmp_path / "['").mkdir()
    (tmp_path / "['" / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"a schedule must be .*, got \['/evil.py:Cls'\]"):
        load_run(packed)
