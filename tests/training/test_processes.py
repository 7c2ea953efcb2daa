"""How many threads a run trains with, on which device, and how long it will take."""

import os

import pytest
import torch
from small_runs import Interrupting, final_bytes, small_recipe

from staircase_attention import cores
from staircase_attention.training import processes, resume, train
from staircase_attention.training.display import Lines
from staircase_attention.training.run_folder import RunFolder


@pytest.fixture
def unset(monkeypatch):
    """Without a number of threads that the user asked for, which would count."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("idle", "expected"), [(0.2, 1), (1.9, 2), (16.0, 4)])
def test_a_run_has_a_thread_for_every_idle_core_and_keeps_their_number(
    tmp_path, monkeypatch, unset, idle, expected
):
    seen = []
    monkeypatch.setattr(processes, "idle_cores", lambda: idle)
    display = Interrupting(3, lambda: seen.append(torch.get_num_threads()))
    train(small_recipe(), tmp_path / "run", progress=display)
    assert seen == [expected] == [RunFolder(tmp_path / "run").num_threads]
    assert display.said[0].startswith(f"training with {expected} of ")
    assert torch.get_num_threads() == 4
    # Another load must not change the bytes of a run that is resumed.
    monkeypatch.setattr(processes, "idle_cores", lambda: 4.0)
    whole = final_bytes(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    display = Interrupting()
    resume(tmp_path / "run", progress=display)
    assert display.said[0].startswith(f"training with {expected} of ")
    assert final_bytes(tmp_path / "run") == whole


def test_cores_that_others_use_are_not_idle(monkeypatch):
    tick = os.sysconf("SC_CLK_TCK") / 10
    ticks = iter([{0: 0, 1: 50}, {0: 0, 1: 50 + round(tick)}, {}, {}])
    monkeypatch.setattr(cores, "_idle_ticks", lambda: next(ticks))
    assert cores.idle_cores(seconds=0.1) == 1.0
    assert cores.idle_cores(seconds=0) == cores.available_cores()


def test_a_run_that_was_rolled_back_to_before_its_resumption_has_no_time_left(capsys):
    lines = Lines(every_seconds=0)
    lines.begin("mine", 500, 1_000_000)
    lines.advance(400, loss=1.0)
    lines.advance(501, loss=1.0)
    _, before, after = capsys.readouterr().err.splitlines()
    assert before == "mine: update 400 of 1,000,000  loss 1.0000"
    assert after.endswith(" left")


def test_a_run_trains_on_the_device_that_is_named(tmp_path):
    assert train(small_recipe(), tmp_path / "run", device="cpu").status == "finished"
    with pytest.raises(ValueError, match="a device must be one that this machine has, got 'cuda:9"):
        resume(tmp_path / "run", num_updates=20, device="cuda:99")
