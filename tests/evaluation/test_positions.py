"""Losses by position in the document are means of what the model itself gives."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from staircase_attention import CoreConfig, SequenceModel, Staircase
from staircase_attention.data import evaluation_batches
from staircase_attention.evaluation import Places, score_by_position
from staircase_attention.training.dataset import EpisodeLanes

STARTS = [0, 10, 13]


class Text:
    """Forty-one random tokens in three documents."""

    num_tokens = 41
    document_starts = np.array(STARTS)

    def __init__(self, *, first=0, end_symbol=None):
        self.numbers = first + np.random.default_rng(0).integers(0, 7, 41)
        self.end_symbol = end_symbol

    def tokens(self, start, stop):
        return self.numbers[start:stop]

    def rows(self, starts, length):
        return self.numbers[(starts[:, None] + np.arange(length)) % 41]


def stream(num_lanes=1, num_tokens=None):
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


def positions_of(model, text, deal, **options):
    positions = (batch.targets for batch in deal(Places(text)))
    return score_by_position(model, deal(text), positions, device=torch.device("cpu"), **options)


@torch.no_grad()
def losses(model, tokens):
    """The loss of every token after the first."""
    tokens = torch.from_numpy(np.asarray(tokens))[None]
    logits, _ = model(tokens[:, :-1])
    return functional.cross_entropy(logits[0], tokens[0, 1:], reduction="none").tolist()


def check(found, indexed_losses):
    """Compare scores with losses of tokens by their indices."""
    expected: dict[int, list[float]] = {}
    for index, loss in indexed_losses:
        position = index - max(start for start in STARTS if start <= index)
        expected.setdefault(1 << position.bit_length() >> 1, []).append(loss)
    assert list(found) == sorted(expected)
    for lower, score in found.items():
        assert score.num_answers == len(expected[lower])
        assert score.loss == pytest.approx(np.mean(expected[lower]), rel=1e-4)


@pytest.mark.parametrize("num_tokens", [None, 23])
@pytest.mark.parametrize("end_symbol", [None, 6])
def test_a_stream_is_read_with_one_state(num_tokens, end_symbol):
    model, text = build(), Text(end_symbol=end_symbol)
    first = 1 if end_symbol is None else 0
    tokens = text.numbers[: first + (num_tokens or 41)]
    tokens = tokens if end_symbol is None else [end_symbol, *tokens]
    check(
        positions_of(model, text, stream(num_tokens=num_tokens)),
        enumerate(losses(model, tokens), start=first),
    )


@pytest.mark.parametrize("num_tokens", [41, 12])
def test_episodes_are_read_each_from_an_empty_state(num_tokens):
    def deal(split):
        settings = {"num_lanes": 2, "segment_length": 8, "num_tokens": num_tokens}
        return EpisodeLanes(split=split, seed=None, **settings).once()

    model, text, expected = build(), Text(), []
    for start, stop in ((0, 10), (10, 13), (13, 41)):
        for first in range(start, min(stop, num_tokens), 8):
            piece = text.numbers[first : min(first + 8, stop, num_tokens)]
            if len(piece) > 1:
                expected += enumerate(losses(model, piece), start=first + 1)
    check(positions_of(model, text, deal, carries_state=False), expected)


@pytest.mark.parametrize("num_lanes", [3, 7, 50])
def test_no_token_is_lost_in_lanes_of_different_lengths(num_lanes):
    found = positions_of(build(), Text(), stream(num_lanes))
    assert sum(score.num_answers for score in found.values()) == 40


def test_a_model_is_read_without_dropout_and_left_in_its_mode():
    model = build(dropout=0.5).train()
    assert positions_of(model, Text(), stream()) == positions_of(build(), Text(), stream())
    assert model.training
    # Also where reading fails.
    with pytest.raises(ValueError, match="token ids must be from 0"):
        positions_of(model, Text(first=100), stream())
    assert model.training
