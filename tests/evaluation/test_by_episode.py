"""Scores by the number of an episode in its lane are parts of the whole score."""

import numpy as np
import pytest
import torch
from torch import nn

from staircase_attention.evaluation import Score, evaluate, score_by_episode
from staircase_attention.tasks import IGNORED, Episodes, evaluation_batches

CPU = torch.device("cpu")
START, STEP = 0, 1


class SlowStarter(nn.Module):
    """Answers 1, as it should, from the third START on that it sees; before that, 0."""

    def forward(self, tokens, state=None):
        seen = (tokens == START).cumsum(1) + (0 if state is None else state)
        logits = torch.stack([seen < 3, seen >= 3], dim=-1).double()
        return logits, seen[:, -1:]


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
def test_errors_are_found_in_the_episodes_where_they_are(episodes, num_lanes, segment_length):
    dealt = {"num_lanes": num_lanes, "segment_length": segment_length}
    found = score_by_episode(SlowStarter(), episodes, device=CPU, **dealt)
    numbers = 1 + np.arange(43) // num_lanes
    asked = episodes.lengths - 1
    ranges = [(1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64)]
    for first, end in ranges:
        here = (numbers >= first) & (numbers < end)
        if not asked[here].sum():
            assert first not in found
            continue
        assert found[first].num_answers == asked[here].sum()
        wrong = asked[here & (numbers < 3)].sum()
        assert found[first].error == pytest.approx(wrong / asked[here].sum(), rel=1e-12)


def test_the_parts_make_up_the_whole(episodes):
    dealt = {"num_lanes": 4, "segment_length": 5}
    whole = evaluate(SlowStarter(), evaluation_batches(episodes, **dealt), device=CPU)
    parts = score_by_episode(SlowStarter(), episodes, device=CPU, **dealt).values()
    together = Score.together(parts)
    assert together.num_answers == whole.num_answers
    assert together.loss == pytest.approx(whole.loss, rel=1e-12)
    assert together.error == pytest.approx(whole.error, rel=1e-12)


def test_a_model_is_left_in_the_mode_it_came_in(episodes):
    model = SlowStarter().train()
    score_by_episode(model, episodes, num_lanes=4, segment_length=5, device=CPU)
    assert model.training
