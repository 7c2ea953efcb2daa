"""Runs are logged by the packages of others, and drawn in a terminal."""

import sys
import types

import pytest
from rich.console import Console

from commands import call
from staircase_attention.display import Terminal, sketch

TINY = (
    *("training.num_updates=4", "training.log_every=2", "training.evaluate_every=4"),
    *("task.options.num_valid=20", "task.options.num_test=20"),
)


class Recorded(types.ModuleType):
    """A package that notes what is called."""

    def __init__(self):
        super().__init__("recorded")
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *values, **named: self.calls.append((name, values, named))


@pytest.mark.parametrize(
    ("logger", "names"),
    [
        ("wandb", ["init", "log", "log", "log", "finish"]),
        (
            "mlflow",
            ["set_experiment", "start_run", "log_dict", *["log_metrics"] * 3, "end_run"],
        ),
    ],
)
def test_a_run_is_logged_with_its_recipe_and_scores(logger, names, monkeypatch, tmp_path):
    package = Recorded()
    monkeypatch.setitem(sys.modules, logger, package)
    options = ("--output", tmp_path / "run", "--quiet", "--logger", logger)
    assert call("train", "parity/staircase", *TINY, *options) == 0
    assert [name for name, _, _ in package.calls] == names
    steps = [(named.get("step"), values) for _, values, named in package.calls]
    logged = [(step, set(values[0])) for step, values in steps if step]
    train = {"loss", "error", "tokens_per_second"}
    assert logged == [(2, train), (4, train), (4, {"valid_error"})]
    assert "training" in str(package.calls)


@pytest.mark.parametrize("failing", [["log"], ["finish"], ["log", "finish"]])
def test_a_logger_that_fails_costs_no_training(failing, monkeypatch, tmp_path, capsys):
    package = Recorded()
    for name in failing:
        setattr(package, name, lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "wandb", package)
    options = ("--output", tmp_path / "run", "--logger", "wandb")
    assert call("train", "parity/staircase", *TINY, *options) == 0
    assert capsys.readouterr().err.count("logging to wandb stopped: ") == 1


def test_a_logger_that_cannot_begin_says_so_in_one_line(monkeypatch, tmp_path, capsys):
    package = Recorded()
    package.set_experiment = lambda *_, **__: 1 / 0
    monkeypatch.setitem(sys.modules, "mlflow", package)
    options = ("--output", tmp_path / "run", "--logger", "mlflow")
    assert call("train", "parity/staircase", *TINY, *options) == 2
    error = capsys.readouterr().err
    assert "mlflow must be able to open a run, got ZeroDivisionError" in error
    assert "Traceback" not in error
    assert call("resume", tmp_path / "run") == 0


def test_a_logger_that_is_not_there_is_refused_before_training(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for logger, line in (
        ("wandb", "run pip install 'staircase-attention[wandb]'"),
        ("comet", "--logger must be one of wandb, mlflow, got 'comet'"),
    ):
        options = ("--output", tmp_path / "run", "--logger", logger)
        assert call("train", "parity/staircase", *TINY, *options) == 2
        assert line in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_terminal_shows_the_curve_below_the_bar():
    terminal = Terminal()
    terminal._progress.live.console = console = Console(record=True, width=72, force_terminal=True)
    terminal.begin("an earlier run", 0, 100)
    terminal.begin("a [/run] with a name of many words", 0, 100)
    for update in range(1, 101):
        terminal.advance(update, loss=100 / update, tokens_per_second=1.0, valid_bits_per_byte=2.5)
    terminal.end()
    text = console.export_text()
    assert "100/100" in text
    assert "██▄▁" in text
    assert "a [/run] with a name of many words" in text
    assert "loss 1.0000  1 tokens/s  valid bits per byte 2.5000\n" in text
    assert text.count("an earlier run") == 1


def test_a_curve_of_few_late_losses_has_its_updates_where_they_belong():
    *bars, updates = sketch({1_000: 3.0, 1_200: 2.0, 2_000: 1.0}, width=21, height=2).split("\n")
    assert bars == ["3.0000 ████▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁", "1.0000 ████████████████████▁"]
    assert updates == "       1,000           2,000"
    assert sketch({1_000: 2.0, 2_000: 1.0}, width=2, height=1).endswith("1,000 2,000")


def test_messages_above_a_bar_are_printed_as_they_are(capsys):
    Terminal().say("[bold]a[/gone] :smile:")
    assert capsys.readouterr().err == "[bold]a[/gone] :smile:\n"
