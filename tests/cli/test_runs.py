"""Training, resuming, scoring and packing from the command line."""

import json
import os

import pytest

TINY = ("training.num_updates=2", "task.options.num_valid=20", "task.options.num_test=20")


@pytest.fixture
def scores(output_of):
    """Run `eval --json`; give the lines."""
    return lambda *words: [
        json.loads(line) for line in output_of("eval", *words, "--json").splitlines()
    ]


def test_a_run_folder_holds_all_that_is_needed_to_understand_it(task_run):
    assert {entry.name for entry in task_run.iterdir()} == {
        "checkpoints",
        "checksums.json",
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "report.html",
        "result.json",
        "tensorboard",
        "timing.jsonl",
    }
    config = json.loads((task_run / "config.json").read_text())["recipe"]
    assert config["training"]["num_updates"] == 6
    assert json.loads((task_run / "environment.json").read_text())["packages"]["torch"]


def test_a_finished_run_resumes_to_its_result_and_continues_with_more_updates(output_of, tmp_path):
    folder = tmp_path / "run"
    out = output_of("train", "parity/lstm", *TINY, "--output", folder, "--quiet")
    assert "test: error" in out
    assert "finished after 2 updates" in output_of("resume", folder, "--quiet")
    assert "finished after 4 updates" in output_of("resume", folder, "--updates", 4, "--quiet")


def test_a_script_may_call_the_same_command_again_and_again(output_of, staircase, tmp_path):
    words = ("train", "parity/lstm", *TINY, "--output", tmp_path / "run", "--resume", "--quiet")
    assert output_of(*words) == output_of(*words)
    status, _, error = staircase(*words, "seed=3")
    assert (status, error.count("\n")) == (2, 1)
    assert "got seed = 3 in place of 0" in error
    status, _, error = staircase("train", "parity/lstm", "--resume")
    assert (status, "--resume needs a folder" in error) == (2, True)


def test_a_recipe_may_be_a_file(output_of, tmp_path):
    plain = json.loads(output_of("recipes", "parity/lstm"))
    plain["training"]["num_updates"] = 3
    (tmp_path / "mine.json").write_text(json.dumps(plain))
    out = output_of(
        "train", tmp_path / "mine.json", *TINY[1:], "--output", tmp_path / "run", "--quiet"
    )
    assert "finished after 3 updates" in out


