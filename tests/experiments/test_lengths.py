"""Runs are scored on other lengths once, with their best weights, and refused in time."""

import json
import os
import runpy
import signal
import sys
import threading
from dataclasses import replace

import pytest
from small_runs import small_recipe

from staircase_attention.cores import STOP_AT_END_OF_INPUT
from staircase_attention.experiments import compare, find_recipe, runner
from staircase_attention.experiments.results import read_lengths, score_lengths
from staircase_attention.experiments.runner import Run, check_lengths


def test_the_length_of_training_has_the_score_of_the_result_and_is_not_scored_again(small_run):
    result = json.loads((small_run / "result.json").read_text())
    length = small_recipe().task.options["length"]
    score_lengths(small_run, [length, 3 * length])
    scores = read_lengths(small_run)
    assert scores[length].error == result["test"]["error"]
    assert scores[3 * length].num_answers == 3 * scores[length].num_answers
    run = Run(small_recipe(), small_run, lengths=(length, 17))
    assert run.next_command()[-2:] == [str(small_run), "17"]


# Of a module that has been imported under its own name.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_is_not_scored_on_after_its_comparison_was_killed(monkeypatch):
    reached, asked = threading.Event(), []
    monkeypatch.setattr(os, "read", lambda *_: b"")
    monkeypatch.setattr(os, "kill", lambda _, number: (asked.append(number), reached.set()))
    monkeypatch.setenv(STOP_AT_END_OF_INPUT, "1")
    monkeypatch.setattr(sys, "argv", ["results", "none"])
    with pytest.raises(ValueError, match="a run folder holds a config"):
        runpy.run_module("staircase_attention.experiments.results", run_name="__main__")
    assert reached.wait(5)
    assert asked == [signal.SIGTERM]


def test_lengths_that_a_task_cannot_have_are_refused_beforehand():
    with pytest.raises(ValueError, match=r"length must be .* at least 1, got 0"):
        check_lengths(small_recipe(), [10, 0])
    with pytest.raises(ValueError, match="splits must have enough different episodes to share"):
        check_lengths(small_recipe(), [10, 2])
    with pytest.raises(ValueError, match="lengths are for tasks with episodes, got"):
        check_lengths(find_recipe("enwik8-small/staircase"), [4])


def test_lengths_can_be_asked_for_later_and_fail_by_themselves(tmp_path, fake, monkeypatch):
    compare([small_recipe()], folder=tmp_path)
    fake.forget()
    monkeypatch.setattr(runner, "LENGTHS", ["/bin/sh", "-c", "echo out of memory; exit 1"])
    report = compare([small_recipe()], folder=tmp_path, lengths=[30], jobs=2)
    [(_, run)] = report.failures
    assert run.failure == "out of memory"
    assert report.rows[0].results
    score = '{"loss": 1, "error": 0.5, "num_answers": 2}'
    script = f"echo '{{\"30\": {score}}}' > $0/part; mv $0/part $0/lengths.json"
    monkeypatch.setattr(runner, "LENGTHS", ["/bin/sh", "-c", script])
    report = compare([small_recipe()], folder=tmp_path, lengths=[30], jobs=2)
    assert not report.failures
    assert report.rows[0].lengths == [30]
    assert not report.rows[0].is_shared
    plain = json.loads((tmp_path / "report.json").read_text())
    assert plain["rows"][0]["ours"]["lengths"] == {"30": {"mean": 50.0, "deviation": None}}
    assert fake.calls == []


def test_lengths_that_failed_and_are_no_longer_wanted_are_no_failure_beside_other_runs(
    tmp_path, fake, monkeypatch
):
    monkeypatch.setattr(runner, "LENGTHS", ["/bin/sh", "-c", "exit 1"])
    assert compare([small_recipe()], folder=tmp_path, lengths=[30]).failures
    fake.let(trouble={"b, 0": "slow"})
    report = compare([small_recipe(), replace(small_recipe(), name="b")], folder=tmp_path, jobs=2)
    assert not report.failures
    assert [run.is_shared for row in report.rows for run in row.runs] == [False, False]
