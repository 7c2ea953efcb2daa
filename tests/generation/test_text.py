"""Text: characters whole, stop strings never shown, however the bytes are split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_streams import FUNCTIONS, WILD, decode, encode, lstm, made, name, some_models

from staircase_attention.generation import StopStrings, TextTail, stream, stream_text

each_model = pytest.mark.parametrize("model", some_models(), ids=name)
stop_strings = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3).map(tuple)
contents = st.text("abcé€𝄞", max_size=20).map(str.encode) | st.binary(max_size=20)


def shown(pieces, stops=()):
    """What appears, piece by piece, until the end."""
    tail, found = TextTail(StopStrings(tuple(stops))), []
    for piece in pieces:
        text, stopped = tail.feed(piece)
        found.append(text)
        if stopped:
            return found, True
    return [*found, tail.finish()], False


def cut(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(content), *(one % (len(content) + 1) for one in cuts)})
    return [content[start:stop] for start, stop in pairwise(places)]


def stopped_text(content: bytes, stops) -> tuple[str, bool]:
    """The slow twin: the shortest beginning of the text that ends in a stop string."""
    for end in range(len(content) + 1):
        ending = [stop for stop in stops if content[:end].endswith(stop.encode())]
        if ending:
            longest = max(len(stop.encode()) for stop in ending)
            return content[: end - longest].decode(errors="replace"), True
    return content.decode(errors="replace"), False


@given(content=contents, stops=stop_strings, cuts=st.lists(st.integers(0, 99), max_size=9))
@example(content=b"\xf0\x9d\x84", stops=(), cuts=[1, 2])
@example(content=b"\xc3ab", stops=("ab",), cuts=[1, 2])
def test_the_text_ends_before_the_stop_string_that_is_complete_first(content, stops, cuts):
    """Bytes that are not UTF-8 are replaced, the same however they are cut."""
    pieces, stopped = shown(cut(content, cuts), stops)
    assert ("".join(pieces), stopped) == stopped_text(content, stops)


@given(text=st.text("abcé€𝄞", max_size=20), stops=stop_strings)
def test_text_appears_as_early_as_it_can_and_little_is_held_back(text, stops):
    """After each byte, everything that no stop string can still claim has been shown."""
    content, tail, so_far = text.encode(), TextTail(StopStrings(stops)), ""
    starts = [stop.encode()[:size] for stop in stops for size in range(len(stop.encode()))]
    for place in range(len(content)):
        new, stopped = tail.feed(content[place : place + 1])
        so_far += new
        if stopped:
            return
        read = content[: place + 1]
        claimed = max((len(start) for start in starts if read.endswith(start)), default=0)
        assert so_far == read[: len(read) - claimed].decode(errors="ignore")
        assert len(tail.held) == claimed
        assert len(tail.partial) < 4


@pytest.mark.parametrize("strings", [("",), ("a", ""), (b"a",), (3,)])
def test_stop_strings_that_are_empty_or_no_strings_are_refused(strings):
    with pytest.raises(ValueError, match="a string of at least one character, got"):
        StopStrings(strings)


def written(model, prompts, **options):
    """The text and the end of each row, and the pieces in which it came."""
    pieces = list(
        stream_text(model, prompts, **{"max_tokens": 30, "sampling": WILD, **options}, **FUNCTIONS)
    )
    rows = {new.row: "" for new in pieces}
    for new in pieces:
        rows[new.row] += new.text
    return rows, {new.row: new.finish for new in pieces}, pieces


def tokens_made(model, prompts, **options):
    ids = [encode(prompt) for prompt in prompts]
    return made(stream(model, ids, **{"max_tokens": 30, "sampling": WILD, **options}))


@each_model
@pytest.mark.parametrize("stops", [(), ("ab", "€", "bb")])
def test_the_text_is_that_of_the_tokens_up_to_each_rows_own_stop_string(model, stops):
    prompts = ["a", "ba?", "!b", "b"]
    texts, ends, pieces = written(model, prompts, stop_strings=stops)
    for row, tokens in tokens_made(model, prompts).items():
        text, stopped = stopped_text(decode(tokens), stops)
        assert texts[row] == text
        assert ends[row] == ("stop_string" if stopped else "max_tokens")
    assert all(new.text or new.finish for new in pieces)


def test_rows_that_a_stop_string_ended_are_no_longer_computed():
    model = some_models()[0]
    options = {"max_tokens": 40, "sampling": WILD, "stop_strings": "b", **FUNCTIONS}
    text = stream_text(model, ["a", "b", "aa"], **options)
    list(text)
    assert "stop_string" in text.finished.values()
    assert len(text.tokens.status.rows) < 3
    assert text.tails == {}


def test_a_stop_token_is_not_shown_but_what_was_held_back_is():
    model, prompts = lstm(), ["a", "b"]
    # Every token may start the stop string, which never comes.
    texts, ends, _ = written(model, prompts, stop_tokens=[4], stop_strings=["a" * 99])
    for row, tokens in tokens_made(model, prompts, stop_tokens=[4]).items():
        visible = tokens[:-1] if tokens[-1] == 4 else tokens
        assert texts[row] == decode(visible).decode(errors="replace")
        assert ends[row] == ("stop_token" if tokens[-1] == 4 else "max_tokens")


def test_a_stop_string_complete_at_the_last_token_is_why_the_row_ended():
    model = lstm()
    whole = decode(tokens_made(model, ["a"], max_tokens=1)[0]).decode(errors="replace")
    _, ends, [only] = written(model, "a", max_tokens=1, stop_strings=[whole])
    assert (only.text, ends) == ("", {0: "stop_string"})


@each_model
@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_a_text_taken_in_pieces_is_the_whole_text(model, size):
    """Whatever is held back where a piece ends."""
    prompts, stops = ["a", "ba", "!"], ["bé", "aa€", "?"]
    expected, ends, _ = written(model, prompts, max_tokens=20, stop_strings=stops)
    options = {"max_tokens": None, "sampling": WILD, "stop_strings": stops, **FUNCTIONS}
    text = stream_text(model, prompts, **options)
    found, finish = dict.fromkeys(range(3), ""), {}
    pieces = [new for _ in range(20 // size) for new in text.take(size)]
    for new in [*pieces, *text.end()]:
        found[new.row] += new.text
        finish[new.row] = new.finish
    assert (found, finish) == (expected, ends)
    assert list(text.end()) == list(text) == []


@pytest.mark.parametrize("piece", [b"a", b""])
def test_tokens_count_though_their_text_is_held_back_or_empty(piece):
    functions = {"encode": encode, "decode": lambda _: piece}
    text = stream_text(lstm(), "a", max_tokens=None, stop_strings="a" * 50 + "b", **functions)
    assert list(text.take(3)) == []
    assert text.tokens.status.num_made == 3
    held = piece.decode() * 3
    assert [(new.text, new.finish) for new in text.end()] == [(held, "max_tokens")]


def test_ending_a_text_shows_waiting_tokens_and_each_rows_own_reason():
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
    with pytest.raises(ValueError, match="into bytes, got str; for a tokeniser that gives text"):
        next(text)
