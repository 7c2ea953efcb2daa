"""Text: characters whole, stop strings never shown, however the bytes are split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_streams import FUNCTIONS, WILD, decode, encode, lstm, made, name, some_models

from staircase_attention.generation import stream, stream_text
from staircase_attention.generation.stream import show

each_model = pytest.mark.parametrize("model", some_models(), ids=name)
stop_strings = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3).map(tuple)
contents = st.text("abcé€𝄞", max_size=20).map(str.encode) | st.binary(max_size=20)


def shown(pieces, stops=()):
    """What appears to the end, and whether a stop string was that."""
    found, held = "", b""
    for piece in pieces:
        text, held, stopped = show(held + piece, stops)
        found += text
        if stopped:
            return found, True
    return found + show(held, stops, is_end=True)[0], False


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
    assert shown(cut(content, cuts), stops) == stopped_text(content, stops)


@given(text=st.text("abcé€𝄞", max_size=20), stops=stop_strings)
def test_text_appears_as_early_as_it_can_and_little_is_held_back(text, stops):
    """After each byte, everything that no stop string can still claim has been shown."""
    content, held, so_far = text.encode(), b"", ""
    starts = [stop.encode()[:size] for stop in stops for size in range(len(stop.encode()))]
    for place in range(len(content)):
        new, held, stopped = show(held + content[place : place + 1], stops)
        so_far += new
        if stopped:
            return
        read = content[: place + 1]
        claimed = max((len(start) for start in starts if read.endswith(start)), default=0)
        assert so_far == read[: len(read) - claimed].decode(errors="ignore")
        assert so_far.encode() + held == read


@pytest.mark.parametrize("strings", [("",), ("a", ""), (b"a",), (3,)])
def test_stop_strings_that_are_empty_or_no_strings_are_refused(strings):
    with pytest.raises(ValueError, match="a string of at least one character, got"):
        stream_text(lstm(), "a", max_tokens=1, stop_strings=strings, **FUNCTIONS)


def written(model, prompts, **options):
    """The text and the end of each row."""
    options = {"max_tokens": 30, "sampling": WILD, **options}
    pieces = list(stream_text(model, prompts, **options, **FUNCTIONS))
    rows = {new.row: "" for new in pieces}
    for new in pieces:
        rows[new.row] += new.text
    return rows, {new.row: new.finish for new in pieces}


def tokens_made(model, prompts, **options):
    ids = [encode(prompt) for prompt in prompts]
    return made(stream(model, ids, **{"max_tokens": 30, "sampling": WILD, **options}))


@each_model
@pytest.mark.parametrize("stops", [(), ("ab", "€", "bb")])
def test_the_text_is_that_of_the_tokens_up_to_each_rows_own_stop_string(model, stops):
    prompts = ["a", "ba?", "!b", "b"]
    texts, ends = written(model, prompts, stop_strings=stops)
    for row, tokens in tokens_made(model, prompts).items():
        text, stopped = stopped_text(decode(tokens), stops)
        assert texts[row] == text
        assert ends[row] == ("stop_string" if stopped else "max_tokens")


def test_rows_that_a_stop_string_ended_are_no_longer_computed():
    model = some_models()[0]
    options = {"max_tokens": 40, "sampling": WILD, "stop_strings": "b", **FUNCTIONS}
    text = stream_text(model, ["a", "b", "aa"], **options)
    list(text)
    assert "stop_string" in text.finished.values()
    assert len(text.rows) < 3
    assert text.held == {}


def test_a_stop_token_is_not_shown_but_what_was_held_back_is():
    model, prompts = lstm(), ["a", "b"]
    # Every token may start the stop string, which never comes.
    texts, ends = written(model, prompts, stop_tokens=[4], stop_strings=["a" * 99])
    for row, tokens in tokens_made(model, prompts, stop_tokens=[4]).items():
        visible = tokens[:-1] if tokens[-1] == 4 else tokens
        assert texts[row] == decode(visible).decode(errors="replace")
        assert ends[row] == ("stop_token" if tokens[-1] == 4 else "max_tokens")


def test_a_stop_string_complete_at_the_last_token_is_why_the_row_ended():
    model = lstm()
    whole = decode(tokens_made(model, ["a"], max_tokens=1)[0]).decode(errors="replace")
    assert written(model, "a", max_tokens=1, stop_strings=[whole]) == ({0: ""}, {0: "stop_string"})


@each_model
@pytest.mark.parametrize("size", [1, 5])
def test_a_text_taken_in_pieces_is_the_whole_text(model, size):
    """Whatever is held back where a piece ends."""
    prompts, stops = ["a", "ba", "!"], ["bé", "aa€", "?"]
    expected = written(model, prompts, max_tokens=20, stop_strings=stops)
    options = {"max_tokens": 20, "sampling": WILD, "stop_strings": stops, **FUNCTIONS}
    text = stream_text(model, prompts, **options)
    found = dict.fromkeys(range(3), "")
    for new in [new for _ in range(20 // size) for new in text.take(size)]:
        found[new.row] += new.text
    assert (found, text.finished) == expected


def test_an_empty_text_needs_a_start_token():
    with pytest.raises(ValueError, match="give start_token"):
        stream_text(lstm(), "", max_tokens=3, **FUNCTIONS)
    assert list(stream_text(lstm(), "", max_tokens=3, start_token=5, **FUNCTIONS))


def test_a_decode_that_gives_no_bytes_is_refused():
    text = stream_text(lstm(), "a", max_tokens=3, encode=encode, decode=lambda ids: "a")
    for _ in range(2):
        with pytest.raises(ValueError, match="into bytes, got str; if it gives text, pass"):
            next(text)
    assert text.num_made == 0
