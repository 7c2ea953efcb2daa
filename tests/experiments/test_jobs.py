"""Several runs at a time: none is lost, none stays behind, and what stopped goes on as it stood."""

import dataclasses
import json
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
import torch
from fake_training import FakeTrainer
from job_training import LIGHT_WORKER, train_by_name, train_until_asked
from small_runs import final_bytes, lstm_recipe, small_recipe

from staircase_attention import training
from staircase_attention.experiments import (
    compare,
    find_recipe,
    recipes,
    report_pictures,
    reproduce,
    run_process,
    side_by_side,
)
from staircase_attention.experiments.planned_run import PlannedRun
from staircase_attention.experiments.run_process import Job, RunProcess
from staircase_attention.experiments.run_records import shared_file
from staircase_attention.experiments.watching import Watching
from staircase_attention.training import StopRequested
from staircase_attention.training.checkpoint import CheckpointFolder
from staircase_attention.training.display import Lines, Terminal


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    monkeypatch.setattr(report_pictures, "draw_pictures", lambda *_: {})


class Recorder:
    """A display that keeps what is said, and does something when it has heard some lines."""

    def __init__(self, lines=(), action=lambda: None):
        self.lines, self.action, self.said = set(lines), action, []

    def begin(self, name, update, num_updates): ...

    def advance(self, update, **facts): ...

    def end(self): ...

    def say(self, text):
        self.said.append(text)
        if text in self.lines and self.lines <= set(self.said):
            self.action()


def named(*names):
    return [dataclasses.replace(small_recipe(), name=name) for name in names]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(said):
    return [int(line.rpartition(" ")[2]) for line in said if ": process " in line]


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL, perhaps for want of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was killed by SIGSEGV"),
        ("os._exit(3)", "its process ended with exit status 3 without a word"),
        ("os._exit(143)", "it was stopped by a SIGTERM from elsewhere, saved"),
        ("os._exit(0)", "its process ended with exit status 0 without a word"),
    ],
)
def test_a_process_that_dies_is_written_down_as_failed(tmp_path, monkeypatch, death, words):
    monkeypatch.setattr(run_process, "START", LIGHT_WORKER.format(death=death))
    recorder = Recorder()
    report = compare(named("a", "b", "c"), folder=tmp_path, jobs=2, progress=recorder)
    assert [name for name, _ in report.failures] == ["a", "b", "c"]
    for name, run in report.failures:
        assert run.failure.endswith(words)
        assert f"{name}, seed 0: failed ({run.failure})" in recorder.said
    assert len(pids(recorder.said)) == 3
    begun = [line for line in recorder.said if line.startswith("run ")]
    assert begun == [f"run {number} of 3: {name}, seed 0" for number, name in enumerate("abc", 1)]
    assert f"b, seed 0: failed ({run.failure})" in (tmp_path / "report.md").read_text()


FOUR = [lstm_recipe(name="waits"), *named("raises", "goes-well", "late")]


def test_one_run_fails_one_ends_sigterm_stops_two_and_all_go_on_as_they_stood(
    tmp_path, monkeypatch
):
    """One test, as processes take seconds to begin: each of them is looked at from all sides."""
    folder, written, write = tmp_path / "stopped", [], side_by_side.write_report

    def write_and_remember(experiment):
        report = write(experiment)
        written.append([run.status for row in report.rows for run in row.runs])
        return report

    monkeypatch.setattr(side_by_side, "write_report", write_and_remember)
    moment = {"run 4 of 4: late, seed 0", "waits, seed 0: waiting"}
    asked = Recorder(moment, lambda: os.kill(os.getpid(), signal.SIGTERM))
    options = {"train": train_by_name, "progress": asked, "command": "the command"}
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StopRequested) as caught:
        compare(FOUR, folder=folder, jobs=2, **options)
    assert signal.getsignal(signal.SIGTERM) is before

    check_processes(asked.said)
    check_records(folder, asked.said, written)
    check_stop(folder, asked.said, caught.value)
    check_continuation(folder, tmp_path / "whole")


