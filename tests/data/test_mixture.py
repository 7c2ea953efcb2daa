"""Documents come once or as their weight says, in one split, well mixed."""

import json
import math
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import ALL_TRAIN, SOME, ListedSource

from staircase_attention.data import HeldOut, InputError, Part
from staircase_attention.data.mixture import Mixture, PartPosition
from staircase_attention.plain import from_plain

TEXTS = [f"text {number}" for number in range(300)]


def mixture_of(*parts, held_out=ALL_TRAIN):
    parts = [Part(source=ListedSource(texts), weight=weight) for texts, weight in parts]
    return Mixture(parts=parts, held_out=held_out)


def mixed(*parts, held_out=ALL_TRAIN):
    mixture = mixture_of(*parts, held_out=held_out)
    return [piece for piece, _ in mixture.read(mixture.first_position()) if piece is not None]


@given(weight=st.floats(0.05, 4))
def test_a_weight_is_a_number_of_passes(weight):
    counts = Counter(piece.data.decode() for piece in mixed((TEXTS, weight)))
    often = [counts[text] for text in TEXTS]
    whole, rest = divmod(weight, 1)
    assert set(often) <= {int(whole), int(whole) + 1}
    # Four standard deviations of the number of documents that the rest of the weight keeps.
    deviation = (len(TEXTS) * rest * (1 - rest)) ** 0.5
    assert abs(sum(often) - len(TEXTS) * weight) <= 4 * deviation + 1e-6


def test_a_greater_weight_keeps_the_same_documents_and_more_in_passes():
    few = [piece.data for piece in mixed((TEXTS, 0.2))]
    assert set(few) < {piece.data for piece in mixed((TEXTS, 0.7))}
    # Copies are a whole pass apart.
    assert [piece.data.decode() for piece in mixed((TEXTS[:10], 2))] == TEXTS[:10] * 2


def test_held_out_documents_come_once_whatever_the_weight():
    once = mixed((TEXTS, 1), held_out=SOME)
    for weight in (0.1, 3):
        found = mixed((TEXTS, weight), held_out=SOME)
        for split in ("valid", "test"):
            expected = [piece.data for piece in once if piece.split == split]
            assert len(expected) > 25
            assert [piece.data for piece in found if piece.split == split] == expected


def test_sources_are_mixed_evenly_and_end_together():
    found = [piece.source for piece in mixed((["a"] * 900, 1), (["b"] * 100, 2))]
    assert len(found) == 1_100
    for first in range(0, 1_000, 100):
        assert 15 <= sum(found[first : first + 100]) <= 22


def test_a_documents_split_depends_on_its_text_alone():
    texts, held_out = [f"text {number}" for number in range(4_000)], HeldOut(valid=0.05, test=0.05)
    found = mixed((texts, 1), held_out=held_out)
    counts = Counter(piece.split for piece in found)
    assert 145 < counts["valid"] < 255
    assert 145 < counts["test"] < 255
    split_of = {piece.data: piece.split for piece in found}
    others = ["new", *texts[:1_000:3], *texts[:9]]
    among_others = mixed((others, 1), (texts, 2), held_out=held_out)
    assert all(piece.split == split_of.get(piece.data, piece.split) for piece in among_others)


@given(weights=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), data=st.data())
def test_a_mixture_resumes_from_any_saved_position(weights, data):
    mixture = mixture_of((TEXTS[:20], weights[0]), (TEXTS[20:27], weights[1]), held_out=SOME)
    pairs = list(mixture.read(mixture.first_position()))
    number = data.draw(st.integers(0, len(pairs) - 1))
    plain = json.loads(json.dumps([asdict(part) for part in pairs[number][1]]))
    position = tuple(from_plain(PartPosition, at) for at in plain)
    assert list(mixture.read(position)) == pairs[number + 1 :]
    assert mixture.num_read(pairs[-1][1]) == mixture.total_bytes


@pytest.mark.parametrize(
    "shares", [(-0.1, 0.1), (0.5, 0.5), (1, 0), (math.nan, 0.1), (0.1, math.nan), (math.inf, 0)]
)
def test_fractions_that_leave_nothing_to_train_on_are_refused(shares):
    with pytest.raises(InputError, match="below 1 together, got valid="):
        HeldOut(valid=shares[0], test=shares[1])


@pytest.mark.parametrize("weight", [0, -1.5, math.nan, math.inf, True, "2"])
def test_a_weight_that_is_not_a_number_above_0_is_refused(weight):
    with pytest.raises(InputError, match="weight must be a number over 0, got"):
        Part(source=ListedSource([]), weight=weight)


def test_an_unknown_split_and_an_empty_mixture_are_refused():
    mixture = Mixture(parts=[Part(source=ListedSource(["x"], split="dev"))], held_out=ALL_TRAIN)
    with pytest.raises(InputError, match="split in listed must be one of train, valid, test, got"):
        list(mixture.read(mixture.first_position()))
    with pytest.raises(InputError, match="a corpus must have a source, got none; name a file"):
        Mixture(parts=[], held_out=ALL_TRAIN)
