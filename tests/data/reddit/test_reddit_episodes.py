"""Episodes hold every token once, in pieces of one length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.data.reddit import EPISODE_LENGTH, episodes_of


def encode(text):
    return list(text.encode())


@given(text=st.text(max_size=40), length=st.integers(1, 12), end=st.sampled_from([None, 300]))
def test_the_tokens_of_episodes_are_those_of_the_text(text, length, end):
    pieces = list(episodes_of(text, encode, padding=0, length=length, end=end))
    expected = encode(text) + ([] if end is None else [end])
    tokens = [token for piece in pieces for token in piece.tokens[piece.mask].tolist()]
    assert tokens == expected
    assert all(piece.tokens.shape == piece.mask.shape == (length,) for piece in pieces)
    assert all(piece.mask.all() for piece in pieces[:-1])
    assert all((piece.tokens[~piece.mask] == 0).all() for piece in pieces)
    assert len(pieces) == -(-len(expected) // length)


def test_padding_is_at_the_end_and_masked():
    (piece,) = episodes_of("ab", encode, padding=9, length=4)
    assert piece.tokens.tolist() == [97, 98, 9, 9]
    assert piece.mask.tolist() == [True, True, False, False]


def test_the_length_is_the_papers():
    first, second = episodes_of("x" * 300, encode, padding=0)
    assert first.tokens.size == second.tokens.size == EPISODE_LENGTH == 256
    assert (first.mask.sum(), second.mask.sum()) == (256, 44)


def test_no_length_is_refused():
    with pytest.raises(ValueError, match="length must be a whole number of at least 1"):
        next(episodes_of("ab", encode, padding=0, length=0))
