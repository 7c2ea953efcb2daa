"""Text as it comes: characters whole, stop strings never shown, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from staircase_attention.generation import StopStrings, TextTail

stop_strings = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3).map(tuple)
texts = st.text("abcé€𝄞", max_size=20)


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


def expected(content: bytes, stops) -> tuple[str, bool]:
    """Look at every beginning of the text, the shortest first: the first that ends in a stop."""
    for end in range(len(content) + 1):
        ending = [stop for stop in stops if content[:end].endswith(stop.encode())]
        if ending:
            longest = max(len(stop.encode()) for stop in ending)
            return content[: end - longest].decode(errors="replace"), True
    return content.decode(errors="replace"), False


@given(text=texts, stops=stop_strings, cuts=st.lists(st.integers(0, 99), max_size=9))
def test_the_text_ends_before_the_stop_string_that_is_complete_first(text, stops, cuts):
    pieces, stopped = shown(cut(text.encode(), cuts), stops)
    assert ("".join(pieces), stopped) == expected(text.encode(), stops)


@given(content=st.binary(max_size=20), stops=stop_strings, cuts=st.lists(st.integers(0, 99)))
@example(content=b"\xf0\x9d\x84", stops=(), cuts=[1, 2])
@example(content=b"\xc3ab", stops=("ab",), cuts=[1, 2])
def test_bytes_that_are_not_utf8_are_replaced_the_same_however_they_are_cut(content, stops, cuts):
    pieces, stopped = shown(cut(content, cuts), stops)
    assert ("".join(pieces), stopped) == expected(content, stops)


@given(text=texts, stops=stop_strings)
def test_text_appears_as_early_as_it_can(text, stops):
    """After each byte, all that no stop string can claim any more has been shown."""
    content, tail, so_far = text.encode(), TextTail(StopStrings(stops)), ""
    for place in range(len(content)):
        new, stopped = tail.feed(content[place : place + 1])
        so_far += new
        if stopped:
            return
        read = content[: place + 1]
        claimed = max(
            (
                size
                for stop in stops
                for size in range(len(stop.encode()))
                if read.endswith(stop.encode()[:size])
            ),
            default=0,
        )
        safe = read[: len(read) - claimed].decode(errors="ignore")
        assert so_far == safe


@pytest.mark.parametrize(
    ("pieces", "stops", "appears"),
    [
        ([b"one E", b"N", b"D two"], ("END",), ["one ", "", ""]),
        ([b"one EN", b"TER"], ("END",), ["one ", "ENTER", ""]),
        ([b"xENDy"], ("END",), ["x"]),
        ([b"abcd"], ("bcd", "bc"), ["a"]),
        ([b"abcd"], ("abcd", "bcd"), [""]),
        ([b"aab"], ("ab",), ["a"]),
        ([b"a", b"a", b"b"], ("aab",), ["", "", ""]),
        ([b"caf\xc3", b"\xa9!"], (), ["caf", "é!", ""]),
        ([b"\xe2", b"\x82", b"\xac"], (), ["", "", "€", ""]),
        ([b"\xe2\x82", b"\xac."], ("€",), ["", ""]),
        ([b"\xe2\x82"], (), ["", "\ufffd"]),
        ([b"a\xffb"], (), ["a\ufffdb", ""]),
        ([b"", b"a"], (), ["", "a", ""]),
    ],
)
def test_examples(pieces, stops, appears):
    assert shown(pieces, stops)[0] == appears


@given(text=texts, stops=stop_strings)
def test_what_is_held_back_is_at_most_a_stop_string_and_a_character(text, stops):
    tail = TextTail(StopStrings(stops))
    longest = max((len(stop.encode()) for stop in stops), default=1)
    for byte in text.encode():
        _, stopped = tail.feed(bytes([byte]))
        assert len(tail.held) < longest
        assert len(tail.partial) < 4
        if stopped:
            return


@pytest.mark.parametrize("strings", [("",), ("a", ""), (b"a",), (3,)])
def test_stop_strings_that_are_empty_or_no_strings_are_refused(strings):
    with pytest.raises(ValueError, match="a string of at least one character, got"):
        StopStrings(strings)
