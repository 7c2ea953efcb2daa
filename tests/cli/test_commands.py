"""The command line as a user meets it: start-up, help, pictures, costs, interrupts."""

import json
import subprocess
import sys

import pytest
import torch

from commands import call
from staircase_attention import training
from staircase_attention.cli import app, main
from staircase_attention.schedules import SCHEDULES

OPTIONS = {
    "staircase": ["chunk_size=4", "num_passes=3"],
    "cached-staircase": ["chunk_size=4", "num_window_chunks=3", "num_passes=1"],
    "global-cached-staircase": ["chunk_size=4", "num_passes=1"],
    "ladder": ["num_passes=2", "span=8", "order=AABB"],
    "transformer-xl": ["span=8"],
    "universal-transformer": ["num_passes=2", "span=8"],
    "parallel-loop": ["num_passes=3", "span=8"],
    "feedback-transformer": ["span=8", "attend_self=true"],
    "memory-network": ["span=8"],
}

HEAVY = """
import sys
from contextlib import suppress
from staircase_attention.cli import main
for command in sys.argv[1:]:
    sys.argv = ["staircase", *command.split()]
    with suppress(SystemExit):
        main()
    heavy = {"torch", "matplotlib", "transformers", "pyarrow", "tokenizers"} & {*sys.modules}
    print("after", command, *sorted(heavy), file=sys.stderr)
"""


def test_a_command_imports_only_what_it_needs(tmp_path):
    """One after the other, in one process: imports are what takes its time."""
    commands = ["--help", "--version", "recipes", "train --help", "estimate --help"]
    commands += ["train parity/stairs", "draw transformer-xl span=4"]
    needs_matplotlib = f"draw transformer-xl span=4 --output {tmp_path}/a.svg"
    program = [sys.executable, "-c", HEAVY, *commands, needs_matplotlib]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = [line for line in done.stderr.splitlines() if line.startswith("after")]
    *light, last = [f"after {command}" for command in (*commands, needs_matplotlib)]
    assert found == [*light, f"{last} matplotlib"]


def test_the_version_is_printed(output_of):
    assert output_of("--version").startswith("staircase-attention 0.")


def test_completion_knows_commands_schedules_and_recipes(monkeypatch, staircase):
    monkeypatch.setenv("_STAIRCASE_COMPLETE", "complete_bash")
    for words, expected in {
        "staircase res": "resume",
        "staircase draw trans": "transformer-xl",
        "staircase train parity/st": "parity/staircase",
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert expected in staircase()[1].split()


@pytest.mark.parametrize("words", [[], ["prepare"]])
def test_a_command_without_words_prints_its_help_as_an_error(staircase, words):
    status, out, err = staircase(*words)
    assert (status, out) == (2, "")
    assert err.startswith("Usage: staircase")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_model_is_described_and_drawn(output_of, name):
    assert set(OPTIONS) == set(SCHEDULES)
    layers = 1 if name == "universal-transformer" else 2
    words = (name, *OPTIONS[name], "--num-layers", layers, "--segment", 16, "--json")
    known = json.loads(output_of("describe", *words))
    assert known["schedule"]["name"] == name
    for fact in ("num_parameters", "forward_flops_per_token", "state_bytes"):
        assert known[fact] > 0
    assert known["sequential_steps_per_segment"] >= 1
    lines = output_of("draw", name, *OPTIONS[name]).splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 80


def test_describe_prints_a_table_with_the_papers_words(output_of):
    out = output_of("describe", "staircase", "chunk_size=64", "num_passes=4")
    for words in ("25,482,496", "recurrent steps", "step size", "forward size", "256", "FLOPs"):
        assert words in out
    out = output_of("describe", "ladder", "num_passes=2", "span=4", "--segment", 1)
    assert ", 1 token " in out


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_draw_writes_a_picture_to_a_file(output_of, tmp_path, ending):
    path = tmp_path / f"stairs.{ending}"
    assert "wrote" in output_of("draw", "staircase", *OPTIONS["staircase"], "--output", path)
    assert path.stat().st_size > 1000


class Stopped(Exception):  # noqa: N818
    exit_status = 143


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you\ntried"), 2, "memory than"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), 2, "memory than there"),
        (MemoryError(), 2, "memory than there is; use a smaller model"),
        (Stopped("the run was saved"), 143, "staircase: the run was saved"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_an_error_ends_a_command(staircase, monkeypatch, error, status, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(training, "load_language_model", fail, raising=False)
    found, out, err = staircase("sample", "run")
    assert (found, out) == (status, "")
    assert line in err
    assert len(err.splitlines()) == bool(line)


def test_a_bug_is_not_hidden(monkeypatch, staircase):
    def fail(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(training, "load_language_model", fail, raising=False)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        staircase("sample", "run")


@pytest.mark.parametrize(("stream", "words"), [("stdin", ["--prompt", "-"]), ("stdout", [])])
def test_a_command_works_where_a_stream_is_closed(monkeypatch, stream, words):
    """As services and schedulers may start it."""
    monkeypatch.setattr(sys, stream, None)
    status = call("sample", "pretrained:novels-and-talk", *words, "--max-tokens", 1)
    getattr(sys, stream).close()
    assert status == 0


def test_ctrl_c_during_an_import_is_not_a_traceback(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "run", interrupt)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