def check_processes(said):
    begun = [line for line in said if line.startswith("run ")]
    assert begun == [
        f"run {number} of 4: {recipe.name}, seed 0" for number, recipe in enumerate(FOUR, 1)
    ]
    assert len({*pids(said), os.getpid()}) == 4
    assert not any(is_alive(pid) for pid in pids(said))


def check_records(folder, said, written):
    assert "goes-well, seed 0: finished, test error 25.10%, 1:02:05" in said
    environment = json.loads((folder / "goes-well" / "seed-0" / "environment.json").read_text())
    program, *words = sys.argv
    assert environment["command"] == [Path(program).name, *words]
    assert "raises, seed 0: failed (RuntimeError: CUDA out of memory)" in said
    kept = (folder / "raises" / "seed-0.failure.txt").read_text()
    assert kept.startswith("RuntimeError: CUDA out of memory\n\nTraceback")
    assert (written[0], written[-1]) == ([], ["unfinished", "failed", "finished"])
    assert any("failed" in stood and "finished" not in stood for stood in written)


def check_stop(folder, said, stop):
    assert stop.exit_status == 128 + signal.SIGTERM
    assert str(stop) == (
        "stopped with 1 of 4 runs at their end, the others saved as far as they got; "
        "go on with: the command"
    )
    assert sorted(said[-2:]) == ["late, seed 0: stopped", "waits, seed 0: stopped"]
    checkpoints = CheckpointFolder(folder / "waits" / "seed-0" / "checkpoints")
    assert checkpoints.names()[-1].update == 3
    page = (folder / "report.md").read_text()
    assert "waits, seed 0: unfinished" in page
    assert "| 1:02:05 (shared) |" in page
    assert "Times marked (shared) are of runs beside which others were under way" in page
    assert not (folder / "late").exists()


def check_continuation(folder, whole):
    compare(FOUR[:1], folder=whole)
    compare(FOUR[:1], folder=folder)
    broken, unbroken = (parent / "waits" / "seed-0" for parent in (folder, whole))
    assert final_bytes(broken) == final_bytes(unbroken)
    again = FakeTrainer()
    report = compare(FOUR, folder=folder, train=again.train, resume=again.resume)
    assert again.calls == [("resume", "raises", 0), ("train", "late", 0)]
    assert [len(row.results) for row in report.rows] == [1, 1, 1, 1]
    assert not report.failures
    shared = {run.is_shared for row in report.rows[:3] for run in row.runs}
    alone = {run.is_shared for run in report.rows[3].runs}
    assert (shared, alone) == ({True}, {False})


def test_times_of_runs_that_are_only_scored_beside_others_stay_their_own(tmp_path, monkeypatch):
    trainer = FakeTrainer()
    options = {"folder": tmp_path, "train": trainer.train, "resume": trainer.resume}
    compare(named("a", "b"), **options)
    monkeypatch.setattr(run_process, "START", LIGHT_WORKER.format(death="time.sleep(0.5)"))
    report = compare(named("a", "b"), folder=tmp_path, jobs=2, lengths=[30])
    assert len(report.failures) == 2
    assert not any(run.is_shared for row in report.rows for run in row.runs)


