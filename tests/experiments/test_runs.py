"""Runs of an experiment: their order, how they are resumed, stopped and failed, what is refused."""

import contextlib
import dataclasses
import fcntl
import json
import os
import runpy
import shlex
import shutil
import signal
import sys
import types
import warnings

import pytest
from fake_runs import compare_fakes, send_when, wait_until
from small_runs import FORKS, small_recipe, train_watching

from staircase_attention.cli.experiments import show_report
from staircase_attention.experiments import (
    TABLES,
    compare,
    find_recipe,
    reproduce,
    runner,
    table_rows,
)
from staircase_attention.experiments.comparisons import (
    chosen_names,
    labelled_rows,
    with_updates,
)
from staircase_attention.experiments.results import latest_facts
from staircase_attention.experiments.runner import Run, child_environment
from staircase_attention.training import StopRequested

ROWS = ["staircase-n8-c8", "ladder-2"]
STAIRCASE, LADDER = (f"random-walk/{row}" for row in ROWS)

STATE_TRACKING = [table for table in TABLES if not table.startswith(("enwik8", "words"))]


def go(folder, table="random-walk", **options):
    return reproduce(table, folder=folder, **{"rows": ROWS, "seeds": 2, "updates": 40} | options)


def named(*names):
    return [dataclasses.replace(small_recipe(), name=name) for name in names]


def rows_of(report):
    return {row.name: row for row in report.rows}


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_rows_get_their_first_seed_before_any_gets_its_second(tmp_path, fake):
    go(tmp_path, rows=list(reversed(ROWS)))
    order = [(STAIRCASE, 0), (LADDER, 0), (STAIRCASE, 1), (LADDER, 1)]
    assert fake.calls == [("train", *run) for run in order]
    assert (tmp_path / "ladder-2" / "seed-1" / "result.json").exists()


def test_finished_runs_are_read_and_not_run_again(tmp_path, fake):
    go(tmp_path, rows=["ladder-2"], seeds=1)
    fake.forget()
    report = go(tmp_path, rows=["ladder-2"], seeds=2)
    assert fake.calls == [("train", LADDER, 1)]
    assert len(rows_of(report)["ladder-2"].results) == 2


def test_seeds_of_a_row_can_be_shared_out_and_reported_together(tmp_path, fake):
    here, there = tmp_path / "here", tmp_path / "there"
    go(here, rows=["ladder-2"], seeds=1)
    go(there, rows=["ladder-2"], seeds=2, first_seed=1)
    assert [seed for *_, seed in fake.calls] == [0, 1, 2]
    shutil.copytree(there, here, dirs_exist_ok=True)
    fake.forget()
    report = go(here, rows=["ladder-2"], seeds=3)
    assert fake.calls == []
    assert [one.seed for one in rows_of(report)["ladder-2"].results] == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_runs_and_the_next_call_resumes_them(
    tmp_path, fake, number, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["/bin/the", "command"])
    before = signal.getsignal(number)
    fake.let(trouble={"a, 0": "wait"})
    send_when(fake.waiting, number)
    with pytest.raises(StopRequested) as caught:
        compare(named("a", "b", "c"), folder=tmp_path, jobs=1)
    assert caught.value.exit_status == 128 + number
    assert str(caught.value) == (
        "stopped with 0 of 3 runs finished, the others saved; resume with: the command"
    )
    assert signal.getsignal(number) is before
    assert fake.calls == [("train", "a", 0)]
    assert not any(is_alive(pid) for pid in fake.processes)
    assert "a, seed 0: unfinished; the next call" in (tmp_path / "report.html").read_text()

    report = compare(named("a", "b", "c"), folder=tmp_path)
    assert fake.calls[1:] == [("resume", "a", 0), ("train", "b", 0), ("train", "c", 0)]
    assert [len(row.results) for row in report.rows] == [1, 1, 1]
    assert "unfinished" not in (tmp_path / "report.html").read_text()


