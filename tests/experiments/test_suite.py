"""The suite: one cell per model and task, resumed, reported, and open to the user's model."""

import json
import re
import types
from pathlib import Path

import pytest

from commands import call
from staircase_attention.experiments import runner, suite
from staircase_attention.experiments.results import score_lengths
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import build_model, check_recipe


class Inline:
    """Stands for a process of the package: trains or scores here, where all is imported."""

    def __init__(self, command, **_):
        is_training = command[: len(runner.STAIRCASE)] == runner.STAIRCASE
        words = command[len(runner.STAIRCASE if is_training else runner.LENGTHS) :]
        if is_training:
            self.status = call(*words)
        else:
            self.status = score_lengths(Path(words[0]), [int(word) for word in words[1:]]) or 0

    def poll(self):
        return self.status


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
        check_recipe(recipe)


def test_cells_are_trained_once_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "subprocess", types.SimpleNamespace(Popen=Inline))
    settings = ("training.num_updates=2", "task.options.num_test=9", "task.options.num_valid=9")
    words = ["suite", *settings, "--small", "--models", "lstm", "--quiet"]
    words += ["--own", "parity/lstm", "--own", "model.width=8", "--output", str(tmp_path / "out")]
    assert call(*words, "--tasks", "even-pairs") == 0
    result = tmp_path / "out" / "even-pairs" / "lstm" / "seed-0" / "result.json"
    written = result.stat().st_mtime_ns
    assert call(*words, "--tasks", "even-pairs,boxes") == 0
    assert result.stat().st_mtime_ns == written
    assert "even-pairs" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "suite.json").read_text())
    assert [*found["cells"]] == ["even-pairs", "boxes"]
    for cells in found["cells"].values():
        assert [*cells] == ["LSTM", "own"]
        for cell in cells.values():
            assert 0 <= cell["trained"] <= 100
            assert [*cell["lengths"]] == ["41", "194", "347", "500"]
            assert cell["budget"]["num_tokens"] == 2 * 32 * 32
            assert cell["longer"] == pytest.approx(sum(cell["lengths"].values()) / 4)
        assert cells["own"]["budget"]["num_parameters"] < cells["LSTM"]["budget"]["num_parameters"]
    page = (tmp_path / "out" / "suite.md").read_text()
    assert "| even-pairs | 100.0 | 100.0 | 100.0 |  | 100.0 |" in page
    for name in ("heat-map.png", "lengths.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000


def test_published_scores_are_of_tasks_of_the_suite():
    assert {*suite.published()["scores"]} < {*suite.TASKS}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "parity"], "a task of the suite must be one of .* got 'parity'; did you mean"),
        (["--models", "gru"], "a model of the suite must be one of .* got 'gru'"),
        (["--own", "parity/lstm", "--own", "parity/ladder"], "--own takes one recipe, got"),
        (["--show", "--tasks", "boxs"], "a task of the suite must be .* did you mean 'boxes'"),
    ],
)
def test_what_the_suite_does_not_have_is_refused(words, message, capsys):
    assert call("suite", *words) == 2
    assert re.search(message, capsys.readouterr().err)
