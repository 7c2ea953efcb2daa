"""The command line as a user meets it."""

import json
import subprocess
import sys

import pytest

from staircase_attention.schedules import SCHEDULES

OPTIONS = {
    "staircase": ["chunk_size=4", "num_passes=3"],
    "cached-staircase": ["chunk_size=4", "num_window_chunks=3", "num_passes=1"],
    "global-cached-staircase": ["chunk_size=4", "num_passes=1"],
    "ladder": ["num_passes=2", "span=8", "order=AABB"],
    "transformer-xl": ["span=8"],
    "universal-transformer": ["num_passes=2", "span=8"],
    "feedback-transformer": ["span=8", "attend_self=true"],
    "memory-network": ["span=8"],
}


def test_every_model_has_options_here():
    assert set(OPTIONS) == set(SCHEDULES)


@pytest.mark.parametrize("name", OPTIONS)
def test_describe_prints_all_it_knows_as_json(staircase, name):
    layers = "1" if name == "universal-transformer" else "2"
    status, out, _ = staircase(
        "describe", name, *OPTIONS[name], "--num-layers", layers, "--segment", "16", "--json"
    )
    known = json.loads(out)
    assert status == 0
    assert known["schedule"]["name"] == name
    for fact in ("num_parameters", "forward_flops_per_token", "state_bytes"):
        assert known[fact] > 0
    assert known["sequential_steps_per_segment"] >= 1


def test_describe_prints_a_table_with_the_papers_words(staircase):
    status, out, _ = staircase("describe", "staircase", "chunk_size=64", "num_passes=4")
    assert status == 0
    for words in ("25,482,496", "recurrent steps", "step size", "forward size", "256", "FLOPs"):
        assert words in out


@pytest.mark.parametrize("name", OPTIONS)
def test_draw_prints_a_picture_of_every_model(staircase, name):
    status, out, _ = staircase("draw", name, *OPTIONS[name])
    assert status == 0
    assert len(out.splitlines()) > 4
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_draw_writes_a_picture_to_a_file(staircase, tmp_path, ending):
    path = tmp_path / f"stairs.{ending}"
    status, out, _ = staircase("draw", "staircase", *OPTIONS["staircase"], "--output", str(path))
    assert status == 0
    assert path.stat().st_size > 1000
    assert "wrote" in out


WRONG = {
    "unknown schedule": ["draw", "stairway"],
    "no options": ["draw", "staircase"],
    "a word that is no option": ["draw", "staircase", "four"],
    "an option twice": ["draw", "staircase", "num_passes=1", "num_passes=2"],
    "a wrong value": ["draw", "staircase", "chunk_size=0", "num_passes=2"],
    "text for a number": ["describe", "staircase", "chunk_size=four", "num_passes=2"],
    "an unknown walk": ["draw", "staircase", "chunk_size=2", "num_passes=2", "--order", "up"],
    "an unknown file kind": ["draw", "transformer-xl", "span=4", "--output", "picture.bmp"],
    "no folder": ["draw", "transformer-xl", "span=4", "--output", "absent/folder/a.png"],
    "no tokens": ["draw", "transformer-xl", "span=4", "--tokens", "0"],
    "no layers": ["draw", "transformer-xl", "span=4", "--layers", "0"],
    "heads that do not divide": ["describe", "transformer-xl", "span=4", "--num-heads", "7"],
    "no segment": ["describe", "transformer-xl", "span=4", "--segment", "0"],
    "unknown numbers": ["describe", "transformer-xl", "span=4", "--dtype", "int3"],
    "a deep universal core": ["describe", "universal-transformer", "num_passes=2", "span=4"],
    "an unknown flag": ["describe", "transformer-xl", "span=4", "--colour"],
    "an unknown command": ["climb"],
    "an unknown recipe": ["train", "parity/stairs"],
    "an unknown setting": ["train", "parity/staircase", "training.num_update=3"],
    "a setting of the wrong kind": ["train", "parity/staircase", "training.num_updates=many"],
    "a setting out of bounds": ["train", "parity/staircase", "training.num_updates=0"],
    "a task option that is not there": ["train", "parity/staircase", "task.options.speed=1"],
    "an unknown task": ["train", "parity/staircase", "task.reference=chess"],
    "a run that is not there": ["resume", "nowhere"],
    "a folder that is no run": ["eval", "."],
    "an unknown table": ["reproduce", "chess"],
    "an unknown row": ["reproduce", "algorithm", "--rows", "stairs"],
    "no seeds": ["reproduce", "algorithm", "--seeds", "0"],
    "a recipe to print that is not there": ["recipes", "parity/stairs"],
    "a flag without its value": ["describe", "transformer-xl", "span=4", "--width"],
    "text for a flag's number": ["describe", "transformer-xl", "span=4", "--width", "wide"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line_and_a_non_zero_exit(staircase, name):
    status, out, err = staircase(*WRONG[name])
    assert status == 2
    assert out == ""
    assert err.startswith("staircase: ")
    assert len(err.strip().splitlines()) == 1


def test_the_installed_command_answers():
    result = subprocess.run(
        [sys.executable, "-c", "from staircase_attention.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "describe" in result.stdout


def test_commands_that_draw_nothing_need_not_wait_for_what_draws():
    code = "import sys, staircase_attention.cli; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"False"
