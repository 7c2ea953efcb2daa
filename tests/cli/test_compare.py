"""Recipes side by side from the command line, and several runs at a time."""

import json
import os
import signal
import time

import pytest
from fake_runs import FakeStaircase
from hypothesis import given
from hypothesis import strategies as st
from small_runs import FORKS

from commands import call_in_group
from staircase_attention.cli.arguments import parse_assignments, parse_values

WORDS = st.text(alphabet="abcxyz_-./:", min_size=1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e3, 1e3) | st.text("ab'\",[}\\ "),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(PLAIN, min_size=1, max_size=4))
def test_values_survive_the_splitting_at_commas(values):
    words = [f"a.b={','.join(map(repr, values))}"]
    assert parse_assignments(words, parse_values) == {"a.b": values}


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_bare_words_survive_too(words):
    assert parse_assignments([f"path={','.join(words)}"], parse_values) == {"path": words}


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    return FakeStaircase(monkeypatch, tmp_path_factory.mktemp("calls") / "calls")


def test_titles_are_printed_as_they_are(staircase, tmp_path, fake):
    title = "[bold]Rates[/gone] :smile:"
    words = ("compare", "parity/lstm", "--title", title, "--quiet", "--output", str(tmp_path))
    status, out, err = staircase(*words, "training.num_updates=100")
    assert (status, err) == (0, "")
    # The table is narrower than its title.
    assert " ".join(out.split()).startswith(title)


def test_compare_runs_every_combination_and_prints_a_table(staircase, tmp_path, fake):
    words = ["compare", "parity/lstm", "parity/staircase", "--title", "Rates", "--quiet"]
    words += ["--vary", "training.optimizer.learning_rate=1e-3,0.003", "--output", str(tmp_path)]
    status, out, err = staircase(*words, "training.num_updates=100", "--jobs", "2")
    assert (status, err) == (0, "")
    assert out.split()[0] == "Rates"
    assert "|" not in out
    names = [f"parity/{m}/learning_rate={r}" for m in ("lstm", "staircase") for r in (0.001, 0.003)]
    plain = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in plain["rows"]] == [row["recipe"] for row in plain["rows"]]
    assert [row["name"] for row in plain["rows"]] == names
    for name, rate in zip(names, [0.001, 0.003] * 2, strict=True):
        config = json.loads((tmp_path / name / "seed-0" / "config.json").read_text())
        assert config["recipe"]["training"]["optimizer"]["learning_rate"] == rate


def test_reproduce_runs_rows_and_shows_what_failed(staircase, tmp_path, fake):
    fake.let(trouble={"random-walk/lstm, 0": "fail"})
    words = ["reproduce", "random-walk", "--rows", "lstm, ladder-2", "--seeds", "1"]
    words += ["--updates", "40", "training.num_lanes=8", "--output", str(tmp_path / "runs")]
    status, out, err = staircase(*words)
    assert status == 1
    assert "run 1 of 2: random-walk/ladder-2, seed 0" in err
    assert "lstm, seed 0: failed (CUDA out of memory); the next call tries again" in out
    assert out.splitlines()[-1] == f"wrote {tmp_path / 'runs' / 'report.html'}"
    assert staircase(*words)[0] == 0


def test_the_demo_draws_trains_and_compares(staircase, tmp_path, fake):
    status, out, _ = staircase("demo", "--output", str(tmp_path / "demo"))
    assert status == 0
    assert [name for _, name, _ in fake.calls] == ["parity/staircase", "parity/transformer-xl"]
    assert "staircase chunk_size=2 num_passes=2" in out
    assert "25.00" in out


def test_ctrl_c_saves_the_runs_under_way_and_leaves_no_process(tmp_path):
    """The signal goes to the whole group, as from a terminal."""
    words = ["compare", "parity/lstm", "training.num_updates=100000", "--jobs", "2"]
    words += ["training.log_every=1", "task.options.num_valid=20", "task.options.num_test=20"]
    words += ["--output", tmp_path / "runs"]
    process = FORKS.Process(target=call_in_group, args=[tmp_path / "errors", *words])
    process.start()
    metrics = tmp_path / "runs" / "parity" / "lstm" / "seed-0" / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.is_alive(), "it ended before it began"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.join()
    err = (tmp_path / "errors").read_text()
    assert process.exitcode == 128 + signal.SIGINT
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("staircase: stopped with 0 of 1 runs finished")
    assert "parity/lstm, seed 0: unfinished" in (tmp_path / "runs" / "report.html").read_text()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