def test_a_second_interrupt_stops_at_once_and_leaves_a_report_and_no_process(tmp_path, fake):
    fake.let(trouble={"a, 0": "ignore", "b, 0": "ignore"})
    send_when(fake.waiting, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        compare(named("a", "b"), folder=tmp_path, jobs=2)
    assert fake.processes
    assert not any(is_alive(pid) for pid in fake.processes)
    assert (tmp_path / "report.json").exists()


def test_a_failed_run_is_listed_and_tried_again_while_the_others_go_on(tmp_path, fake, capsys):
    fake.let(trouble={f"{STAIRCASE}, 0": "fail"})
    report = go(tmp_path, progress=True)
    assert len(fake.calls) == 4
    [(row, run)] = report.failures
    assert (row, run.seed, run.status) == ("staircase-n8-c8", 0, "failed")
    assert run.failure == "CUDA out of memory"
    line = "staircase-n8-c8, seed 0: failed (CUDA out of memory)"
    assert line in (tmp_path / "report.html").read_text()
    shown = capsys.readouterr().err
    assert f"run 1 of 4: {STAIRCASE}, seed 0\n" in shown
    assert f"{STAIRCASE}, seed 0: failed (CUDA out of memory)\n" in shown
    assert f"{LADDER}, seed 0: finished, test error 25.10%, 1:02:05\n" in shown
    kept = (tmp_path / "staircase-n8-c8" / "seed-0.failure.txt").read_text()
    assert kept == "CUDA out of memory\n\nTraceback\n  somewhere\nstaircase: CUDA out of memory\n"

    assert go(tmp_path).failures == []
    assert fake.calls[4:] == [("resume", STAIRCASE, 0)]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("SIGKILL", "killed by SIGKILL, perhaps out of memory"),
        ("SIGSEGV", "killed by SIGSEGV"),
        ("exit 3", "exit status 3, but no result"),
        ("exit 0", "exit status 0, but no result"),
        ("refuse", "no such thing"),
    ],
)
def test_whatever_ends_a_process_is_one_line(tmp_path, fake, trouble, reason):
    fake.let(trouble={"a, 0": trouble, "c, 0": trouble})
    report = compare(named("a", "b", "c"), folder=tmp_path, jobs=2)
    assert [(name, run.failure) for name, run in report.failures] == [("a", reason), ("c", reason)]
    assert not compare(named("a", "b", "c"), folder=tmp_path).failures
    again = "train" if trouble == "refuse" else "resume"
    assert fake.calls[3:] == [(again, "a", 0), (again, "c", 0)]


TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\n    ^^^\n"
TORCHRUN = """\
W1118 18:17:27.800000 9 torch/distributed/elastic/api.py:9] Sending process 7 closing signal
E1118 18:17:27.897000 9 torch/distributed/elastic/api.py:9] failed (exitcode: -9) local_rank: 0
Traceback (most recent call last):
  File 'run.py', line 1
ChildFailedError:
=====
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"{TRACEBACK}RuntimeError: CUDA error\nFor debugging\n\n  compile it",
         "RuntimeError: CUDA error For debugging compile it"),
        (f"{TRACEBACK}KeyError: 1\n\nDuring this:\n\n{TRACEBACK}OSError: 2", "OSError: 2"),
        ("a warning\nstaircase: lengths must be\nat least 1", "lengths must be at least 1"),
        (f"staircase: no such thing\nstaircase: no such thing\n{TORCHRUN}", "no such thing"),
        (f"[rank0]: Traceback (most recent call last):\n[rank0]:   a.py\n[rank0]: OSError: 2\n"
         f"[rank0]: 3\n{TORCHRUN}", "OSError: 2 3"),
        (TORCHRUN, ""),
        ("terminate called\n  what(): bad", "terminate called what(): bad"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_its_whole_message(log, reason):
    assert runner.failure_reason(log) == reason


def test_a_failed_run_that_somebody_else_finished_is_well_at_the_next_call(tmp_path, fake):
    fake.let(trouble={"a, 0": "fail"})
    assert compare(named("a"), folder=tmp_path).failures
    os.spawnv(os.P_WAIT, sys.executable, [*runner.STAIRCASE, "resume", f"{tmp_path}/a/seed-0"])
    fake.forget()
    report = compare(named("a"), folder=tmp_path)
    assert not report.failures
    assert fake.calls == []
    assert not list((tmp_path / "a").glob("*.failure.txt"))


def test_a_run_that_another_process_works_on_is_left_to_it(tmp_path, fake, capsys):
    fake.let(trouble={"a, 0": "fail"})
    compare(named("a"), folder=tmp_path)
    (tmp_path / "a" / "seed-0.failure.txt").unlink()
    folder = os.open(tmp_path / "a" / "seed-0", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    report = compare(named("a"), folder=tmp_path, progress=True)
    os.close(folder)
    assert not report.failures
    assert len(fake.calls) == 1
    assert "by one process at a time" in capsys.readouterr().err
    # Of the command: not all that was asked for is there.
    assert show_report(report) == 1


def test_times_of_runs_beside_others_are_marked_until_a_run_starts_again(tmp_path, fake):
    fake.let(trouble={"a, 0": "slow", "b, 0": "slow"})
    report = compare(named("a", "b"), folder=tmp_path, jobs=2)
    assert all(run.is_shared for row in report.rows for run in row.runs)
    text = (tmp_path / "report.html").read_text()
    assert "<td>1:02:05 (shared)</td>" in text
    for path in (tmp_path / "a" / "seed-0").iterdir():
        path.unlink()
    report = compare(named("a", "b"), folder=tmp_path, jobs=2)
    assert [run.is_shared for row in report.rows for run in row.runs] == [False, True]


def test_a_run_with_another_recipe_is_refused_in_one_line_before_any_work(tmp_path, fake):
    go(tmp_path, rows=["ladder-2"], seeds=1)
    fake.forget()
    with pytest.raises(ValueError, match="training") as error:
        go(tmp_path, updates=80)
    assert fake.calls == []
    message = str(error.value)
    for words in ("training.num_updates = 80 in place of 40", "resume --updates"):
        assert words in message
    assert "\n" not in message


def test_runs_of_rows_that_are_not_asked_for_keep_their_own_length_and_are_reported(tmp_path, fake):
    go(tmp_path, rows=["ladder-2"], updates=40, seeds=1)
    rows = rows_of(go(tmp_path, rows=["ladder-4"], updates=80, seeds=1))
    assert [rows[name].results[0].num_updates for name in ("ladder-2", "ladder-4")] == [40, 80]


def test_overrides_change_the_runs_and_are_reported_and_short_runs_have_a_curve(tmp_path, fake):
    overrides = {"training.num_lanes": 8}
    report = go(tmp_path, rows=["ladder-2"], seeds=1, updates=100, overrides=overrides)
    config = json.loads((tmp_path / "ladder-2" / "seed-0" / "config.json").read_text())
    assert config["recipe"]["training"]["num_lanes"] == 8
    assert "&quot;num_lanes&quot;: 8," in (tmp_path / "report.html").read_text()
    assert len(rows_of(report)["ladder-2"].runs[0].curve) == 20


def test_every_row_is_checked_before_any_is_run(tmp_path, fake):
    good, bad = find_recipe("parity/lstm"), find_recipe("parity/staircase")
    bad = bad.override({"task.options.length": -1})
    with pytest.raises(ValueError, match=r"length must be .* at least 1, got -1"):
        compare([good, bad], folder=tmp_path)
    assert not fake.calls


def test_permutations_are_a_table_without_the_papers_numbers(tmp_path, fake):
    report = go(tmp_path, table="permutations", rows=["ladder-2"], seeds=1)
    assert "paper" not in (tmp_path / "report.html").read_text().lower()
    assert {row.name for row in report.rows} >= {"staircase-n4-c16", "ladder-8", "lstm"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "random-wlak"}, "permutations-fast, got 'random-wlak'; did you"),
        ({"rows": ["lader-2"]}, "got 'lader-2'; did you mean 'ladder-2'"),
        ({"overrides": {"seed": 3}}, "a row is run with several seeds, got seed=...; use"),
        ({"lengths": [400, 0]}, "length must be"),
        ({"first_seed": -1}, "the first seed must be an integer of at least 0, got -1; use"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0; use"),
        ({"updates": -5}, "updates must be an integer of at least 1, got -5; use"),
        ({"jobs": True}, "jobs must be an integer of at least 1, got True; use"),
        ({"processes": 0}, "processes must be an integer of at least 1, got 0; use"),
        ({"overrides": {"training.num_lane": 8}}, "did you mean 'num_lanes'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path, fake, options, message):
    with pytest.raises(ValueError, match="got") as error:
        go(tmp_path / "runs", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert fake.calls == []
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_hold_results_is_refused(tmp_path, fake):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"must be a folder that can be made, got .*name another"):
        go(tmp_path / "file" / "runs")
    compare(named("a"), folder=tmp_path)
    with pytest.raises(ValueError, match=r"a folder of their own, got .*, which is a run folder;"):
        compare(named("a"), folder=tmp_path / "a" / "seed-0")
    # As the suite does for each task.
    with pytest.raises(ValueError, match=r"a folder of their own, got .*/seed-0', which is a run"):
        compare(named("a"), folder=tmp_path / "a" / "seed-0" / "boxes")


def test_torchrun_starts_processes_of_a_run_and_not_of_an_experiment(tmp_path, monkeypatch):
    run = Run(small_recipe(), tmp_path / "seed-0")
    command = run.next_command(processes=8)
    assert command[3:7] == [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=8",
        "--no-python",
    ]
    assert command[-3:] == ["--output", str(tmp_path / "seed-0"), "--quiet"]
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match="one process, got torchrun; use --processes"):
        compare([small_recipe()], folder=tmp_path / "runs")


@pytest.mark.parametrize(
    ("num_cores", "alone", "jobs", "share"),
    [(16, None, 4, "4"), (16, "8", 3, "5"), (16, "1", 4, "1"), (2, None, 5, "1"), (8, "3", 1, "3")],
)
def test_a_run_gets_its_share_of_the_cores(monkeypatch, num_cores, alone, jobs, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if alone:
        monkeypatch.setenv("OMP_NUM_THREADS", alone)
    assert child_environment(jobs)["OMP_NUM_THREADS"] == share
    assert child_environment(jobs, threads=1)["OMP_NUM_THREADS"] == "1"


def test_any_recipes_can_be_compared(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/staircase", "compare", "random walk"])
    chosen = [find_recipe("parity/staircase"), find_recipe("parity/transformer-xl")]
    report = compare(chosen, folder=tmp_path, seeds=2, title="Parity")
    assert [call[1:] for call in fake.calls] == [
        (recipe.name, seed) for seed in (0, 1) for recipe in chosen
    ]
    assert (tmp_path / "parity" / "staircase" / "seed-1").is_dir()
    assert [row.model for row in report.rows] == ["Staircase", "Transformer-XL"]
    text = (tmp_path / "report.html").read_text()
    assert "<h1>Parity</h1>" in text
    assert "paper" not in text
    assert shlex.split(report.command) == ["staircase", "compare", "random walk"]
    with pytest.raises(ValueError, match="different names, got 'parity/staircase' twice; rename"):
        compare([chosen[0], chosen[0]], folder=tmp_path)


def test_rows_are_labelled_by_the_task_that_they_really_use():
    clock = {"task.reference": "tasks/clock.py:Clock", "task.options": {}}
    names = ("parity/staircase", "permutations-small/staircase", "parity/lstm")
    chosen = [find_recipe(name).override(clock) for name in names]
    text = find_recipe("enwik8-small/lstm").override({"task.folder": "corpora/mine"})
    rows = labelled_rows([*chosen, text, find_recipe("base-small/lstm"), small_recipe()])
    assert [row.label for row in rows] == [
        "parity/staircase (Clock)",
        "permutations-small/staircase (Clock)",
        "parity/lstm (Clock)",
        "enwik8-small/lstm (mine)",
        "base-small/lstm",
        "small",
    ]
    assert rows[0].name == "parity/staircase"


def test_every_table_of_tasks_has_the_same_rows_all_of_which_are_run_by_default():
    every = chosen_names(None, table_rows("random-walk"))
    assert len(every) == 15
    assert all(chosen_names(None, table_rows(table)) == every for table in STATE_TRACKING)


@pytest.mark.parametrize("table", [name for name in STATE_TRACKING if name.endswith("-fast")])
def test_our_own_settings_end_on_whole_episodes(table):
    for row in table_rows(table):
        training = row.recipe.training
        assert training.growth.longest(0) is not None
        assert training.growth.longest(2 * training.num_updates // 3) is None


def test_episodes_grow_in_proportion_to_a_shorter_run():
    fast, usual = (
        find_recipe(f"{table}/staircase-n4-c16") for table in ("random-walk-fast", "random-walk")
    )
    short = with_updates(fast, 1000).training.growth
    grows = dataclasses.replace(fast.training.growth, first_updates=300, double_every=100)
    assert short == grows
    assert short.longest(999) is None
    even = fast.override({"training.growth.first_updates": None})
    assert with_updates(even, 1000).training.growth == dataclasses.replace(
        grows, first_updates=None
    )
    assert with_updates(usual, 500).training.growth == usual.training.growth


class Inline:
    """Stands for a process: runs its module here, where all is imported."""

    def __init__(self, command, *, stdout, **_):
        python, _, _, module, *words = command
        assert python == sys.executable
        with (
            pytest.MonkeyPatch.context() as patch,
            open(stdout.fileno(), "w", closefd=False) as log,
            contextlib.redirect_stdout(log),
        ):
            patch.setattr(sys, "argv", [module.partition("_")[0], *words])
            with contextlib.suppress(SystemExit), warnings.catch_warnings():
                # The module that scores lengths is imported already.
                warnings.simplefilter("ignore", RuntimeWarning)
                runpy.run_module(module, run_name="__main__")

    def poll(self):
        return 0


def test_real_runs_are_trained_scored_at_other_lengths_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "subprocess", types.SimpleNamespace(Popen=Inline))
    recipe = small_recipe(training__evaluate_every=3)
    report = compare([recipe], folder=tmp_path, lengths=[10, 30])
    assert not report.failures
    [small] = report.rows
    assert small.lengths == [10, 30]
    assert small.length_error(10).mean == small.score("test").mean
    [run] = small.runs
    assert [update for update, _ in run.curve] == list(run.seconds) == [3, 6, 9, 12]
    assert run.result.wall_seconds == pytest.approx(run.seconds[12], abs=1e-3)
    assert run.environment["command"][:2] == ["staircase", "train"]
    text = (tmp_path / "report.html").read_text()
    assert "<th>Row</th><th>10</th><th>30</th><th>Seeds</th>" in text
    for caption in ("Validation score against updates", "Test error against episode length"):
        assert f"<figcaption>{caption}" in text


def test_the_input_of_runs_ends_when_their_comparison_is_killed(tmp_path):
    trouble = {"small, 0": "end of input"}
    comparison = FORKS.Process(target=compare_fakes, args=[small_recipe(), tmp_path, trouble])
    comparison.start()
    wait_until((tmp_path / "calls.waiting").exists)
    comparison.kill()
    comparison.join()
    wait_until((tmp_path / "calls.ended").exists)


def test_a_run_saves_itself_and_stops_when_its_input_ends(tmp_path):
    reader, writer = FORKS.Pipe(duplex=False)
    plain = small_recipe(training__num_updates=10**6).to_plain()
    run = FORKS.Process(target=train_watching, args=[tmp_path / "run", plain, reader])
    run.start()
    reader.close()
    wait_until(lambda: latest_facts(tmp_path / "run")[0] > 0)
    writer.close()
    run.join()
    assert run.exitcode
    assert list((tmp_path / "run" / "checkpoints").iterdir())
