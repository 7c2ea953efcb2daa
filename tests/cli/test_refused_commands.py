"""What a user can get wrong is refused in one line, before any work is done."""

import pytest

PLAIN = {
    "draw stairway": "did you mean 'staircase'?",
    "draw staircase": "chunk_size",
    "draw staircase four": "written name=value, got 'four'; use",
    "draw staircase num_passes=1 num_passes=2": "given once, got num_passes twice",
    "draw staircase chunk_size=2 num_passes=2 --order up": "order must be",
    "draw transformer-xl span=4 --output picture.bmp": "picture.bmp",
    "draw transformer-xl span=4 --output absent/folder/a.png": "absent",
    "draw transformer-xl span=4 --tokens 0": "got 0",
    "draw transformer-xl span=4 --layers 0": "got 0",
    "describe staircase chunk_size=four num_passes=2": "chunk_size must be",
    "describe staircase num_passes=2 chunk_size=99999999999999999999": "use a smaller model",
    "describe transformer-xl span=4 --num-heads 7": "multiple of num_heads",
    "describe transformer-xl span=4 --segment 0": "got 0",
    "describe transformer-xl span=4 --dtype int3": "--dtype must be one of float64, float32",
    "describe universal-transformer num_passes=2 span=4": "got",
    "describe transformer-xl span=4 --colour": "--colour",
    "describe transformer-xl span=4 --width wide": "'wide'",
    "climb": "climb",
    "recipes parity/stairs": "did you mean 'parity/staircase'?",
    "train parity/stairs": "did you mean 'parity/staircase'?",
    "train parity/staircase training.num_update=3": "did you mean",
    "train parity/staircase training.num_updates=many": "num_updates must be",
    "train parity/staircase training.num_updates=0": "num_updates must be",
    "train parity/staircase model.schedule.chunk_size=99999999999999999999": "use a smaller model",
    "train parity/staircase task.options.speed=1": "speed",
    "train parity/staircase task.reference=chess": "chess",
    "train parity/lstm --init nowhere --output new": "nowhere",
    "train enwik8-small/staircase task.folder=nowhere": "nowhere",
    "train parity/lstm --output FILE/run": "must be writable",
    "train parity/lstm --device tpu": "a device must be one that this machine has, got 'tpu'",
    "train parity/lstm --logger paper": "--logger must be one of wandb, mlflow, got 'paper'",
    "train parity/lstm --init nowhere": "nowhere",
    "resume nowhere": "nowhere",
    "eval .": "config.json",
    "eval pretrained:nothing": "a pretrained run must be one of pretrained:novels",
    "compare training.num_updates=2": "none",
    "compare parity/lstn": "did you mean 'parity/lstm'?",
    "compare parity/lstm parity/lstm": "parity/lstm",
    "compare parity/lstm --vary training.num_lane=1,2": "did you mean 'num_lanes'?",
    "compare parity/staircase parity/lstm --vary model.width=8": "parity/staircase: a setting",
    "compare parity/lstm parity/staircase model.width=8": "parity/staircase: a setting must be",
    "compare parity/lstm random-walk/lstm task.options.group=S3": "random-walk/lstm: options of",
    "compare parity/lstm name=mine": "names show the recipe and what varies, got name=...; leave",
    "reproduce random-walk --rows lstm,ladder-2 model.width=8": "random-walk/ladder-2: a setting",
    "suite --small --models lstm,ladder model.width=8": "staircase: ladder: a setting must be one",
    "suite --small name=mine": "names show the recipe and what varies, got name=...; leave",
    "suite --small task.reference=boxes": "tasks are chosen by --tasks, models by",
    "suite --small model.kind=lstm": "of a model, got model.kind=...; leave",
    "suite --small --own training.num_updates=3": "of a model, got training.num_updates=",
    "estimate parity/staircase --price -1": "price must be a number of at least 0, got -1.0; use",
    "estimate parity/staircase --price nan": "price must be a number of at least 0, got nan; use",
    "eval absent --passes 1 --figure f.gif": "--figure is saved as .png, got 'f.gif'; name it for",
    "eval absent --text a --split valid": "--text has no splits, got --split valid; leave it out",
    "inspect absent --text a --figure f": "--figure is saved as .png, got 'f'; name it",
    "compare parity/lstm --vary data_seed=0 --vary data_seed=1": "got data_seed twice",
    "compare parity/lstm --vary data_seed=": "written value,value",
    "compare parity/lstm --vary data_seed=1,,2": "written value,value",
    "reproduce random-walk --updates 4 training.num_updates=7": "updates is given once",
    "suite --small --tasks ,": "a task of the suite must be a known name, got ''",
    "compare parity/lstm --vary data_seed": "name=value",
    "compare parity/lstm data_seed=1 --vary data_seed=1,2": "data_seed given and data_seed varied",
    "compare parity/lstm model.width=8 --vary model={}": "model.width given and model varied",
    "compare parity/lstm seed=3": "use --seeds",
    "compare parity/lstm --jobs 0": "got 0",
    "reproduce chess": "chess",
    "reproduce algorithm --rows stairs": "stairs",
    "reproduce algorithm --seeds 0": "got 0",
    "prepare enwik8 absent.xz": "absent.xz",
    "prepare text absent": "absent",
    "prepare text FILE --weights one": "weight must be a number over 0, got 'one'",
    "prepare reddit absent.zst": "absent.zst",
    "prepare text . --tokeniser absent.json": "absent.json",
    "prepare text FILE --tokeniser bpe-99999999999999": "to 1000000, got 99999999999999",
    "prepare text FILE --output FILE/z": "--output must be a folder that can be made, got FILE/z",
    "prepare enwik8 FILE --output FILE/z": "--output must be a folder that can be made, got FILE/z",
    "prepare reddit FILE --output FILE/z": "--output must be a folder that can be made, got FILE/z",
    "prepare text FILE --valid-file absent": "got absent, not there; check the name",
    "prepare text FILE --part third": "--part must be two numbers, got 'third'; use for",
    # Neither a corpus nor the threads that were read for it.
    "prepare reddit FILE --quiet --output new": "a corpus must have text, got none",
    "quickstart FILE --output new": "to train on, to validate and to test, got 14 bytes; use more",
    "sample nowhere": "nowhere",
    "sample nowhere --draft-tokens 8": "--draft-tokens is for --draft-passes, got 8; leave it out",
    "train": "Missing argument 'RECIPE'; see staircase train --help",
    "train parity/lstm training.num_updates=1e3": "got 1000.0 (float); use for example 8",
    "estimate parity/staircase --gpus 7": "got 64; use for example 70",
    "chat nowhere": "nowhere",
    "export nowhere somewhere": "nowhere",
    "export nowhere new --num-tokens 9": "--num-tokens is for --format onnx, got 9; leave it out",
    "pack nowhere new": "a run folder holds a config.json",
}


