"""Training, resuming and scoring from the command line."""

import json
import os

import pytest

TINY = (
    "training.num_updates=6",
    "training.evaluate_every=3",
    "training.checkpoint_every=3",
    "task.options.num_valid=20",
    "task.options.num_test=20",
)


@pytest.fixture
def run(staircase, tmp_path):
    """A run of six updates."""
    folder = tmp_path / "run"
    status, out, err = staircase("train", "parity/staircase", *TINY, "--output", str(folder))
    assert status == 0, err
    assert "test: error" in out
    assert "finished after 6 updates" in out
    assert str(folder) in err
    return folder


def test_a_run_folder_holds_all_that_is_needed_to_understand_it(run):
    names = {entry.name for entry in run.iterdir()}
    assert names == {
        "checkpoints",
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "result.json",
        "tensorboard",
        "timing.jsonl",
    }
    config = json.loads((run / "config.json").read_text())["recipe"]
    assert config["training"]["num_updates"] == 6
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"]


def test_a_finished_run_resumes_to_its_result(staircase, run):
    status, out, _ = staircase("resume", str(run))
    assert status == 0
    assert "finished after 6 updates" in out


def test_eval_gives_the_score_of_the_result_and_of_other_lengths(staircase, run):
    result = json.loads((run / "result.json").read_text())
    status, out, _ = staircase("eval", str(run), "--json")
    assert status == 0
    assert json.loads(out)["error"] == result["test"]["error"]
    status, out, _ = staircase("eval", str(run), "--length", "48", "--length", "12", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["num_answers"] for line in lines] == [20 * 48, 20 * 12]


def test_eval_tells_first_episodes_from_later_ones(staircase, run):
    words = ["eval", str(run), "--by-episode", "--lanes", "4"]
    status, out, err = staircase(*words, "--json")
    assert status == 0, err
    whole, *parts = map(json.loads, out.splitlines())
    # Twenty episodes in four lanes: five in each.
    assert [part["episode_of_its_lane_from"] for part in parts] == [1, 2, 4]
    counts = [part["num_answers"] for part in parts]
    assert [count / whole["num_answers"] for count in counts] == [0.2, 0.4, 0.4]
    _, plain, _ = staircase("eval", str(run), "--lanes", "4", "--json")
    for name in ("error", "loss", "num_answers"):
        assert whole[name] == pytest.approx(json.loads(plain)[name], rel=1e-6)
    status, out, _ = staircase(*words)
    assert "episode of its lane from 4: error " in out


def test_eval_tells_where_in_an_episode_and_in_which_a_model_errs(staircase, run):
    words = ["eval", str(run), "--by-position", "--by-episode", "--length", "9"]
    status, out, err = staircase(*words, "--json")
    assert status == 0, err
    whole, *parts = map(json.loads, out.splitlines())
    counts = [
        [part["num_answers"] for part in parts if name in part]
        for name in ("position_in_the_episode_from", "episode_of_its_lane_from")
    ]
    assert counts[0] == [20, 2 * 20, 4 * 20, 2 * 20]
    assert sum(counts[0]) == sum(counts[1]) == whole["num_answers"] == 9 * 20
    status, out, _ = staircase(*words)
    assert "position in the episode from 8: error " in out


def test_eval_tells_first_episodes_from_later_ones_at_other_lengths(staircase, run):
    lengths = ["--length", "12", "--length", "9"]
    _, out, _ = staircase("eval", str(run), "--by-episode", "--lanes", "10", *lengths, "--json")
    parts = [json.loads(line) for line in out.splitlines() if "episode_of_its" in line]
    found = [(part["length"], part["num_answers"], part["split"]) for part in parts]
    assert found == [(length, 10 * length, "test") for length in (12, 12, 9, 9)]


@pytest.mark.parametrize(
    "words",
    [
        ["--lanes", "0"],
        ["--checkpoint", "7"],
        ["--split", "dev"],
        ["--length", "0"],
    ],
)
def test_eval_refuses_what_is_not_there(staircase, run, words):
    status, out, err = staircase("eval", str(run), *words)
    assert status == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1


def test_a_folder_in_use_is_not_trained_over(staircase, run):
    before = (run / "metrics.jsonl").read_bytes()
    status, _, err = staircase("train", "parity/staircase", *TINY, "--output", str(run))
    assert status == 2
    assert "new or empty" in err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_an_output_that_cannot_be_written_is_refused(staircase, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    status, _, err = staircase("train", "parity/staircase", "--output", str(blocked / "run"))
    assert status == 2
    assert "must be writable" in err
    assert len(err.strip().splitlines()) == 1


def test_runs_without_a_folder_are_numbered(staircase, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in ("001", "002"):
        status, out, _ = staircase("train", "parity/lstm", *TINY, "--quiet")
        assert status == 0
        assert os.path.join("runs", "parity", "lstm", number) in out


def test_a_task_of_ones_own_is_named_on_the_command_line(staircase, tmp_path):
    (tmp_path / "echo.py").write_text(OWN_TASK)
    status, out, err = staircase(
        "train",
        "parity/staircase",
        "training.num_updates=2",
        f"task.reference={tmp_path / 'echo.py'}:Echo",
        "task.options={}",
        "--output",
        str(tmp_path / "run"),
    )
    assert status == 0, err
    assert "finished after 2 updates" in out


def test_recipes_are_listed_and_printed_whole(staircase):
    status, out, _ = staircase("recipes")
    assert status == 0
    assert "random-walk/staircase-n8-c8" in out
    assert "parity/lstm" in out
    status, out, _ = staircase("recipes", "algorithm/ladder-8")
    assert json.loads(out)["model"]["schedule"]["num_passes"] == 8


def test_reproduce_runs_rows_and_writes_a_report(staircase, tmp_path):
    words = [
        "reproduce",
        "random-walk",
        "training.num_lanes=4",
        "training.evaluation_lanes=4",
        "task.options={'length': 8, 'num_valid': 8, 'num_test': 8}",
        "--rows",
        "staircase-n2-c32,ladder-2",
        "--seeds",
        "1",
        "--updates",
        "2",
        "--output",
        str(tmp_path / "results"),
    ]
    status, out, err = staircase(*words)
    assert status == 0, err
    assert "2 of 50,000" in out
    names = {entry.name for entry in (tmp_path / "results").iterdir()}
    assert {"report.md", "report.json", "figure-2.png", "figure-2.svg"} <= names
    again, _, _ = staircase(*words)
    assert again == 0


OWN_TASK = """
from dataclasses import dataclass
import numpy as np
from staircase_attention.tasks import Episodes, Task
from staircase_attention.tasks import SplitSizes

@dataclass(frozen=True)
class Echo(Task):
    length: int = 24
    input_symbols = ("a", "b")
    output_symbols = ("a", "b")
    split_sizes = SplitSizes(valid=20, test=20)

    def generate(self, generator, num_episodes):
        inputs = generator.integers(0, 2, size=(num_episodes, self.length))
        return Episodes.from_grid(inputs, inputs)

    def with_length(self, length):
        return Echo(length)
"""