def test_a_run_that_begins_anew_is_alone_again(tmp_path):
    trainer = FakeTrainer()
    [recipe] = named("a")
    shared = shared_file(tmp_path / "a" / "seed-0")
    shared.parent.mkdir()
    shared.touch()
    compare([recipe], folder=tmp_path, train=trainer.train, resume=trainer.resume)
    assert not shared.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_that_wait_for_their_turn_do_not_begin_after_a_signal(tmp_path, monkeypatch, number):
    death = (
        "signal.signal(15, lambda *_: os._exit(143))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [15])\n"
        "connection.send(('say', ('ready',), {}))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(run_process, "START", LIGHT_WORKER.format(death=death))
    recorder = Recorder(["a, seed 0: ready"], lambda: os.kill(os.getpid(), number))
    with pytest.raises(StopRequested) as caught:
        compare(named("a", "b", "c"), folder=tmp_path, jobs=2, progress=recorder)
    assert caught.value.exit_status == 128 + number
    assert not any("run 3" in line for line in recorder.said)
    assert not any(is_alive(pid) for pid in pids(recorder.said))


def test_a_second_interrupt_stops_at_once_and_leaves_no_process(tmp_path, monkeypatch):
    def interrupt_twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    deaf = "signal.signal(15, signal.SIG_IGN); connection.send(('say', ('deaf',), {})); "
    monkeypatch.setattr(run_process, "START", LIGHT_WORKER.format(death=deaf + "time.sleep(60)"))
    recorder = Recorder(["a, seed 0: deaf"], interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        compare(named("a", "b"), folder=tmp_path, jobs=2, progress=recorder)
    assert pids(recorder.said)
    assert not any(is_alive(pid) for pid in pids(recorder.said))
    assert (tmp_path / "report.json").exists()


def test_a_run_whose_program_is_gone_saves_itself_and_stops(tmp_path):
    job = Job(
        run=PlannedRun(recipe=small_recipe(), folder=tmp_path / "run"),
        train=train_until_asked,
        resume=training.resume,
        num_threads=1,
        command=("staircase",),
    )
    process = RunProcess(job)
    while not any(message and message[1] == ("waiting",) for message in process.messages()):
        assert process.connection.poll(60)
    # The end of the connection is all that a process sees of the death of the other.
    process.close()
    assert process.process.returncode == 128 + signal.SIGTERM
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").names()[-1].update == 3


@pytest.mark.parametrize("jobs", [0, -1, 2.0, True, "2"])
def test_jobs_are_a_whole_number(tmp_path, jobs):
    with pytest.raises(ValueError, match=r"jobs must be a whole number of at least 1, got .*;"):
        reproduce("random-walk", folder=tmp_path / "runs", jobs=jobs)
    assert not (tmp_path / "runs").exists()


def test_several_jobs_are_refused_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match=r"the 8 processes of torchrun .*, got jobs = 2; leave"):
        compare([small_recipe()], folder=tmp_path / "runs", jobs=2)
    assert not (tmp_path / "runs").exists()


def test_functions_that_another_process_could_not_find_are_refused(tmp_path):
    trainer = FakeTrainer()
    with pytest.raises(ValueError, match=r"train must be at the top level of a module, got .*;"):
        compare([small_recipe()], folder=tmp_path / "runs", jobs=2, train=trainer.train)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("num_cores", "alone", "jobs", "share"),
    [(16, 16, 4, 4), (16, 8, 3, 5), (16, 1, 4, 1), (2, 2, 5, 1)],
)
def test_a_run_gets_its_share_of_the_cores(monkeypatch, num_cores, alone, jobs, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: alone)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert side_by_side.threads_a_run(jobs) == share


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_finds_its_way_to_another_process(name):
    recipe = find_recipe(name)
    assert pickle.loads(pickle.dumps(recipe)) == recipe


@pytest.mark.parametrize("display", [Terminal, lambda: Lines(every_seconds=0)])
def test_runs_that_are_shown_together_are_told_apart(tmp_path, display, capsys):
    watching = Watching(display())
    runs = [PlannedRun(recipe=recipe, folder=tmp_path / recipe.name) for recipe in named("a", "b")]
    views = [watching.begin(run, f"run {number} of 2") for number, run in enumerate(runs, 1)]
    for view in views:
        view.show(("begin", ("small", 0, 12), {}))
    for update, view in enumerate([*views, *views], 1):
        view.show(("advance", (update,), {"loss": 0.5}))
    views[1].show(("say", ("diverged",), {}))
    for run, view in zip(runs, views, strict=True):
        watching.end(run, view)
    watching.close()
    shown = capsys.readouterr().err
    for line in ("run 1 of 2: a, seed 0", "b, seed 0: diverged", "b, seed 0: stopped"):
        assert line in shown
