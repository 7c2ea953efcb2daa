"""Losses by position and by past are means of what the model itself gives."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from staircase_attention import CoreConfig, SequenceModel, Staircase
from staircase_attention.data import evaluation_batches
from staircase_attention.evaluation import Reading, Score, bits, loss_by_past, loss_by_position
from staircase_attention.training.dataset import EpisodeLanes


class Text:
    """Forty-one random tokens in three documents."""

    num_tokens = 41
    document_starts = np.array([0, 10, 13])

    def __init__(self, *, first=0, end_symbol=None):
        self.numbers = first + np.random.default_rng(0).integers(0, 7, 41)
        self.end_symbol = end_symbol

    def tokens(self, start, stop):
        return self.numbers[start:stop]

    def rows(self, starts, length):
        return self.numbers[(starts[:, None] + np.arange(length)) % 41]


def stream(num_lanes=1, num_tokens=40):
    return partial(evaluation_batches, num_lanes=num_lanes, segment_length=8, num_tokens=num_tokens)


def build(dropout=0.0):
    model = SequenceModel(
        vocab_size=7,
        core=CoreConfig(width=8, num_layers=1, num_heads=2, dropout=dropout),
        schedule=Staircase(chunk_size=3, num_passes=2),
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval()


@pytest.fixture
def reading():
    return Reading(
        model=build(),
        split=Text(),
        deal=stream(),
        device=torch.device("cpu"),
    )


@torch.no_grad()
def losses(model, tokens, *, past=0):
    """The loss of every token after the first, and after the past."""
    tokens = torch.from_numpy(np.asarray(tokens))[None]
    logits, _ = model(tokens[:, :-1])
    return functional.cross_entropy(logits[0], tokens[0, 1:], reduction="none")[past:].tolist()


def check(found, expected):
    """Compare scores with lists of losses."""
    assert list(found) == sorted(expected)
    for lower, score in found.items():
        assert score.num_answers == len(expected[lower])
        assert score.loss == pytest.approx(np.mean(expected[lower]), rel=1e-4)


def by_position(found, starts):
    """Losses of consecutive tokens by doubling positions in their documents."""
    expected: dict[int, list[float]] = {}
    for index, loss in found:
        position = index - max(start for start in starts if start <= index)
        expected.setdefault(1 << position.bit_length() >> 1, []).append(loss)
    return expected


def test_losses_by_position_are_means_over_the_same_distances(reading):
    found = enumerate(losses(reading.model, reading.split.numbers), start=1)
    check(loss_by_position(reading), by_position(found, [0, 10, 13]))


@pytest.mark.parametrize("num_tokens", [41, 12])
def test_episodes_are_read_each_from_an_empty_state(reading, num_tokens):
    def deal(split):
        settings = {"num_lanes": 2, "segment_length": 8, "num_tokens": num_tokens}
        return EpisodeLanes(split=split, seed=None, **settings).once()

    reading = replace(reading, carries_state=False, deal=deal)
    found = []
    for start, stop in ((0, 10), (10, 13), (13, 41)):
        for first in range(start, min(stop, num_tokens), 8):
            piece = reading.split.numbers[first : min(first + 8, stop, num_tokens)]
            if len(piece) > 1:
                found += enumerate(losses(reading.model, piece), start=first + 1)
    check(loss_by_position(reading), by_position(found, [0, 10, 13]))
    with pytest.raises(ValueError, match="got an episodic text; score by position"):
        loss_by_past(reading, [0, 8])


def test_more_past_is_what_the_state_holds(reading):
    expected = {
        past: [
            loss
            for start in (16, 24, 32)
            for loss in losses(
                reading.model, reading.split.numbers[start - past : start + 9], past=past
            )
        ]
        for past in (0, 8, 16)
    }
    check(loss_by_past(reading, [0, 8, 16]), expected)
    assert loss_by_past(reading, [32])[32].num_answers == 8


@pytest.mark.parametrize("num_tokens", [40, 23])
def test_the_first_token_is_predicted_from_an_end_symbol(reading, num_tokens):
    reading = replace(reading, split=Text(end_symbol=6), deal=stream(num_tokens=num_tokens))
    whole = Score.together(loss_by_position(reading).values())
    expected = losses(reading.model, [6, *reading.split.numbers[:num_tokens]])
    assert whole.num_answers == num_tokens
    assert whole.loss == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize("num_lanes", [3, 7, 50])
def test_no_token_is_lost_in_lanes_of_different_lengths(reading, num_lanes):
    found = loss_by_position(replace(reading, deal=stream(num_lanes)))
    assert sum(score.num_answers for score in found.values()) == 40


@pytest.mark.parametrize(
    ("pasts", "line"),
    [
        ([], "at least 0, got none; use 0"),
        ([8, -1], "at least 0, got -1; use 0"),
        ([0, 33], "of every lane, 32 tokens, got 33; use a smaller past, or fewer lanes"),
    ],
)
def test_a_past_that_the_text_does_not_have_is_refused(reading, pasts, line):
    with pytest.raises(ValueError, match=line):
        loss_by_past(reading, pasts)


BOTH = pytest.mark.parametrize(
    "measure", [loss_by_position, lambda reading: loss_by_past(reading, [0, 8])]
)


@BOTH
def test_a_model_is_read_without_dropout_and_left_in_its_mode(reading, measure):
    model = build(dropout=0.5).train()
    assert measure(replace(reading, model=model)) == measure(reading)
    assert model.training
    assert not reading.model.training
    # Also where reading fails.
    with pytest.raises(ValueError, match="token ids must be from 0"):
        measure(replace(reading, model=model, split=Text(first=100)))
    assert model.training


def test_bits_are_nats_over_the_logarithm_of_two():
    assert bits(np.log(8)) == pytest.approx(3)
