"""Runs of a table: their order, how they are picked up again, what is refused before any work."""

import dataclasses
import json
import shlex
import sys

import pytest
from fake_training import FakeTrainer

from staircase_attention.experiments import (
    TABLES,
    compare,
    find_recipe,
    report_pictures,
    reproduce,
    table_rows,
)
from staircase_attention.experiments.recipes import state_tracking
from staircase_attention.experiments.reproduce import TITLES, with_updates
from staircase_attention.training import StopRequested
from staircase_attention.training.run_folder import RunInUseError

ROWS = ["staircase-n8-c8", "ladder-2"]
STAIRCASE, LADDER = (f"random-walk/{row}" for row in ROWS)


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    monkeypatch.setattr(report_pictures, "draw_pictures", lambda *_: {})


def go(folder, trainer, table="random-walk", **options):
    options = {"rows": ROWS, "seeds": 2, "updates": 40} | options
    return reproduce(table, folder=folder, train=trainer.train, resume=trainer.resume, **options)


def rows_of(report):
    return {summary.row.name: summary for summary in report.rows}


def test_all_rows_get_their_first_seed_before_any_gets_its_second(tmp_path):
    trainer = FakeTrainer()
    go(tmp_path, trainer, rows=list(reversed(ROWS)))
    order = [(STAIRCASE, 0), (LADDER, 0), (STAIRCASE, 1), (LADDER, 1)]
    assert trainer.calls == [("train", *run) for run in order]
    assert (tmp_path / "ladder-2" / "seed-1" / "result.json").exists()


def test_all_rows_of_the_table_are_run_where_none_is_named(tmp_path):
    trainer = FakeTrainer()
    go(tmp_path, trainer, rows=None, seeds=1)
    assert len(trainer.calls) == 15
    assert trainer.calls[-1] == ("train", "random-walk/lstm", 0)


def test_finished_runs_are_read_and_not_run_again(tmp_path):
    go(tmp_path, FakeTrainer())
    again = FakeTrainer()
    report = go(tmp_path, again, seeds=3)
    assert again.calls == [("train", STAIRCASE, 2), ("train", LADDER, 2)]
    assert len(rows_of(report)["ladder-2"].results) == 3


def test_a_stopped_run_is_taken_up_where_it_stopped(tmp_path):
    trainer = FakeTrainer(trouble={(LADDER, 0): "stop"})
    with pytest.raises(StopRequested):
        go(tmp_path, trainer)
    assert trainer.calls[-1] == ("train", LADDER, 0)
    assert "ladder-2, seed 0: unfinished" in (tmp_path / "report.md").read_text()

    report = go(tmp_path, trainer)
    assert trainer.calls[2] == ("resume", LADDER, 0)
    assert len(rows_of(report)["ladder-2"].results) == 2
    assert "unfinished" not in (tmp_path / "report.md").read_text()


def test_an_interrupt_ends_everything_but_leaves_a_report(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, FakeTrainer(trouble={(LADDER, 0): "interrupt"}))
    plain = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in plain["rows"] if row["is_run"]] == ["staircase-n8-c8"]


def test_a_failed_run_is_listed_and_tried_again_while_the_others_go_on(tmp_path):
    trainer = FakeTrainer(trouble={(STAIRCASE, 0): "fail"})
    report = go(tmp_path, trainer)
    assert len(trainer.calls) == 4
    [(row, run)] = report.failures
    assert (row, run.seed, run.status) == ("staircase-n8-c8", 0, "failed")
    assert run.failure == "RuntimeError: CUDA out of memory"
    text = (tmp_path / "report.md").read_text()
    assert "staircase-n8-c8, seed 0: failed (RuntimeError: CUDA out of memory)" in text
    kept = (tmp_path / "staircase-n8-c8" / "seed-0.failure.txt").read_text()
    assert "Traceback" in kept

    assert go(tmp_path, trainer).failures == []
    assert trainer.calls[4:] == [("resume", STAIRCASE, 0)]


def test_a_run_that_failed_before_it_began_is_begun_anew(tmp_path):
    trainer = FakeTrainer()

    def refuse(recipe, folder, *, progress=None):
        raise ValueError("no such thing")

    report = reproduce(
        "algorithm",
        folder=tmp_path,
        rows=["ladder-2"],
        seeds=1,
        updates=40,
        train=refuse,
        resume=trainer.resume,
    )
    assert [run.failure for _, run in report.failures] == ["ValueError: no such thing"]
    go(tmp_path, trainer, table="algorithm", rows=["ladder-2"], seeds=1)
    assert trainer.calls == [("train", "algorithm/ladder-2", 0)]


def test_a_run_with_another_config_is_refused_in_one_line_before_any_work(tmp_path):
    go(tmp_path, FakeTrainer(), rows=["ladder-2"], seeds=1)
    trainer = FakeTrainer()
    with pytest.raises(ValueError, match="training") as error:
        go(tmp_path, trainer, updates=80)
    assert trainer.calls == []
    message = str(error.value)
    assert "training.num_updates = 80" in message
    assert "has 40" in message
    assert "name another folder" in message
    assert "\n" not in message


def test_runs_of_rows_that_are_not_asked_for_keep_their_own_length_and_are_reported(tmp_path):
    go(tmp_path, FakeTrainer(), rows=["ladder-2"], updates=40)
    report = go(tmp_path, FakeTrainer(), rows=["ladder-4"], updates=80)
    rows = rows_of(report)
    assert (rows["ladder-2"].num_updates, rows["ladder-4"].num_updates) == ([40], [80])


