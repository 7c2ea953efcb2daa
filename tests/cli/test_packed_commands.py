"""Packed and pretrained runs on the command line."""

import json

import pytest


def test_a_run_is_packed_and_scored(staircase, small_run, tmp_path):
    status, out, err = staircase(
        "pack", str(small_run), str(tmp_path / "packed"), "--numbers", "float32"
    )
    assert (status, err) == (0, "")
    assert out.startswith(f"wrote {tmp_path / 'packed'}, 0.0")
    scores = []
    for folder in (small_run, tmp_path / "packed"):
        status, out, _ = staircase("eval", str(folder), "--json")
        assert status == 0
        scores.append(json.loads(out))
    assert scores[0] == scores[1]


def test_a_pretrained_run_is_scored(staircase):
    status, out, _ = staircase("eval", "pretrained:parity-staircase", "--json")
    assert status == 0
    assert json.loads(out)["error"] == 0.0


def test_precision_is_chosen(staircase, small_run):
    losses = {}
    for precision in ("float32", "bfloat16"):
        status, out, _ = staircase("eval", str(small_run), "--precision", precision, "--json")
        assert status == 0
        losses[precision] = json.loads(out)["loss"]
    assert losses["float32"] != losses["bfloat16"]
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "pretrained:nothing"], "a pretrained run is one of pretrained:parity"),
        (["eval", "RUN", "--precision", "int4"], "training.precision must be"),
        (["pack", "RUN", "RUN"], "a packed run needs a new folder"),
        (["pack", "RUN", "new", "--numbers", "int4"], "--numbers must be bfloat16 or float32"),
        (["pack", "nowhere", "new"], "a run folder holds a config.json"),
    ],
)
def test_mistakes_are_one_line(staircase, small_run, words, message):
    status, out, err = staircase(*(str(small_run) if word == "RUN" else word for word in words))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