@pytest.mark.parametrize("words", PLAIN)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("it was a night")
    assert PLAIN[words] in refused(*words.split())
    assert [entry.name for entry in tmp_path.iterdir()] == ["FILE"]


ON_A_TASK = {
    "eval RUN --checkpoint 7": "got '7'",
    "eval RUN --lanes 0": "--lanes must be an integer of at least 1, got 0; use",
    "eval RUN --length 0": "got 0",
    "eval RUN --split dev": "--split must be one of train, valid, test, got 'dev'",
    "eval RUN --split train": "got train of permutations, whose training episodes are endless",
    "eval RUN --passes 0": "--passes must be an integer of at least 1, got 0",
    "eval RUN --passes 1,4": "needs a position table of 8 rows, got one of 4",
    "eval RUN --precision int4": "training.precision must be",
    "eval RUN --tokens 4": "--tokens is for language models, got a run on a task",
    "eval RUN --device tpu": "a device must be one that this machine has, got 'tpu'",
    "eval RUN --device cuda:99": "a device must be one that this machine has, got 'cuda:99'",
    "eval RUN --text RUN/config.json": "without one; name a run that was trained on a corpus",
    "eval RUN --corpus NEW": "without one; name a run that was trained on a corpus",
    "sample RUN": "without one; name a run that was trained on a corpus",
    "train parity/staircase --output RUN": "new or empty",
    "train parity/lstm --init RUN --output NEW": "choose a run of this model",
    "resume RUN --updates 3": "got 3",
    "pack RUN RUN": "a packed run needs a new folder",
    "pack RUN NEW --numbers int4": "numbers must be one of bfloat16, float32, got 'int4'",
}
ON_TEXT = {
    "eval RUN --tokens 0": "--tokens must be an integer of at least 1, got 0",
    "eval RUN --corpus NEW": "a corpus must have a manifest",
    "eval RUN --length 9": "--length is for tasks with episodes",
    "sample RUN --max-tokens 0": "--max-tokens must be an integer of at least 1, got 0",
    "sample RUN --save NEW/absent/kept": "--save must be a file in a folder that can be written",
    f"sample RUN --save {'a' * 255}": "too long",
    "sample RUN --resume NEW": "which is no file; check",
    "sample RUN --stop=": "a stop string must be a string of at least one character",
    "sample RUN --prompt a\udcff": "text must be Unicode, got '\\udcff'; type it in UTF-8, or",
    "sample RUN --device abacus": "a device must be one that this machine has, got 'abacus'; use",
    "chat RUN --device cuda:99": "a device must be one that this machine has, got 'cuda:99'; use",
    "chat RUN --save NEW/absent/kept": "--save must be a file in a folder that can be written",
    "chat RUN --separator=": "a stop string must be a string of at least one character",
    "chat RUN --max-tokens 0": "--max-tokens must be an integer of at least 1, got 0",
    "chat RUN --save /dev/null": "--save must be a file in a folder that can be written",
    "chat RUN --save RUN/config.json": "a saved dialogue must be as it was written",
    "export RUN RUN/config.json/z": "Not a directory); name another",
    f"inspect RUN --figure new.png --text {'word' * 200}": "a figure has at most 512 tokens, got",
    "export RUN RUN --format onnx": "an export needs a folder that is new or empty",
}


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        *(("task_run", *item) for item in ON_A_TASK.items()),
        *(("text_run", *item) for item in ON_TEXT.items()),
        ("episodic_run", "eval RUN --tokens 1", "--tokens must be an integer of at least 2, got 1"),
    ],
)
def test_a_mistake_with_a_run_is_one_line(
    refused, tmp_path, monkeypatch, request, kind, words, line
):
    monkeypatch.chdir(tmp_path)
    run = request.getfixturevalue(kind)
    before = (run / "metrics.jsonl").read_bytes()
    given = [word.replace("RUN", str(run)).replace("NEW", "new") for word in words.split(" ")]
    assert line in refused(*given)
    assert not list(tmp_path.iterdir())
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_model_too_large_for_memory_is_refused(refused, tmp_path):
    words = ("model.core.width=4000000000000", "--output", tmp_path / "run")
    assert "more memory than there is" in refused("train", "parity/staircase", *words, "--quiet")


OWN = """
from staircase_attention.schedules import TransformerXL

class Broken(TransformerXL):
    name = "broken"

    def steps(self, tokens, *, num_layers, order):
        raise ValueError("no steps")
"""


def test_an_error_in_code_of_one_s_own_says_where_it_is(refused, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    line = refused("draw", f"{tmp_path / 'own.py'}:Broken", "span=2")
    assert f"ValueError: no steps; in {tmp_path / 'own.py'}, line 8 (STAIRCASE_TRACEBACK=1" in line
