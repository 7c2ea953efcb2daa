"""Scores by the place of an answer are parts of the whole score."""

import numpy as np
import pytest
import torch
from torch import nn

from staircase_attention.evaluation import (
    episode_positions,
    evaluate,
    loss_and_wrong,
    score_by_position,
)
from staircase_attention.tasks import IGNORED, Episodes, evaluation_batches

CPU = torch.device("cpu")
START, STEP = 0, 1


class SlowStarter(nn.Module):
    """Answers 1, as it should, from the third START on that it sees; before that, 0."""

    def forward(self, tokens, state=None):
        seen = (tokens == START).cumsum(1) + (0 if state is None else state)
        logits = torch.stack([seen < 3, seen >= 3], dim=-1).double()
        return logits, seen[:, -1:]


class SoonLost(nn.Module):
    """Answers 1, as it should, up to the third token of an episode; after that, 0."""

    def forward(self, tokens, state=None):
        place = torch.full_like(tokens[:, :1], 9) if state is None else state
        places = []
        for token in tokens.split(1, dim=1):
            place = torch.where(token == START, 0, place + 1)
            places.append(place)
        after = torch.cat(places, dim=1)
        logits = torch.stack([after >= 3, after < 3], dim=-1).double()
        return logits, place


def by_position(model, episodes, **dealt):
    batches = evaluation_batches(episodes, **dealt)
    return score_by_position(model, batches, episode_positions(episodes, **dealt), device=CPU)


@pytest.fixture
def episodes():
    """Forty-three of 1 to 6 tokens, of which the first asks nothing."""
    lengths = np.random.default_rng(3).integers(1, 7, 43)
    starts = np.cumsum(lengths) - lengths
    inputs = np.full(lengths.sum(), STEP)
    targets = np.ones_like(inputs)
    inputs[starts], targets[starts] = START, IGNORED
    return Episodes(inputs=inputs, targets=targets, starts=starts)


@pytest.mark.parametrize(("num_lanes", "segment_length"), [(1, 7), (4, 5), (5, 64), (50, 3)])
def test_errors_are_found_in_the_positions_where_they_are(episodes, num_lanes, segment_length):
    dealt = {"num_lanes": num_lanes, "segment_length": segment_length}
    found = by_position(SoonLost(), episodes, **dealt)
    reach = {place: int((episodes.lengths > place).sum()) for place in range(1, 6)}
    assert {place: score.num_answers for place, score in found.items()} == {
        1: reach[1],
        2: reach[2] + reach[3],
        4: reach[4] + reach[5],
    }
    assert (found[1].error, found[4].error) == (0, 1)
    assert found[2].error == pytest.approx(reach[3] / (reach[2] + reach[3]), rel=1e-12)


@pytest.mark.parametrize("model", [SlowStarter(), SoonLost()])
def test_the_parts_make_up_the_whole(episodes, model):
    dealt = {"num_lanes": 4, "segment_length": 5}
    whole = evaluate(model, evaluation_batches(episodes, **dealt), device=CPU)
    found = by_position(model, episodes, **dealt).values()
    assert sum(part.num_answers for part in found) == whole.num_answers
    for name in ("loss", "error"):
        total = sum(part.num_answers * getattr(part, name) for part in found)
        assert total / whole.num_answers == pytest.approx(getattr(whole, name), rel=1e-12)
    assert model.training


def test_batches_that_are_used_up_have_no_score(episodes):
    batches = evaluation_batches(episodes, num_lanes=2, segment_length=5)
    assert evaluate(SoonLost(), batches, device="cpu").num_answers == episodes.num_answers
    with pytest.raises(ValueError, match="at least one answer, got none; make them again"):
        evaluate(SoonLost(), batches, device="cpu")


def test_answers_that_a_model_cannot_give_are_refused_in_one_line(episodes):
    episodes.targets[-1] = 7
    batches = evaluation_batches(episodes, num_lanes=2, segment_length=5)
    with pytest.raises(ValueError, match="below the model's 2 outputs, got 7; use data that"):
        evaluate(SoonLost(), batches, device="cpu")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_summed_in_float32(kind):
    length = 5000
    logits = torch.zeros(1, length, 2, dtype=kind)
    logits[..., 0] = 20
    loss, wrong = loss_and_wrong(logits, torch.ones(1, length, dtype=torch.int64))
    assert loss.item() == pytest.approx(20 * length, rel=1e-6)
    assert wrong.item() == length
