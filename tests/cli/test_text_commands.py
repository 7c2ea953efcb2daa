"""From a trained byte model to text: `eval`, `sample`, `chat`, `export`."""

import errno
import io
import json
import math
import os
import shutil
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from staircase_attention import CoreConfig, SequenceModel, TransformerXL
from staircase_attention.cli import text as command
from staircase_attention.display import Lines
from staircase_attention.generation import onnx

LETTERS = [b"a", b"b", b"\xc3", b"\xa9", "\u20ac".encode()[:2], "\u20ac".encode()[2:], b""]
"""Whole characters, parts of others, and nothing."""


def test_eval_prints_bits_per_byte_and_scores_by_position(output_of, text_run):
    out = output_of("eval", text_run, "--by-position")
    assert "bits per byte" in out
    assert "position in the document from 1: loss " in out
    assert "(0 tokens)" not in out
    assert " 1 tokens" not in out
    assert "(1 answer, weights of update " in output_of("eval", text_run, "--tokens", 1)


def test_a_score_over_part_of_a_split_says_so(output_of, text_run):
    result = json.loads((text_run / "result.json").read_text())
    whole = result["test"]["split_tokens"]
    assert result["test"]["num_tokens"] == result["test"]["num_answers"] == whole
    assert result["valid"]["num_tokens"] == 128 < result["valid"]["split_tokens"]
    out = output_of("resume", text_run, "--quiet")
    assert "valid (first 128 of " in out
    assert "\ntest: error" in out
    assert output_of("eval", text_run).startswith("test: error")
    assert output_of("eval", text_run, "--tokens", 50).startswith(
        f"test (first 50 of {whole:,} tokens): error"
    )


def test_a_score_that_takes_long_says_how_far_it_is(staircase, text_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Lines.__init__, "__kwdefaults__", {"every_seconds": 0.0})
    _, _, err = staircase("eval", text_run, "--lanes", 1)
    shown = [float(line.split("%")[0]) for line in err.splitlines()]
    assert shown == sorted(shown)
    assert shown[-1] == 100
    assert len(shown) > 1
    run = shutil.copytree(text_run, tmp_path / "run")
    _, _, err = staircase("resume", run, "--updates", 3)
    assert err.count("100.0%") == 2


def test_a_packed_model_given_away_is_scored_on_other_corpora_and_on_text(
    output_of, refused, text_run, tmp_path, monkeypatch
):
    packed, folder = tmp_path / "packed", text_run.parent
    output_of("pack", text_run, packed, "--numbers", "float32")
    config = (packed / "config.json").read_text()
    (packed / "config.json").write_text(config.replace(str(folder / "corpus"), "far/away"))
    (packed / "checksums.json").unlink()
    monkeypatch.chdir(tmp_path)
    line = refused("eval", packed)
    assert "whose far/away is not here; use --text, or for eval --corpus" in line
    expected = output_of("eval", text_run, "--split", "train").splitlines()
    found = output_of("eval", packed, "--corpus", folder / "corpus", "--split", "train")
    assert found.splitlines()[:-1] == expected[:-1]
    assert found.endswith("  (no checksums.json)\n")

    (tmp_path / "one.txt").write_text("it was a dark night.\n")
    (tmp_path / "two.txt").write_text("é")
    words = ("eval", packed, "--text", tmp_path / "one.txt", "--text", tmp_path / "two.txt")
    score = json.loads(output_of(*words, "--json"))
    # A short text is read in one lane, from its beginning to its end.
    assert score == json.loads(output_of(*words, "--lanes", 1, "--json"))
    assert score != json.loads(output_of(*words, "--lanes", 2, "--json"))
    # The bytes of both texts, and an end symbol after each.
    assert (score["split"], score["num_answers"]) == ("text", 21 + 2 + 2)
    bits = score["loss"] / math.log(2) * 25 / 23
    assert score["bits_per_byte"] == pytest.approx(bits)
    # The same text by other paths.
    again = ("eval", packed, "--text", "one.txt", "--text", "../" + tmp_path.name + "/two.txt")
    assert score == json.loads(output_of(*again, "--json"))

    output_of("prepare", "text", tmp_path / "one.txt", "--tokeniser", "bpe-260", "--valid", 0,
              "--test", 0, "--output", tmp_path / "other", "--quiet")  # fmt: skip
    line = refused("eval", packed, "--corpus", tmp_path / "other")
    assert "must have the tokeniser of the run, bytes of 257 symbols, got" in line
    line = refused("eval", packed, "--corpus", folder / "corpus", "--text", tmp_path / "one.txt")
    assert "got --corpus and --text; leave one out" in line


