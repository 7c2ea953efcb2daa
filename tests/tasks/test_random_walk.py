"""Random Walk: the generator against an agent that walks."""

import numpy as np
import pytest
from oracles import walk_answers

from staircase_attention.tasks import IGNORED, RandomWalk


def check_against_the_oracle(task, num_episodes, seed=0):
    names = np.array(task.input_symbols), np.array(task.output_symbols)
    grid = {name: getattr(task, name) for name in ("height", "width", "walls", "start", "heading")}
    for inputs, targets in task.generate(np.random.default_rng(seed), num_episodes):
        expected = walk_answers(names[0][inputs].tolist(), **grid)
        assert expected[0] is None
        assert targets[0] == IGNORED
        assert expected[1:] == names[1][targets[1:]].tolist()


@pytest.mark.parametrize("walls", ["block", "wrap"])
@pytest.mark.parametrize("start", ["corner", "centre"])
@pytest.mark.parametrize("heading", ["north", "east", "south", "west"])
def test_every_option_agrees_with_the_oracle(walls, start, heading):
    task = RandomWalk(length=60, height=3, width=4, walls=walls, start=start, heading=heading)
    check_against_the_oracle(task, 100)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (5, 1), (2, 9), (8, 8), (16, 16)])
def test_every_grid_agrees_with_the_oracle(height, width):
    check_against_the_oracle(RandomWalk(height=height, width=width), 100)


def test_actions_are_uniform():
    episodes = RandomWalk().generate(np.random.default_rng(0), 1_000)
    counts = np.bincount(episodes.inputs)[1:]
    # Four standard deviations of a share of 1/3 in 400,000 draws.
    assert np.all(np.abs(counts / counts.sum() - 1 / 3) < 0.003)
