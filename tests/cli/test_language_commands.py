"""From raw text to text that a trained model writes, by the command line alone."""

import json
import sys

import pytest

TINY = (
    "training.num_updates=4",
    "training.evaluate_every=2",
    "training.num_lanes=2",
    "training.evaluation_lanes=2",
    "training.evaluation_tokens=128",
    "model.core.width=16",
)


@pytest.fixture
def run(staircase, tmp_path):
    """A model of bytes that has seen four batches."""
    return train(staircase, tmp_path)


@pytest.fixture
def episodic(staircase, tmp_path):
    """The same of texts that are segments of their own."""
    return train(staircase, tmp_path, "task.form=episodic")


def train(staircase, tmp_path, *changes):
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(30):
        (raw / f"{number}.txt").write_text(f"{number} it was a dark and stormy night.\n" * 9)
    status, out, err = staircase(
        "prepare", "text", str(raw), "--tokeniser", "bytes", "--valid", "0.2", "--test", "0.2",
        "--output", str(tmp_path / "corpus"), "--quiet",
    )  # fmt: skip
    assert status == 0, err
    assert "train:" in out
    folder = tmp_path / "run"
    status, out, err = staircase(
        "train", "base-small/staircase", f"task.folder={tmp_path / 'corpus'}", *TINY, *changes,
        "--output", str(folder), "--quiet",
    )  # fmt: skip
    assert status == 0, err
    assert "bits per byte" in out
    return folder


def test_eval_says_bits_a_byte_and_where_they_go(staircase, run):
    words = ("--lanes", "1", "--by-position", "--past", "0", "--past", "16")
    status, out, err = staircase("eval", str(run), *words)
    assert status == 0, err
    assert "bits per byte" in out
    assert "position in the document from 1:" in out
    assert "tokens of past in the state 16:" in out
    assert "(0 tokens)" not in out


@pytest.mark.parametrize("kind", ["run", "episodic"])
@pytest.mark.parametrize("lanes", ["1", "3"])
def test_losses_by_position_add_up_to_the_score_above_them(staircase, request, kind, lanes):
    folder = request.getfixturevalue(kind)
    words = ("eval", str(folder), "--by-position", "--json", "--lanes", lanes)
    status, out, err = staircase(*words)
    assert status == 0, err
    score, *parts = [json.loads(line) for line in out.splitlines()]
    assert sum(part["num_tokens"] for part in parts) == score["num_answers"]
    loss = sum(part["loss"] * part["num_tokens"] for part in parts) / score["num_answers"]
    assert loss == pytest.approx(score["loss"], rel=1e-5)


def test_the_past_is_not_for_texts_without_one(staircase, episodic):
    status, out, err = staircase("eval", str(episodic), "--past", "16")
    assert status == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "--by-position" in err


def test_sample_writes_and_a_kept_stream_goes_on_the_same(staircase, run, tmp_path):
    options = ("--prompt", "it was", "--seed", "3")
    _, whole, _ = staircase("sample", str(run), *options, "--max-tokens", "40")
    kept = str(tmp_path / "stream.safetensors")
    status, first, err = staircase(
        "sample", str(run), *options, "--max-tokens", "15", "--save", kept
    )
    assert status == 0, err
    _, second, _ = staircase("sample", str(run), "--resume", kept, "--max-tokens", "25")
    assert len(whole) > 20
    assert whole.startswith((first[:-1] + second[:-1])[:30])


def test_several_prompts_are_written_one_after_another(staircase, run):
    status, out, _ = staircase(
        "sample", str(run), "--prompt", "a", "--prompt", "it was", "--max-tokens", "5"
    )
    assert status == 0
    assert out.count("---") == 2


def test_chat_answers_until_an_empty_line(staircase, run, monkeypatch):
    lines = iter(["hello\n", "why?\n", "\n"])
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(lines))
    status, out, err = staircase("chat", str(run), "--max-tokens", "5")
    assert status == 0, err
    assert out.count("you: ") == 3
    assert out.count("it:  ") == 2


def test_export_writes_what_transformers_reads(staircase, run, tmp_path):
    auto = pytest.importorskip("transformers")
    status, _, err = staircase("export", str(run), str(tmp_path / "exported"))
    assert status == 0, err
    model = auto.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = auto.AutoTokenizer.from_pretrained(tmp_path / "exported")
    words = tokenizer("it was", return_tensors="pt").input_ids
    assert tokenizer.decode(words[0]) == "it was"
    assert model(words).logits.shape[-1] == 257
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["model_type"] == "staircase-attention"


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "enwik8", "absent.xz"],
        ["prepare", "text", "absent"],
        ["prepare", "text", ".", "--weights", "one"],
        ["prepare", "reddit", "absent.zst"],
        ["prepare", "text", ".", "--tokeniser", "absent.json"],
        ["sample", "nowhere"],
        ["chat", "nowhere"],
        ["export", "nowhere", "somewhere"],
        ["train", "enwik8-small/staircase", "task.folder=nowhere"],
    ],
)
def test_a_mistake_with_text_is_one_line_too(staircase, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = staircase(*words)
    assert status == 2
    assert out == ""
    assert err.startswith("staircase: ")
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_task_does_not_speak(staircase, tmp_path):
    status, _, err = staircase(
        "train", "parity/lstm", "training.num_updates=1", "--output", str(tmp_path / "run"),
        "--quiet",
    )  # fmt: skip
    assert status == 0, err
    for words in (["sample"], ["chat"], ["eval", "--past", "4"]):
        status, _, err = staircase(words[0], str(tmp_path / "run"), *words[1:])
        assert status == 2
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "instead"), [(["--length", "9"], "--past"), (["--by-episode"], "--by-position")]
)
def test_what_episodes_have_is_not_for_text(staircase, run, words, instead):
    status, _, err = staircase("eval", str(run), *words)
    assert status == 2
    assert instead in err
    assert len(err.strip().splitlines()) == 1