def test_a_score_of_text_says_what_of_it_was_skipped(staircase, text_run, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text(
        '{"text": "a dark night"}\nbroken\n{"body": "no"}\n'
    )
    (tmp_path / "texts" / "b.png").write_bytes(b"no text")
    (tmp_path / "texts" / "c.txt").write_bytes("Gr\u00fc\u00dfe".encode("latin-1"))
    _, out, err = staircase("eval", text_run, "--text", tmp_path / "texts")
    assert out.splitlines()[0] == "skipped: broken lines in a.jsonl: 2"
    assert "skipped: 1 file of other kinds, such as " in err
    assert "not UTF-8: 1 file, such as " in err
    assert "c.txt" in err


def test_a_curve_of_text_has_its_name(output_of, text_run, tmp_path, monkeypatch):
    from staircase_attention.experiments import figures

    drawn, draw = [], figures.lines_figure
    monkeypatch.setattr(
        figures,
        "lines_figure",
        lambda lines, **words: (drawn.append([*lines]), draw(lines, **words))[1],
    )
    (tmp_path / "one.txt").write_text("it was a dark night.\n")
    words = ("eval", text_run, "--passes", "1,2", "--figure", tmp_path / "passes.png")
    output_of(*words, "--text", tmp_path / "one.txt")
    output_of(*words)
    assert drawn == [["text"], ["test"]]


@pytest.mark.parametrize(("kind", "lanes"), [("text_run", 3), ("episodic_run", 1)])
def test_losses_by_position_add_up_to_the_score(output_of, request, kind, lanes):
    run = request.getfixturevalue(kind)
    out = output_of("eval", run, "--by-position", "--json", "--lanes", lanes)
    score, *parts = [json.loads(line) for line in out.splitlines()]
    assert sum(part["num_tokens"] for part in parts) == score["num_answers"]
    loss = sum(part["loss"] * part["num_tokens"] for part in parts) / score["num_answers"]
    assert loss == pytest.approx(score["loss"], rel=1e-5)


def test_export_writes_what_transformers_reads(output_of, text_run, tmp_path):
    auto = pytest.importorskip("transformers")
    output_of("export", text_run, tmp_path / "exported")
    model = auto.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = auto.AutoTokenizer.from_pretrained(tmp_path / "exported")
    words = tokenizer("it was", return_tensors="pt").input_ids
    # The end symbol comes first, as in `sample`.
    assert tokenizer.decode(words[0]) == "<|endoftext|>it was"
    assert model(words).logits.shape[-1] == 257


def test_an_export_without_transformers_says_what_to_install(
    refused, text_run, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = refused("export", text_run, tmp_path / "new")
    assert "needs the package transformers, got none installed; run pip install" in line


def test_an_export_without_space_is_one_line_and_leaves_nothing(
    refused, text_run, tmp_path, monkeypatch
):
    def fill(model, file, **options):
        file.write_bytes(b"half of it")
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(onnx, "export_onnx", fill)
    line = refused("export", text_run, tmp_path / "new", "--format", "onnx")
    assert "No space left on device" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space and run this again"), (errno.EROFS, "use another folder")],
)
def test_what_the_system_refuses_to_write_has_a_remedy(
    refused, text_run, tmp_path, monkeypatch, number, remedy
):
    def fail(*_, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(onnx, "export_onnx", fail)
    line = refused("export", text_run, tmp_path / "new", "--format", "onnx")
    assert f"{os.strerror(number)}; {remedy}" in line


# From a novel that the shipped model has not read.
SEAMAN = (
    "I remember him as if it were yesterday, as he came plodding to the inn door, his sea-chest "
    "following behind him in a hand-barrow a tall, strong, heavy, nut-brown man, his tarry pigtail "
    "falling over the shoulder of his soiled blue coat."
)


def test_the_shipped_text_model_scores_and_speaks_as_when_it_was_shipped(
    output_of, tmp_path, monkeypatch
):
    name = "pretrained:novels-and-talk"
    (tmp_path / "seaman.txt").write_text(SEAMAN)
    [score] = output_of("eval", name, "--text", tmp_path / "seaman.txt", "--json").splitlines()
    assert json.loads(score)["bits_per_byte"] == pytest.approx(1.94797, abs=1e-3)
    words = ("--temperature", 0, "--max-tokens", 12)
    text = output_of("sample", name, "--prompt", "The old man looked at her and said", *words)
    assert text == "The old man looked at her and said he was a good man, and he was a good man\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("Do you like football?\n"))
    reply = output_of("chat", name, *words)
    assert reply == "you: Do you like football?\nit:  I do. I do like the idea of the\n"


def test_sample_echoes_the_prompt_unless_it_is_told_not_to(output_of, text_run, monkeypatch):
    words = ("sample", text_run, "--max-tokens", 9, "--seed", 3)
    whole = output_of(*words, "--prompt", "it was")
    assert whole == "it was" + output_of(*words, "--prompt", "it was", "--no-echo")
    both = output_of(*words, "--prompt", "it was", "--prompt", "a")
    assert both.startswith(f"--- 0\n{whole}--- 1\na")
    monkeypatch.setattr(sys, "stdin", io.StringIO("it was\n"))
    assert output_of(*words, "--prompt", "-") == whole


def test_a_resumed_stream_accepts_no_other_settings(output_of, refused, text_run, tmp_path):
    saved = tmp_path / "saved"
    output_of("sample", text_run, "--max-tokens", 2, "--save", saved)
    options = {
        "--prompt": "a", "--temperature": "1.0", "--top-k": "1", "--top-p": "0.5",
        "--min-p": "0.1", "--repetition-penalty": "1.1", "--seed": "0", "--stop": "x",
    }  # fmt: skip
    words = [word for pair in options.items() for word in pair]
    line = refused("sample", text_run, "--resume", saved, *words)
    assert f"got {', '.join(options)} with --resume" in line
    assert output_of("sample", text_run, "--resume", saved, "--max-tokens", 2)


@pytest.fixture
def chat(staircase, text_run, monkeypatch):
    """Say something to the model; give what it prints."""

    def say(content, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        status, out, err = staircase("chat", text_run, "--max-tokens", 5, *words)
        assert status == 0, err
        assert "An empty line or Ctrl-D ends the dialogue" in err
        return out, err

    return say


def test_chat_replies_until_an_empty_line_and_refuses_bytes_that_are_no_text(chat):
    out, err = chat(b"\xff\xfe\nhello\nwhy?\n\nunheard")
    starts = [line[:9] for line in out.splitlines() if line.startswith(("you:", "it:"))]
    assert [start if start[0] == "y" else "it:" for start in starts] == [
        "you: hell", "it:", "you: why?", "it:",
    ]  # fmt: skip
    assert err.count("staircase: text must be Unicode, got '\\udcff\\udcfe'; type it in UTF-8") == 1


@pytest.mark.parametrize("content", [b"\xff\xfe", b"hello|why?"], ids=["no text", "no end"])
def test_a_file_that_is_no_saved_dialogue_is_refused_and_kept(content, refused, text_run, tmp_path):
    (tmp_path / "notes").write_bytes(content)
    line = refused("chat", text_run, "--separator", "|", "--save", tmp_path / "notes")
    assert "a saved dialogue must be as it was written, got " in line
    assert (tmp_path / "notes").read_bytes() == content


def test_a_saved_dialogue_continues_as_if_it_had_not_ended(chat, tmp_path):
    kept = ("--separator", "\\n|", "--temperature", 0, "--save")
    whole, _ = chat(b"hello\nwhy?", *kept, tmp_path / "whole")
    first, _ = chat(b"hello", *kept, tmp_path / "parts")
    again, _ = chat(b"why?", *kept, tmp_path / "parts")
    assert (tmp_path / "parts").read_text() == (tmp_path / "whole").read_text()
    assert (tmp_path / "whole").read_text().startswith("hello\n|")
    turns = [line for line in again.splitlines() if line.startswith(("you: hello", "it:"))]
    assert turns[1] in first
    assert turns[-1] in whole


def test_a_turn_with_the_separator_in_it_is_refused(chat, tmp_path):
    out, err = chat(b"a ### b\nhello", "--separator", "###", "--save", tmp_path / "kept")
    assert "staircase: a turn must not contain the separator, got 'a ### b'; leave it out" in err
    assert (tmp_path / "kept").read_text().startswith("hello###")
    assert "a ###" not in out


def test_a_reply_that_was_cut_off_within_a_separator_is_read_again(chat, tmp_path):
    (tmp_path / "kept").write_text("hello||well|||why?||because|||")
    out, _ = chat(b"", "--separator", "||", "--save", tmp_path / "kept")
    assert out.split("\n")[:4] == ["you: hello", "it:  well|", "you: why?", "it:  because|"]


def test_a_saved_dialogue_keeps_line_ends_of_every_kind(chat, tmp_path):
    """A reply's carriage returns and line feeds are no separator of line feeds."""
    (tmp_path / "kept").write_bytes(b"hello\n\nwell\r\n\r\n\n\n")
    out, _ = chat(b"", "--save", tmp_path / "kept", "--separator", "\\n\\n")
    assert [line for line in out.splitlines() if line] == ["you: hello", "it:  well"]


@pytest.fixture
def language(monkeypatch):
    """A model of seven pieces of text, in place of one that was trained."""
    torch.manual_seed(0)
    core = CoreConfig(width=8, num_layers=1, num_heads=2)
    schedule = TransformerXL(span=4)
    language = SimpleNamespace(
        model=SequenceModel(vocab_size=len(LETTERS), core=core, schedule=schedule).double().eval(),
        encode=lambda text: [LETTERS.index(letter.encode()) for letter in text],
        decode=lambda tokens: b"".join(LETTERS[token] for token in tokens),
        tokeniser=SimpleNamespace(end_symbol=None),
    )
    monkeypatch.setattr(command, "load", lambda *_, **__: language)
    return language


def always(language, tokens):
    """Let a model make these tokens only."""
    with torch.no_grad():
        language.model.output.weight.zero_()
        language.model.output.bias.fill_(-99)
        language.model.output.bias[tokens] = 9


@pytest.fixture
def written(output_of, tmp_path):
    """Sample from a model, in as many steps as there are numbers; give what each step prints."""

    def write(*numbers, options=(), saved=False):
        path, texts = tmp_path / "saved", []
        for place, number in enumerate(numbers):
            words = ["--resume", path] if place else ["--no-echo", "--prompt", "a", *options]
            words += ["--save", path] if saved or place < len(numbers) - 1 else []
            texts.append(output_of("sample", "run", *words, "--max-tokens", number))
        assert all(text.endswith("\n") for text in texts)
        return [text[:-1] for text in texts]

    return write


@pytest.mark.parametrize("seed", range(2))
def test_a_text_in_several_steps_is_the_text_in_one(language, written, seed):
    """Cut inside characters and inside what may become a stop string, nothing lost or twice."""
    options = ("--seed", seed, "--stop", "ab\u00e9", "--stop", "bbb")
    [whole] = written(12, options=options)
    assert whole
    for first in range(1, 12, 3):
        assert "".join(written(first, 12 - first, options=options)) == whole
    assert "".join(written(*[1] * 12, options=options)) == whole


def test_what_a_saved_stream_holds_back_appears_when_it_is_resumed(language, written):
    always(language, 0)
    options = ("--stop", "a" * 6 + "b", "--temperature", 0)
    assert written(5, 4, saved=True, options=options) == ["", "aaa"]
    assert written(5, 4, options=options) == ["", "a" * 9]


def test_a_stream_that_has_ended_has_shown_what_was_held_back(language, written):
    language.tokeniser.end_symbol = 1
    always(language, [0, 1])
    options = ("--stop", "a" * 50 + "b", "--seed", 1)
    [whole] = written(40, options=options)
    assert set(whole) == {"a"}
    assert written(40, 3, options=options, saved=True) == [whole, ""]
    assert written(1, 40, options=options, saved=True) == ["", whole]


def test_several_texts_show_what_was_held_back_too(language, output_of, tmp_path):
    always(language, 0)
    words = ("sample", "run", "--no-echo", "--prompt", "a", "--prompt", "ab")
    words += ("--stop", "a" * 50 + "b", "--max-tokens", 3)
    assert output_of(*words) == "--- 0\naaa\n--- 1\naaa\n"
    assert output_of(*words, "--save", tmp_path / "saved") == "--- 0\n\n--- 1\n\n"
    out = output_of("sample", "run", "--resume", tmp_path / "saved", "--max-tokens", 2)
    assert out == "--- 0\naaaaa\n--- 1\naaaaa\n"


def test_a_stream_that_has_ended_says_so_when_it_is_resumed(language, written, staircase, tmp_path):
    always(language, 0)
    written(3, saved=True, options=("--stop", "a"))
    _, out, err = staircase("sample", "run", "--resume", tmp_path / "saved")
    assert (out, err) == ("\n", f"every text of {tmp_path / 'saved'} has ended\n")


def test_a_text_begins_with_the_end_symbol_as_in_training(language, output_of, monkeypatch):
    fed = []
    language.model.register_forward_hook(lambda _, given, __: fed.extend(given[0].flatten()))
    words = ("sample", "run", "--max-tokens", 1)
    output_of(*words, "--prompt", "a")
    assert fed == [0]
    language.tokeniser.end_symbol = 5
    fed.clear()
    output_of(*words, "--prompt", "a")
    output_of(*words)
    monkeypatch.setattr(sys, "stdin", io.StringIO("b"))
    output_of("chat", "run", "--separator", "a", "--max-tokens", 1)
    assert fed == [5, 0, 5, 5, 1, 0]


def test_a_saved_dialogue_goes_on_with_the_draws_of_its_turn(
    language, output_of, monkeypatch, tmp_path
):
    always(language, [0, 1])

    def say(text, name):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        output_of(
            "chat", "run", "--separator", "bbbb", "--max-tokens", 12, "--save", tmp_path / name
        )
        return (tmp_path / name).read_text()

    whole = say("a\na\na", "whole")
    assert [say("a", "parts") for _ in range(3)][-1] == whole


def test_ctrl_c_keeps_and_saves_what_was_written(language, staircase, output_of, tmp_path):
    words = ("sample", "run", "--no-echo", "--prompt", "a", "--prompt", "b")
    whole = output_of(*words, "--max-tokens", 9)
    made = []

    def interrupt(*_):
        made.append(1)
        if len(made) == 4:
            signal.raise_signal(signal.SIGINT)

    hook = language.model.register_forward_hook(interrupt)
    status, first, said = staircase(*words, "--max-tokens", 9999, "--save", tmp_path / "saved")
    assert status == 130
    assert said == f"saved; continue with --resume {tmp_path / 'saved'}\n"
    hook.remove()
    rest = output_of("sample", "run", "--resume", tmp_path / "saved", "--max-tokens", 9 - 4)
    both = zip(first.split("--- 1\n"), rest.split("--- 1\n"), strict=True)
    joined = [one.strip() + other.removeprefix("--- 0\n") for one, other in both]
    assert joined == whole.split("--- 1\n")


def test_inspect_shows_what_every_pass_would_say(output_of, refused, text_run, task_run, tmp_path):
    from staircase_attention.training import load_language_model

    picture = tmp_path / "lens.png"
    table = output_of("inspect", text_run, "--text", "a night", "--figure", picture)
    assert "pass 1" in table
    assert "␣" in table
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = output_of("inspect", text_run, "--text", "a night", "--json").splitlines()
    places = [json.loads(line) for line in lines]
    assert [place["answer"] for place in places] == [*"a␣night", None]
    language = load_language_model(text_run)
    tokens = torch.tensor([[language.tokeniser.end_symbol, *b"a night"]])
    chances = language.model(tokens)[0][0].softmax(-1)
    assert places[0]["probabilities"][-1] == pytest.approx(chances[0, ord("a")].item())
    output_of("inspect", task_run, "--episode", 0, "--passes", 2)
    assert "from 0 to 19, got 20" in refused("inspect", task_run, "--episode", 20)
    assert "--text or --episode, got neither" in refused("inspect", task_run)
    assert "use --text" in refused("inspect", text_run, "--episode", 0)


def test_sample_drafts_the_same_text_and_eval_counts_passes(output_of, ladder_run):
    plain = ["sample", ladder_run, "--prompt", "ab", "--temperature", 0, "--max-tokens", 12]
    assert output_of(*plain, "--draft-passes", 1, "--draft-tokens", 3) == output_of(*plain)
    assert output_of(*plain, "--exit", "change=0") == output_of(*plain)
    out = output_of("eval", ladder_run, "--tokens", 64, "--exit", "confidence=0", "--json")
    assert json.loads(out)["mean_passes"] == 1
    assert "mean passes 2.000" in output_of(
        "eval", ladder_run, "--tokens", 64, "--exit", "confidence=1"
    )
