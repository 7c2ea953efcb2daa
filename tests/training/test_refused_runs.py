"""What a run does not begin with, go on with or give its weights for, and what is said then."""

import re
import shutil

import pytest
import torch
from small_runs import Interrupting, KilledError, final_bytes, lstm_recipe, small_recipe

from staircase_attention.training import load_run, pack, resume, train

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


@pytest.mark.parametrize("kept", [None, 100])
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
    message = rf"{len(whole)} bytes .*, got .*metrics.jsonl with {kept or 0}; restore them, or "
    with pytest.raises(ValueError, match=message) as caught:
        resume(folder)
    assert "\n" not in str(caught.value)
    assert metrics.exists() == (kept is not None)
    metrics.write_bytes(whole)
    assert resume(folder).status == "finished"
    assert final_bytes(folder) == final_bytes(small_run)


def test_a_run_goes_on_without_its_metrics_if_they_are_emptied_on_purpose(tmp_path):
    with pytest.raises(KilledError):
        train(small_recipe(), tmp_path / "run", progress=Interrupting(9))
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(b"")
    assert resume(tmp_path / "run").status == "finished"
    assert b'"update": 12' in metrics.read_bytes()
    assert b'"update": 2,' not in metrics.read_bytes()


def test_a_run_without_a_score_has_no_best_weights(tmp_path):
    with pytest.raises(KilledError):
        train(small_recipe(), tmp_path / "run", progress=Interrupting(4))
    message = r"the best weights .*, got .*run without a score .*; use --checkpoint latest"
    for use in (load_run, lambda run: pack(run, tmp_path / "packed")):
        with pytest.raises(ValueError, match=message) as caught:
            use(tmp_path / "run")
        assert "\n" not in str(caught.value)
    assert load_run(tmp_path / "run", checkpoint="latest").update == 0
    assert not (tmp_path / "packed").exists()
    with pytest.raises(ValueError, match=r"the best weights .*; pack a checkpoint of it with"):
        train(small_recipe(), tmp_path / "new", init=tmp_path / "run")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_here", [True, False], ids=["this device", "a device without kernels"])
def test_an_lstm_in_bfloat16_trains_or_is_refused_before_a_run_begins(
    tmp_path, monkeypatch, is_here
):
    def fail(*_):
        raise RuntimeError("could not create a primitive descriptor")

    if not is_here:
        monkeypatch.setattr(torch, "lstm", fail)
    changes = {"training__precision": "bfloat16", "training__num_updates": 1}
    refusal = ""
    try:
        train(lstm_recipe(**changes), tmp_path / "run", device="cpu")
    except ValueError as error:
        refusal = str(error)
    received = r"got cpu \(RuntimeError: could not create a primitive"
    is_refused = re.match(f"precision bfloat16 needs .* LSTM, {received}", refusal)
    assert is_refused or (is_here and not refusal)
    assert (tmp_path / "run").exists() != bool(is_refused)
