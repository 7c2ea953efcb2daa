"""Streams of text over streams of tokens."""

import pytest
from small_streams import lstm, name, some_models

from building import build
from staircase_attention import Staircase
from staircase_attention.generation import SamplingConfig, stream, stream_text

VOCABULARY = [b"a", b"b", b"\xc3", b"\xa9", "€b".encode(), b"?", b"!"]
"""Tokens 2 and 3 are the halves of é; those from 5 on are inputs only."""

each_model = pytest.mark.parametrize("model", some_models(), ids=name)
WILD = SamplingConfig(temperature=8.0)


def encode(text):
    return [VOCABULARY.index(letter.encode()) for letter in text]


def decode(tokens):
    return b"".join(VOCABULARY[token] for token in tokens)


def written(model, prompts, **options):
    """The text and the end of each row, and the pieces in which it came."""
    pieces = list(
        stream_text(model, prompts, **{"max_tokens": 30, "sampling": WILD, **options}, **FUNCTIONS)
    )
    rows = {new.row: "" for new in pieces}
    for new in pieces:
        rows[new.row] += new.text
    return rows, {new.row: new.finish for new in pieces}, pieces


FUNCTIONS = {"encode": encode, "decode": decode}


def tokens_made(model, prompts, **options):
    rows: dict[int, list[int]] = {}
    ids = [encode(prompt) for prompt in prompts]
    for new in stream(model, ids, **{"max_tokens": 30, "sampling": WILD, **options}):
        rows.setdefault(new.row, []).append(new.token)
    return rows


@each_model
def test_the_text_is_that_of_the_tokens(model):
    prompts = ["a", "ba?", "!b"]
    texts, ends, pieces = written(model, prompts)
    for row, tokens in tokens_made(model, prompts).items():
        assert texts[row] == decode(tokens).decode(errors="replace")
    assert set(ends.values()) == {"max_tokens"}
    assert all(new.text or new.finish for new in pieces)


@each_model
def test_each_row_ends_at_its_own_stop_string(model):
    prompts, stops = ["a", "ba?", "!b", "b"], ("ab", "€", "bb")
    texts, ends, _ = written(model, prompts, stop_strings=stops)
    for row, tokens in tokens_made(model, prompts).items():
        whole = decode(tokens)
        places = [
            (whole.find(stop.encode()) + len(stop.encode()), whole.find(stop.encode()))
            for stop in stops
            if stop.encode() in whole
        ]
        start = min(places)[1] if places else len(whole)
        assert texts[row] == whole[:start].decode(errors="replace")
        assert ends[row] == ("stop_string" if places else "max_tokens")


def test_rows_that_a_stop_string_ended_are_computed_no_more():
    model = build(Staircase(chunk_size=3, num_passes=2))
    text = stream_text(
        model, ["a", "b", "aa"], max_tokens=40, sampling=WILD, stop_strings="b", **FUNCTIONS
    )
    list(text)
    assert set(text.finished.values()) <= {"stop_string", "max_tokens"}
    assert "stop_string" in text.finished.values()
    assert text.tails == {}


def test_a_stop_token_is_not_shown_but_what_was_held_back_is():
    model = lstm()
    prompts = ["a", "b"]
    # Every token may begin the stop string, which never comes.
    never = "a" * 99
    texts, ends, _ = written(model, prompts, stop_tokens=[4], stop_strings=[never])
    for row, tokens in tokens_made(model, prompts, stop_tokens=[4]).items():
        shown = tokens[:-1] if tokens[-1] == 4 else tokens
        assert texts[row] == decode(shown).decode(errors="replace")
        assert ends[row] == ("stop_token" if tokens[-1] == 4 else "max_tokens")


def test_a_stop_string_complete_at_the_last_token_is_why_the_row_ended():
    model = lstm()
    whole = decode(tokens_made(model, ["a"], max_tokens=1)[0]).decode(errors="replace")
    text = stream_text(model, "a", max_tokens=1, sampling=WILD, stop_strings=[whole], **FUNCTIONS)
    assert [(new.text, new.finish) for new in text] == [("", "stop_string")]
    assert text.finished == {0: "stop_string"}


@each_model
@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_a_text_taken_by_pieces_is_the_whole_text(model, size):
    """Whatever is held back where a piece ends."""
    options = {"sampling": WILD, "stop_strings": ["bé", "aa€", "?"], **FUNCTIONS}
    prompts = ["a", "ba", "!"]
    expected, ends, _ = written(model, prompts, max_tokens=20, stop_strings=["bé", "aa€", "?"])
    text = stream_text(model, prompts, max_tokens=None, **options)
    found, finish = dict.fromkeys(range(3), ""), {}
    pieces = [new for _ in range(20 // size) for new in text.take(size)]
    for new in [*pieces, *text.end()]:
        found[new.row] += new.text
        finish[new.row] = new.finish
    assert (found, finish) == (expected, ends)
    assert list(text.end()) == list(text) == []


def test_tokens_count_though_their_text_is_held_back():
    functions = {"encode": encode, "decode": lambda _: b"a"}
    text = stream_text(lstm(), "a", max_tokens=None, stop_strings="a" * 50 + "b", **functions)
    assert list(text.take(3)) == []
    assert text.tokens.status.num_made == 3
    assert [(new.text, new.finish) for new in text.end()] == [("aaa", "max_tokens")]


def test_tokens_without_a_text_count_too():
    text = stream_text(
        lstm(), "a", max_tokens=None, sampling=WILD, encode=encode, decode=lambda _: b""
    )
    assert list(text.take(5)) == []
    assert text.tokens.status.num_made == 5
    assert [(new.text, new.finish) for new in text.end()] == [("", "max_tokens")]


def test_a_text_ends_with_the_tokens_that_were_waiting_and_each_row_for_its_own_reason():
    functions = {"encode": encode, "decode": lambda _: b"a"}
    text = stream_text(lstm(), ["a", "b", "a"], max_tokens=None, stop_strings="ab", **functions)
    next(text.tokens)
    text.tokens.finish(2, "stop_token")
    found = [(new.row, new.text, new.finish) for new in text.end()]
    assert found == [(0, "", "max_tokens"), (1, "a", "max_tokens"), (2, "a", "stop_token")]
    assert list(text) == []


def test_an_empty_text_needs_a_start_token():
    with pytest.raises(ValueError, match="give start_token"):
        stream_text(lstm(), "", max_tokens=3, **FUNCTIONS)
    assert list(stream_text(lstm(), "", max_tokens=3, start_token=5, **FUNCTIONS))


def test_a_decode_that_gives_no_bytes_is_refused():
    text = stream_text(lstm(), "a", max_tokens=3, encode=encode, decode=lambda ids: "a")
    with pytest.raises(TypeError, match="into bytes, got str; for a tokeniser that gives text"):
        next(text)