def test_overrides_change_the_runs_and_are_told(tmp_path):
    trainer = FakeTrainer()
    go(tmp_path, trainer, rows=["ladder-2"], seeds=1, overrides={"training.num_lanes": 8})
    config = json.loads((tmp_path / "ladder-2" / "seed-0" / "config.json").read_text())
    assert config["recipe"]["training"]["num_lanes"] == 8
    assert "`training.num_lanes=8`" in (tmp_path / "report.md").read_text()


def test_a_failed_run_that_somebody_else_finished_is_well_at_the_next_call(tmp_path):
    trainer = FakeTrainer(trouble={("random-walk/ladder-2", 0): "fail"})
    assert go(tmp_path, trainer, seeds=1, rows=["ladder-2"]).failures
    trainer.resume(tmp_path / "ladder-2" / "seed-0")
    report = go(tmp_path, trainer, seeds=1, rows=["ladder-2"])
    assert not report.failures
    assert rows_of(report)["ladder-2"].is_run
    assert [call for call, *_ in trainer.calls] == ["train", "resume"]


def test_a_run_that_somebody_else_is_at_work_on_is_left_to_them(tmp_path):
    def busy(recipe, folder, *, progress=None):
        raise RunInUseError(f"a run folder is worked in by one run at a time, got {folder}")

    report = reproduce(
        "random-walk", folder=tmp_path, rows=["ladder-2"], seeds=1, train=busy, resume=busy
    )
    assert not report.failures
    assert not list((tmp_path / "ladder-2").glob("*.failure.txt"))


def test_every_row_is_checked_before_any_is_run(tmp_path):
    trainer = FakeTrainer()
    good, bad = find_recipe("parity/lstm"), find_recipe("parity/staircase")
    bad = bad.override({"task.options.length": -1})
    with pytest.raises(ValueError, match="length must be a whole number of at least 1, got -1"):
        compare([good, bad], folder=tmp_path, train=trainer.train, resume=trainer.resume)
    assert not trainer.calls


def test_permutations_are_a_table_without_the_paper_s_numbers(tmp_path):
    options = {"table": "permutations", "rows": ["ladder-2"], "seeds": 1}
    report = go(tmp_path, FakeTrainer(), **options)
    text = (tmp_path / "report.md").read_text()
    assert "paper" not in text.lower()
    assert {row.row.name for row in report.rows} >= {"staircase-n4-c16", "ladder-8", "lstm"}


def test_a_short_run_is_evaluated_often_enough_for_a_curve(tmp_path):
    report = go(tmp_path, FakeTrainer(), updates=100, seeds=1)
    assert len(rows_of(report)["ladder-2"].runs[0].curve) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "random-wlak"}, "permutations, permutations-fast, got 'random-wlak'; did you"),
        ({"rows": ["lader-2"]}, "got 'lader-2'; did you mean 'ladder-2'"),
        ({"overrides": {"seed": 3}}, "rows are run with the seeds 0, 1, ..., got seed=...; use"),
        ({"lengths": [400, 0]}, "length must be a whole number of at least 1, got 0"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0; give"),
        ({"updates": -5}, "updates must be a whole number of at least 1, got -5; give"),
        ({"overrides": {"training.num_lane": 8}}, "did you mean 'num_lanes'"),
        (
            {"updates": 3, "overrides": {"training.num_updates": 5}},
            "updates and training.num_updates must agree, got 3 and 5; give one of them",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path, options, message):
    trainer = FakeTrainer()
    with pytest.raises(ValueError, match="got") as error:
        go(tmp_path / "runs", trainer, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert trainer.calls == []
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"a folder that can be written, got .*name another"):
        go(tmp_path / "file" / "runs", FakeTrainer())


def test_the_command_is_that_of_the_process_unless_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/staircase", "reproduce", "random walk"])
    report = go(tmp_path, FakeTrainer(), seeds=1)
    assert shlex.split(report.experiment.command) == ["staircase", "reproduce", "random walk"]


def test_any_recipes_can_be_compared(tmp_path):
    trainer = FakeTrainer()
    recipes = [find_recipe("parity/staircase"), find_recipe("parity/transformer-xl")]
    report = compare(
        recipes,
        folder=tmp_path,
        seeds=2,
        title="Parity",
        train=trainer.train,
        resume=trainer.resume,
    )
    assert [call[1:] for call in trainer.calls] == [
        (recipe.name, seed) for seed in (0, 1) for recipe in recipes
    ]
    assert (tmp_path / "parity" / "staircase" / "seed-1").is_dir()
    assert [summary.row.model for summary in report.rows] == ["Staircase", "Transformer-XL"]
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Parity\n")
    assert "paper" not in text


def test_recipes_of_one_name_are_not_compared(tmp_path):
    recipe = find_recipe("parity/staircase")
    with pytest.raises(ValueError, match="different names, got 'parity/staircase' twice; rename"):
        compare([recipe, recipe], folder=tmp_path)


def test_every_table_has_a_title_and_the_same_rows():
    assert set(TITLES) == set(TABLES)
    for table in TABLES:
        assert [row.name for row in table_rows(table)] == list(state_tracking.ROWS)


@pytest.mark.parametrize("table", [name for name in TABLES if name.endswith("-fast")])
def test_settings_of_our_own_end_on_whole_episodes(table):
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
    evenly = dataclasses.replace(grows, first_updates=None)
    assert with_updates(even, 1000).training.growth == evenly
    assert with_updates(usual, 500).training.growth == usual.training.growth
