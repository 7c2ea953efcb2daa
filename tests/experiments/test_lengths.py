"""Runs are scored on other lengths once, with their best weights, and asked about it in time."""

import json
from dataclasses import replace

import pytest
from small_runs import small_recipe

from staircase_attention.experiments import compare, find_recipe
from staircase_attention.experiments.lengths import (
    check_lengths,
    missing_lengths,
    read_lengths,
    score_lengths,
)


def test_the_length_of_training_has_the_score_of_the_result(small_run):
    result = json.loads((small_run / "result.json").read_text())
    length = small_recipe().task.options["length"]
    score_lengths(small_run, [length, 3 * length])
    scores = read_lengths(small_run)
    assert scores[length].error == result["test"]["error"]
    assert scores[3 * length].num_answers == 3 * scores[length].num_answers


def test_what_has_a_score_is_not_scored_again(small_run, monkeypatch):
    score_lengths(small_run, [15])
    assert missing_lengths(small_run, [15, 17]) == [17]
    monkeypatch.setattr("staircase_attention.experiments.lengths.load_run", None)
    score_lengths(small_run, [15])


def test_lengths_that_a_task_cannot_have_are_refused_beforehand():
    with pytest.raises(ValueError, match="length must be a whole number of at least 1, got 0"):
        check_lengths(small_recipe(), [10, 0])
    with pytest.raises(ValueError, match="splits must have enough different episodes to share"):
        check_lengths(small_recipe(), [10, 2])
    with pytest.raises(ValueError, match="lengths are for tasks with episodes, got them for"):
        check_lengths(find_recipe("enwik8-small/staircase"), [4])
    check_lengths(find_recipe("enwik8-small/staircase"), [])


def test_a_comparison_scores_every_run_on_other_lengths(tmp_path):
    report = compare([small_recipe()], folder=tmp_path, lengths=[10, 30])
    [row] = report.rows
    assert row.lengths == [10, 30]
    assert row.length_error(10).mean == row.error("test").mean
    text = (tmp_path / "report.md").read_text()
    assert "| Row | 10 | 30 | Seeds |" in text
    assert "(lengths.png)" in text
    assert (tmp_path / "lengths.png").exists()
    plain = json.loads((tmp_path / "report.json").read_text())
    assert set(plain["rows"][0]["ours"]["lengths"]) == {"10", "30"}


def test_times_are_known_at_every_validation(tmp_path):
    recipe = small_recipe(training__log_every=4, training__evaluate_every=3)
    report = compare([recipe], folder=tmp_path)
    [run] = report.rows[0].runs
    assert [update for update, _ in run.curve] == list(run.seconds) == [3, 6, 9, 12]
    assert run.seconds[12] > run.seconds[9]
    # The result has three digits after the point.
    assert run.result.wall_seconds == pytest.approx(run.seconds[12], abs=1e-3)


def test_lengths_can_be_asked_for_later_and_fail_by_themselves(tmp_path, monkeypatch):
    compare([small_recipe()], folder=tmp_path)
    before = (tmp_path / "small" / "seed-0" / "metrics.jsonl").read_bytes()

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("staircase_attention.experiments.planned_run.score_lengths", fail)
        report = compare([small_recipe()], folder=tmp_path, lengths=[30])
    [(_, run)] = report.failures
    assert run.failure == "RuntimeError: out of memory"
    assert report.rows[0].is_run
    report = compare([small_recipe()], folder=tmp_path, lengths=[30], jobs=2)
    assert not report.failures
    assert report.rows[0].lengths == [30]
    assert (tmp_path / "small" / "seed-0" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", ["[1", "[1]", '{"30": {}}', '{"a": {"error": 1}}'])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "lengths.json").write_text(content)
    with pytest.raises(ValueError, match=r"lengths\.json must be as it was written, got .*delete"):
        read_lengths(tmp_path)


def test_a_report_without_lengths_leaves_no_picture_of_them(tmp_path):
    compare([small_recipe()], folder=tmp_path, lengths=[10, 30])
    assert (tmp_path / "lengths.png").exists()
    compare([replace(small_recipe(), name="another")], folder=tmp_path)
    assert not [*tmp_path.glob("lengths.*")]
    assert (tmp_path / "learning-curves.svg").exists()


def test_a_run_is_no_place_for_a_report(small_run):
    with pytest.raises(ValueError, match=r"a folder of their own, got .*, which is that of a run;"):
        compare([small_recipe()], folder=small_run)
    assert not (small_run / "report.md").exists()
