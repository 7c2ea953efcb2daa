"""Threads, devices and processes of a run; what becomes of it when a process is lost."""

import contextlib
import json
import os
import signal
import socket
import time

import pytest
import torch
from small_runs import (
    FORKS,
    Interrupting,
    KilledError,
    final_bytes,
    losing_a_process,
    output_of,
    small_recipe,
    together,
    train_or_resume,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from staircase_attention import cores
from staircase_attention.display import Lines
from staircase_attention.training import processes, resume, train
from staircase_attention.training.checkpoint import CheckpointFolder
from staircase_attention.training.run_folder import RunFolder
from staircase_attention.training.trainer import Trainer


@pytest.fixture
def unset(monkeypatch):
    """Without a number of threads that the user asked for, which would count."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("idle", "expected"), [(0.2, 1), (1.9, 2), (16.0, 4)])
def test_there_is_a_thread_for_every_idle_core(monkeypatch, unset, idle, expected):
    said = []
    monkeypatch.setattr(processes, "idle_cores", lambda: idle)
    with processes.chosen_threads(torch.device("cpu"), None, said.append):
        assert torch.get_num_threads() == expected
    assert said[0].startswith(f"training with {expected} of ")
    assert torch.get_num_threads() == 4


def test_a_run_keeps_its_number_of_threads(tmp_path, monkeypatch, unset):
    """Another load must not change the bytes of a run that is resumed."""
    monkeypatch.setattr(processes, "idle_cores", lambda: 1.9)
    train(small_recipe(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_environment()["num_threads"] == 2
    monkeypatch.setattr(processes, "idle_cores", lambda: 4.0)
    whole = final_bytes(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    display = Interrupting()
    resume(tmp_path / "run", progress=display)
    assert display.said[0].startswith("training with 2 of ")
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


def test_a_device_that_is_not_there_is_refused():
    assert processes.choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="a device must be one that this machine has, got 'cuda:9"):
        processes.choose_device("cuda:99")


def test_a_run_on_the_cpu_of_a_machine_with_a_gpu_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "A Fine GPU")
    result = train(small_recipe(), tmp_path, device="cpu")
    known = json.loads((tmp_path / "environment.json").read_text())
    assert known["device"] == result.device
    assert "CPU" in result.device


@pytest.fixture
def same_handlers():
    """A launcher in this process handles signals as torchrun does; afterwards it does not."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def launch_two(max_restarts):
    """What `torchrun --nproc-per-node=2` calls, without importing everything again."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        start_method="forkserver",
        monitor_interval=0.1,
        max_restarts=max_restarts,
    )
    return elastic_launch(config, losing_a_process)


def test_torchrun_restarts_a_run_whose_process_was_killed_and_it_ends_the_same(
    tmp_path, same_handlers
):
    recipe = small_recipe(training__checkpoint_every=2).to_plain()
    launch_two(0)(tmp_path / "whole", recipe, None)
    launch_two(1)(tmp_path / "killed", recipe, "SIGKILL")
    assert final_bytes(tmp_path / "killed") == final_bytes(tmp_path / "whole")


def train_beside(rank, port, folder, recipe, number):
    """One of two processes, as torchrun would start it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with output_of(f"{folder}-{rank}").open("w") as output, contextlib.redirect_stderr(output):
        losing_a_process(folder, recipe, number)


def test_a_process_that_is_stopped_ends_the_run_with_a_line_that_names_it(tmp_path):
    recipe = small_recipe(training__stall_seconds=2.0).to_plain()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = (
        FORKS.Process(target=train_beside, args=[rank, port, tmp_path / "run", recipe, "SIGSTOP"])
        for rank in range(2)
    )
    first.start()
    second.start()
    first.join()
    second.kill()
    assert first.exitcode == 1
    line = "processes must respond within 2 s (training.stall_seconds), got nothing from rank 1;"
    assert line in output_of(tmp_path / "run-0").read_text()


def set_aside_late(folder, recipe):
    """One of two processes; the first is slower than the other to find checkpoints damaged."""
    set_aside = CheckpointFolder.set_aside
    CheckpointFolder.set_aside = lambda *found: (time.sleep(0.5), set_aside(*found))
    train_or_resume(folder, recipe)


@pytest.mark.parametrize("rank", range(4))
def test_every_process_refuses_what_one_of_them_has_too_few_lanes_for(rank, tmp_path):
    recipe = small_recipe(training__num_lanes=6, training__num_micro_batches=2)
    place, joined = torch.device("cpu"), processes.Processes(rank=rank, count=4)
    with pytest.raises(ValueError, match="the lanes of every process, got 2 for 1; change"):
        Trainer(recipe, RunFolder(tmp_path), place, joined, Lines(), processes.StopRequest())


@pytest.mark.slow
def test_two_processes_that_find_no_whole_checkpoint_start_again_together(tmp_path):
    with pytest.raises(KilledError):
        train(small_recipe(), tmp_path, progress=Interrupting(2))
    [weights] = tmp_path.glob("checkpoints/update-*/weights.safetensors")
    weights.write_bytes(b"")
    together(2, set_aside_late, tmp_path, small_recipe().to_plain())
    assert RunFolder(tmp_path).read_result().status == "finished"
