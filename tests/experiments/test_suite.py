"""The suite: one cell per model and task, resumed, reported, and open to the user's model."""

import json
import re
import signal

import pytest
from fake_runs import send_when

from commands import call
from staircase_attention.experiments import runner, suite
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import build_model

SCORE = {"loss": 1, "error": 0.5, "num_answers": 2}
SCORES = {41: SCORE, 194: SCORE, 347: SCORE, 500: {**SCORE, "error": 0.9}}


@pytest.mark.parametrize("budget", [suite.FULL, suite.SMALL])
def test_models_of_a_budget_have_about_as_many_parameters(budget):
    recipes = suite.suite_recipes(budget, tasks=["parity-check"])["parity-check"]
    assert [recipe.name for recipe in recipes] == [*budget.models]
    sizes = [
        sum(one.numel() for one in build_model(recipe, build_dataset(recipe)).parameters())
        for recipe in recipes
    ]
    assert max(sizes) < 1.2 * min(sizes)


def test_every_task_can_be_trained_on():
    for task, recipes in suite.suite_recipes(suite.SMALL, models=["lstm"]).items():
        [recipe] = recipes
        assert recipe.task.reference == task
        build_dataset(recipe).check()


def test_cells_are_trained_once_and_reported(tmp_path, fake, monkeypatch, capsys):
    script = f"echo '{json.dumps(SCORES)}' > $0/part; mv $0/part $0/lengths.json"
    monkeypatch.setattr(runner, "LENGTHS", ["/bin/sh", "-c", script])
    words = ["suite", "training.num_updates=2", "--small", "--models", "staircase,lstm", "--quiet"]
    words += ["--own", "parity/lstm", "--output", str(tmp_path)]
    monkeypatch.setenv("COLUMNS", "40")
    assert call(*words, "--tasks", "even-pairs") == 0
    fake.forget()
    assert call(*words, "--tasks", "even-pairs,boxes") == 0
    assert sorted(name for _, name, _ in fake.calls) == ["lstm", "own", "staircase"]
    # Scores are whole in a terminal that is too narrow for them.
    assert capsys.readouterr().out.count("74.9 / 40.0") == 3 * 3
    found = json.loads((tmp_path / "suite.json").read_text())
    assert [*found["cells"]] == ["even-pairs", "boxes"]
    for cells in found["cells"].values():
        assert [*cells] == ["Staircase", "LSTM", "own"]
        for cell in cells.values():
            assert cell["trained"] == pytest.approx(74.9)
            assert [*cell["lengths"]] == ["41", "194", "347", "500"]
            assert cell["longer"] == pytest.approx(40)
            assert cell["budget"]["num_tokens"] == 2 * 32 * 32
    page = (tmp_path / "report.html").read_text()
    scores = "".join(f"<td>{score}</td>" for score in ("100.0", "100.0", "100.0", "", "100.0"))
    assert re.search(f"<td>even-pairs</td>.*{scores}</tr>", page)
    assert page.count("<img alt=") == 2