def test_runs_without_a_folder_are_numbered(output_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in ("001", "002"):
        out = output_of("train", "parity/lstm", *TINY, "--quiet")
        assert os.path.join("runs", "parity", "lstm", number) in out


def test_recipes_are_listed_and_printed_whole(output_of):
    assert {"random-walk/staircase-n8-c8", "parity/lstm"} < {*output_of("recipes").split()}
    recipe = json.loads(output_of("recipes", "algorithm/ladder-8"))
    assert recipe["model"]["schedule"]["num_passes"] == 8


def test_eval_gives_the_score_of_the_result_and_of_other_lengths(scores, task_run):
    result = json.loads((task_run / "result.json").read_text())
    assert scores(task_run)[0]["error"] == result["test"]["error"]
    lines = scores(task_run, "--length", 48, "--length", 12)
    assert [line["num_answers"] for line in lines] == [20 * 48, 20 * 12]


def test_eval_runs_another_number_of_passes(scores, refused, task_run, output_of, tmp_path):
    other, same = scores(task_run, "--passes", "1,2", "--figure", tmp_path / "passes.png")
    assert same == scores(task_run)[0] | {"passes": 2}
    assert other["loss"] != same["loss"]
    assert (tmp_path / "passes.png").read_bytes().startswith(b"\x89PNG")
    assert "--figure draws scores by --passes" in refused("eval", task_run, "--figure", "x.png")
    assert "test in 1 pass: error" in output_of("eval", task_run, "--passes", 1)
    output_of("train", "parity/lstm", *TINY, "--output", tmp_path / "run", "--quiet")
    line = refused("eval", tmp_path / "run", "--passes", 2)
    assert "--passes is for schedules with num_passes, got lstm; leave it out" in line


def test_eval_counts_the_passes_of_each_score_by_itself(scores, output_of, tmp_path):
    ladder = {"name": "ladder", "num_passes": 4, "span": 16}
    run, lengths = tmp_path / "run", ("--length", 9, "--length", 48)
    output_of(
        "train", "parity/staircase", f"model.schedule={ladder}", *TINY, "--output", run, "--quiet"
    )
    words = (run, "--passes", "2,4", "--exit", "confidence=0.55")
    together = scores(*words, *lengths)
    alone = [one for number in (9, 48) for one in scores(*words, "--length", number)]
    assert together == alone
    assert len({one["mean_passes"] for one in alone}) > 1


def test_eval_scores_by_position(output_of, scores, task_run):
    words = (task_run, "--lanes", 4, "--length", 9, "--by-position")
    whole, *parts = scores(*words)
    positions = {part["position_in_the_episode_from"]: part["num_answers"] for part in parts}
    assert positions == {1: 20, 2: 40, 4: 80, 8: 40}
    [plain] = scores(task_run, "--lanes", 4, "--length", 9)
    for name in ("error", "loss", "num_answers"):
        assert whole[name] == pytest.approx(plain[name], rel=1e-6)
    out = output_of("eval", *words, "--length", 12)
    titles = [line.partition(":")[0] for line in out.splitlines() if line.startswith("test")]
    assert titles == ["test at length 9", "test at length 12"]
    assert "position in the episode from 8: error " in out


def test_a_packed_run_scores_the_same_in_either_precision(output_of, scores, task_run, tmp_path):
    packed = tmp_path / "packed"
    out = output_of("pack", task_run, packed, "--numbers", "float32")
    assert out.startswith(f"wrote {packed}, ")
    assert scores(packed) == scores(task_run)
    losses = [scores(packed, "--precision", name)[0]["loss"] for name in ("float32", "bfloat16")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_a_pretrained_run_is_scored(scores):
    assert scores("pretrained:parity-staircase")[0]["error"] == 0.0


def test_a_packed_run_resumes_to_its_result_and_has_no_page(
    staircase, output_of, refused, task_run, tmp_path
):
    output_of("pack", task_run, tmp_path / "packed")
    for run in (tmp_path / "packed", "pretrained:parity-staircase"):
        status, out, error = staircase("resume", run)
        assert (status, error) == (0, "")
        assert "finished after " in out
        assert "report.html" not in out
        assert "which is packed and has none; name" in refused("resume", run, "--updates", 5000)
    assert not (tmp_path / "packed" / "report.html").exists()


def test_a_mean_of_weights_is_not_called_those_of_one_update(output_of, scores, task_run, tmp_path):
    output_of("pack", task_run, tmp_path / "mean", "--average", task_run, "--average", task_run)
    output_of("pack", tmp_path / "mean", tmp_path / "again", "--numbers", "float32")
    for run in (tmp_path / "mean", tmp_path / "again"):
        assert "answers, mean of the weights of 3 runs)" in output_of("eval", run)
        assert len(scores(run)[0]["average_of"]) == 3
    assert "average_of" not in scores(task_run)[0]


OWN_TASK = """
from dataclasses import dataclass
from staircase_attention.tasks import Episodes, SplitSizes, Task

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


def test_code_of_ones_own_runs_and_code_of_others_only_if_trusted(
    output_of, refused, scores, tmp_path, monkeypatch
):
    code = tmp_path / "echo.py"
    code.write_text(OWN_TASK)
    words = (f"task.reference={code}:Echo", "training.num_updates=2")
    run = tmp_path / "run"
    output_of("train", "parity/lstm", *words, "--output", run, "--quiet")
    whole = scores(run)
    assert "finished after 3 updates" in output_of("resume", run, "--updates", 3, "--quiet")
    # Another user, who has not trained with this file.
    monkeypatch.setenv("STAIRCASE_STATE_HOME", str(tmp_path / "other"))
    for command in ("eval", "resume"):
        assert f"got {code}, which you never trained with" in refused(command, run)
    assert scores(run, "--trust-code")[0]["num_answers"] == whole[0]["num_answers"]
    assert "finished after 3 updates" in output_of("resume", run, "--trust-code", "--quiet")
