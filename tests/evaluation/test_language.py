"""Losses by position and by past are means of what the model itself gives."""

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


def build_like(model):
    torch.manual_seed(1)
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


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


def test_bits_are_nats_over_the_logarithm_of_two():
    assert bits(np.log(8)) == pytest.approx(3)
