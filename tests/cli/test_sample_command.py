"""`staircase sample`: so many tokens and no more, however often a stream is kept."""

from types import SimpleNamespace

import pytest
import torch

from staircase_attention import CoreConfig, SequenceModel, TransformerXL
from staircase_attention.cli import sample as command
from staircase_attention.generation import load_text_stream

LETTERS = [b"a", b"b", b"\xc3", b"\xa9", "\u20ac".encode()[:2], "\u20ac".encode()[2:], b""]
"""Whole characters, parts of others, and nothing."""


class Rounds:
    """How many tokens a model has been asked for."""

    def __init__(self, model):
        self.num = 0
        model.register_forward_hook(self._count)

    def _count(self, *_):
        self.num += 1


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
    monkeypatch.setattr(command, "speaking", lambda run, checkpoint: language)
    return language


def always(language, tokens):
    """Let a model say these and nothing else."""
    with torch.no_grad():
        language.model.output.weight.zero_()
        language.model.output.bias.fill_(-99)
        language.model.output.bias[tokens] = 9


@pytest.fixture
def written(staircase, tmp_path):
    """Sample from a model, in as many goes as there are numbers; give what each go prints."""

    def write(*numbers, options=(), kept=False):
        path, texts = str(tmp_path / "kept"), []
        for place, number in enumerate(numbers):
            words = ["--resume", path] if place else ["--prompt", "a", *options]
            words += ["--save", path] if kept or place < len(numbers) - 1 else []
            status, out, err = staircase("sample", "run", *words, "--max-tokens", str(number))
            assert status == 0, err
            assert out.endswith("\n")
            texts.append(out[:-1])
        return texts

    return write


@pytest.mark.parametrize("seed", range(4))
def test_a_text_in_several_goes_is_the_text_in_one(language, written, seed):
    """Cut inside characters and inside what may become a stop string, nothing lost or twice."""
    options = ("--seed", str(seed), "--stop", "ab\u00e9", "--stop", "bbb")
    [whole] = written(12, options=options)
    assert whole
    for first in range(1, 12):
        assert "".join(written(first, 12 - first, options=options)) == whole
    assert "".join(written(*[1] * 12, options=options)) == whole


@pytest.mark.parametrize("token", [0, 2, 6])
def test_no_more_tokens_are_made_than_asked_for(language, written, tmp_path, token):
    """Though they may begin a stop string, or a character, or have no text at all."""
    always(language, token)
    options = ("--stop", "a" * 50 + "b", "--temperature", "0")
    rounds = Rounds(language.model)
    first = written(5, options=options, kept=True)
    kept = load_text_stream(tmp_path / "kept", language.model, decode=language.decode)
    assert kept.tokens.progress.num_made == rounds.num == 5
    assert not kept.finished
    rounds.num = 0
    both = written(5, 3, options=options)
    assert rounds.num == 8
    assert both[0] == first[0]


def test_what_a_kept_stream_held_back_appears_when_it_goes_on(language, written):
    always(language, 0)
    options = ("--stop", "a" * 6 + "b", "--temperature", "0")
    assert written(5, 4, kept=True, options=options) == ["", "aaa"]
    assert written(5, 4, options=options) == ["", "a" * 9]


def test_a_stream_that_is_over_shows_all_that_was_held_back(language, written):
    language.tokeniser.end_symbol = 1
    always(language, [0, 1])
    options = ("--stop", "a" * 50 + "b", "--seed", "1")
    [whole] = written(40, options=options)
    assert set(whole) == {"a"}
    assert written(40, 3, options=options, kept=True) == [whole, ""]
    assert written(1, 40, options=options, kept=True) == ["", whole]


def test_several_texts_are_held_to_the_number_too(language, staircase, tmp_path):
    always(language, 0)
    words = ("--prompt", "a", "--prompt", "ab", "--stop", "a" * 50 + "b", "--max-tokens", "3")
    kept = str(tmp_path / "kept")
    assert staircase("sample", "run", *words)[1] == "--- 0\naaa\n--- 1\naaa\n"
    assert staircase("sample", "run", *words, "--save", kept)[1] == "--- 0\n\n--- 1\n\n"
    _, out, _ = staircase("sample", "run", "--resume", kept, "--max-tokens", "2")
    assert out == "--- 0\naaaaa\n--- 1\naaaaa\n"


@pytest.mark.parametrize("words", [[], ["--save", "kept"]])
def test_no_tokens_at_all_are_refused_in_one_line(
    language, staircase, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    status, out, err = staircase("sample", "run", "--prompt", "a", "--max-tokens", "0", *words)
    assert (status, out) == (2, "")
    assert "at least 1, got 0; give" in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
