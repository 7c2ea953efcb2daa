"""Losses by position and by past are means of what the model itself gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from staircase_attention import CoreConfig, SequenceModel, Staircase
from staircase_attention.evaluation import Reading, bits, loss_by_past, loss_by_position


class Text:
    """Forty random tokens in three documents."""

    num_tokens = 41
    document_starts = np.array([0, 10, 13])

    def __init__(self):
        self.numbers = np.random.default_rng(0).integers(0, 7, 41)

    def tokens(self, start, stop):
        return self.numbers[start:stop]


class Foreign(Text):
    """A text of symbols that the model does not know."""

    def tokens(self, start, stop):
        return super().tokens(start, stop) + 100


@pytest.fixture
def reading():
    model = SequenceModel(
        vocab_size=7,
        core=CoreConfig(width=8, num_layers=1, num_heads=2),
        schedule=Staircase(chunk_size=3, num_passes=2),
    )
    model.load_state_dict({name: value.float() for name, value in build_like(model).items()})
    return Reading(
        model=model.eval(),
        split=Text(),
        num_lanes=1,
        segment_length=8,
        num_tokens=40,
        device=torch.device("cpu"),
    )


@pytest.fixture
def forgetful(reading):
    """A reading of texts that are segments of their own."""
    return replace(reading, carries_state=False, num_lanes=2)


def build_like(model):
    torch.manual_seed(1)
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


def together(means):
    """The loss over all parts, and of how many tokens."""
    num_tokens = sum(mean.num_tokens for mean in means.values())
    return sum(mean.loss * mean.num_tokens for mean in means.values()) / num_tokens, num_tokens


def losses(reading):
    """Of every token after the first, read in one go."""
    tokens = torch.from_numpy(reading.split.numbers)[None]
    with torch.no_grad():
        logits, _ = reading.model(tokens[:, :-1])
    return functional.cross_entropy(logits[0], tokens[0, 1:], reduction="none").numpy()


def test_losses_by_position_are_means_over_the_same_distances(reading):
    expected = losses(reading)
    positions = [t - max(s for s in (0, 10, 13) if s <= t) for t in range(1, 41)]
    found = loss_by_position(reading)
    assert sum(mean.num_tokens for mean in found.values()) == 40
    for lower, mean in found.items():
        upper = 1 if lower == 0 else 2 * lower
        here = [loss for loss, p in zip(expected, positions, strict=True) if lower <= p < upper]
        assert mean.num_tokens == len(here)
        assert mean.loss == pytest.approx(np.mean(here), rel=1e-4)


def test_more_past_is_what_the_state_holds(reading):
    found = loss_by_past(reading, [0, 8, 16])
    assert {mean.num_tokens for mean in found.values()} == {24}
    tokens = torch.from_numpy(reading.split.numbers)[None]
    for past, mean in found.items():
        parts = []
        for start in (16, 24, 32):
            with torch.no_grad():
                logits, _ = reading.model(tokens[:, start - past : start + 8])
            answers = tokens[0, start + 1 : start + 9]
            parts.append(functional.cross_entropy(logits[0, past:], answers).item())
        assert mean.loss == pytest.approx(np.mean(parts), rel=1e-4)


@pytest.mark.parametrize("num_tokens", [40, 23])
def test_the_first_token_is_foretold_where_an_end_symbol_stands_before_it(reading, num_tokens):
    reading = replace(reading, end_symbol=6, num_tokens=num_tokens)
    tokens = torch.from_numpy(np.append(6, reading.split.numbers[:num_tokens]))[None]
    with torch.no_grad():
        logits, _ = reading.model(tokens[:, :-1])
    expected = functional.cross_entropy(logits[0], tokens[0, 1:]).item()
    assert together(loss_by_position(reading)) == (pytest.approx(expected, rel=1e-4), num_tokens)


@pytest.mark.parametrize("num_lanes", [3, 7, 50])
def test_no_token_is_lost_where_lanes_are_not_alike(reading, num_lanes):
    _, num_tokens = together(loss_by_position(replace(reading, num_lanes=num_lanes)))
    assert num_tokens == 40


@pytest.mark.parametrize("num_tokens", [41, 12])
def test_episodes_are_read_each_from_an_empty_state(forgetful, num_tokens):
    expected: dict[int, list[float]] = {}
    for start, stop in ((0, 10), (10, 13), (13, 41)):
        for first in range(start, min(stop, num_tokens), 8):
            last = min(first + 8, stop, num_tokens)
            piece = torch.from_numpy(forgetful.split.numbers[first:last])[None]
            if piece.shape[1] < 2:
                continue
            with torch.no_grad():
                logits, _ = forgetful.model(piece[:, :-1])
            found = functional.cross_entropy(logits[0], piece[0, 1:], reduction="none")
            for place, loss in enumerate(found.tolist(), start=first + 1 - start):
                expected.setdefault(2 ** (place.bit_length() - 1), []).append(loss)
    found = loss_by_position(replace(forgetful, num_tokens=num_tokens))
    assert list(found) == sorted(expected)
    for lower, mean in found.items():
        assert mean.num_tokens == len(expected[lower])
        assert mean.loss == pytest.approx(np.mean(expected[lower]), rel=1e-4)


def test_episodes_have_no_past_to_read_with(forgetful):
    with pytest.raises(ValueError, match=r"carries_state must be True .*, got False; use"):
        loss_by_past(forgetful, [0, 8])


@pytest.mark.parametrize(
    ("pasts", "line"),
    [
        ([], "at least 0, got none; use 0"),
        ([8, -1], "at least 0, got -1; use 0"),
        ([0, 33], "of every lane, 32 tokens, got 33; use a smaller past, or fewer lanes"),
    ],
)
def test_a_past_that_no_loss_can_be_given_for_is_refused(reading, pasts, line):
    with pytest.raises(ValueError, match=line):
        loss_by_past(reading, pasts)


def test_the_longest_past_that_there_is_leaves_the_last_segment(reading):
    assert loss_by_past(reading, [32])[32].num_tokens == 8


BOTH = pytest.mark.parametrize(
    "look", [loss_by_position, lambda reading: loss_by_past(reading, [0, 8])]
)


@BOTH
@pytest.mark.parametrize("was_training", [True, False])
def test_a_model_is_read_without_dropout_and_left_as_it_was(reading, look, was_training):
    model = SequenceModel(
        vocab_size=7,
        core=CoreConfig(width=8, num_layers=1, num_heads=2, dropout=0.5),
        schedule=Staircase(chunk_size=3, num_passes=2),
    )
    model.load_state_dict(reading.model.state_dict())
    model.train(was_training)
    assert look(replace(reading, model=model)) == look(reading)
    assert model.training == was_training


@BOTH
def test_a_model_is_left_as_it_was_though_reading_fails(reading, look):
    reading.model.train()
    with pytest.raises(ValueError, match="token ids must be from 0"):
        look(replace(reading, split=Foreign()))
    assert reading.model.training


def test_bits_are_nats_over_the_logarithm_of_two():
    assert bits(np.log(8)) == pytest.approx(3)