def test_cells_of_several_tasks_run_at_a_time(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(
        runner, "LENGTHS", ["/bin/sh", "-c", f"echo '{json.dumps(SCORES)}' > $0/lengths.json"]
    )
    fake.let(trouble={"lstm, 0": "slow"})
    words = ["--small", "--models", "lstm", "--quiet", "--output", str(tmp_path)]
    assert call("suite", *words, "--tasks", "boxes,even-pairs", "--jobs", "2") == 0
    cells = json.loads((tmp_path / "suite.json").read_text())["cells"]
    assert [*cells] == ["boxes", "even-pairs"]
    assert all(row["LSTM"]["budget"]["shared"] for row in cells.values())


def test_a_cell_is_the_mean_of_its_seeds(tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setattr(
        runner, "LENGTHS", ["/bin/sh", "-c", f"echo '{json.dumps(SCORES)}' > $0/lengths.json"]
    )
    words = ["--small", "--models", "lstm", "--quiet", "--output", str(tmp_path)]
    assert call("suite", *words, "--tasks", "boxes", "--seeds", "2") == 0
    cell = json.loads((tmp_path / "suite.json").read_text())["cells"]["boxes"]["LSTM"]
    assert {seed: one["trained"] for seed, one in cell["seeds"].items()} == {
        "0": pytest.approx(74.9),
        "1": pytest.approx(73.9),
    }
    assert cell["trained"] == pytest.approx(74.4)
    assert cell["longer"] == pytest.approx(40)
    assert call("suite", *words, "seed=1") == 2
    assert "several seeds, got seed=...; use --seeds" in capsys.readouterr().err


def test_a_task_that_has_not_begun_is_not_reported_when_the_suite_is_stopped(
    tmp_path, fake, capsys
):
    fake.let(trouble={"lstm, 0": "wait"})
    send_when(fake.waiting, signal.SIGINT)
    words = ["--small", "--models", "lstm", "--quiet", "--output", str(tmp_path)]
    assert call("suite", *words, "--tasks", "boxes,even-pairs", "--jobs", "1") == 130
    assert "stopped with 0 of 2 runs finished" in capsys.readouterr().err
    assert not (tmp_path / "suite.json").exists()


def test_a_run_that_is_stopped_before_its_scores_is_not_called_finished(
    tmp_path, fake, monkeypatch, capsys
):
    script = f"touch {fake.waiting}; exec sleep 60"
    monkeypatch.setattr(runner, "LENGTHS", ["/bin/sh", "-c", script])
    monkeypatch.setattr(runner, "SHOW_SECONDS", 0)
    send_when(fake.waiting, signal.SIGINT)
    words = ["--small", "--models", "lstm", "--jobs", "1", "--output", str(tmp_path)]
    assert call("suite", *words, "--tasks", "boxes,even-pairs", "training.num_updates=9") == 130
    shown = capsys.readouterr().err
    assert "boxes, lstm, seed 0: stopped before it was scored at all lengths\n" in shown
    assert "100.0%" not in shown
    page = (tmp_path / "boxes" / "report.html").read_text()
    assert "lstm, seed 0: unfinished; the next call resumes it" in page


def test_a_task_with_too_few_episodes_is_refused_before_any_run(tmp_path, fake, capsys):
    words = ["--small", "--models", "lstm", "--tasks", "cycle-navigation,parity-check"]
    words += ["task.options.length=5", "--output", str(tmp_path / "new")]
    assert call("suite", *words) == 2
    assert "in 100 draws of parity-check; use longer" in capsys.readouterr().err
    assert fake.calls == []
    assert not (tmp_path / "new").exists()


def test_a_cell_that_fails_is_empty_and_the_others_go_on(tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setattr(
        runner,
        "LENGTHS",
        ["/bin/sh", "-c", "echo {} > $0/part; mv $0/part $0/lengths.json; exit 1"],
    )
    fake.let(trouble={"lstm, 0": "fail"})
    words = ["--small", "--models", "lstm,ladder", "--quiet", "--output", str(tmp_path)]
    assert call("suite", *words, "--tasks", "boxes") == 1
    cells = json.loads((tmp_path / "suite.json").read_text())["cells"]["boxes"]
    assert cells["LSTM"]["trained"] is None
    line = "boxes, LSTM: failed (CUDA out of memory); the next call retries"
    out = capsys.readouterr().out
    assert line in out
    assert "failed" in out.partition("tokens, time")[0]
    assert cells["Ladder"]["trained"] == pytest.approx(74.9)
    assert cells["Ladder"]["longer"] is None


def test_a_model_of_the_users_is_a_recipe_or_the_staircase_with_settings_changed():
    def own(**options):
        return suite.suite_recipes(suite.SMALL, tasks=["boxes"], **options)["boxes"][-1]

    changed = own(own={"model.schedule.num_passes": 3})
    assert changed.name == "own"
    assert changed.model.schedule.num_passes == 3
    named = own(own_recipe="parity/lstm", own={"model.width": 7})
    assert (named.model.kind, named.model.width) == ("lstm", 7)
    assert named.training == changed.training
    assert own().name == "lstm"


def test_published_scores_are_of_tasks_of_the_suite():
    assert {*suite.published()["scores"]} < {*suite.TASKS}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "parity"], "a task of the suite must be .* did you mean 'parity-check'"),
        (["--models", "gru"], "a model of the suite must be .* got 'gru'"),
        (["--own", "parity/lstm", "--own", "parity/ladder"], "--own takes one recipe, got"),
        (["--show", "--tasks", "boxs"], "a task must be one of .* did you mean 'boxes'"),
    ],
)
def test_what_the_suite_does_not_have_is_refused(words, message, capsys):
    assert call("suite", *words) == 2
    assert re.search(message, capsys.readouterr().err)
