"""Random Walk and Permutations: the generators against an agent that walks, and points followed."""

import math

import numpy as np
import pytest
from oracles import product_answers, walk_answers

from staircase_attention.tasks import IGNORED, Permutations, RandomWalk


def check_against_the_oracle(task, oracle, **options):
    inputs_named, outputs_named = np.array(task.input_symbols), np.array(task.output_symbols)
    for inputs, targets in task.generate(np.random.default_rng(0), 100):
        expected = oracle(inputs_named[inputs].tolist(), **options)
        assert targets[0] == IGNORED
        assert expected[0] is None
        assert expected[1:] == outputs_named[targets[1:]].tolist()


@pytest.mark.parametrize("walls", ["block", "wrap"])
@pytest.mark.parametrize("start", ["corner", "centre"])
@pytest.mark.parametrize("heading", ["north", "east", "south", "west"])
def test_every_walk_agrees_with_the_oracle(walls, start, heading):
    for height, width in ((3, 4), (1, 2), (5, 1), (8, 8)):
        grid = {"height": height, "width": width, "walls": walls, "start": start}
        grid |= {"heading": heading}
        check_against_the_oracle(RandomWalk(length=60, **grid), walk_answers, **grid)


def test_actions_are_uniform():
    episodes = RandomWalk().generate(np.random.default_rng(0), 1_000)
    counts = np.bincount(episodes.inputs)[1:]
    # Four standard deviations of a share of 1/3 in 400,000 draws.
    assert np.all(np.abs(counts / counts.sum() - 1 / 3) < 0.003)


@pytest.mark.parametrize("inputs", ["elements", "generators"])
@pytest.mark.parametrize("group", ["S2", "S3", "S4", "S5", "S6", "A3", "A4", "A5", "A6"])
def test_every_group_agrees_with_the_oracle(group, inputs):
    task = Permutations(group=group, inputs=inputs, length=20)
    check_against_the_oracle(task, product_answers)


@pytest.mark.parametrize("num_points", [2, 3, 4, 5, 6])
def test_groups_have_the_right_order(num_points):
    whole = Permutations(group=f"S{num_points}")
    assert whole.num_outputs == math.factorial(num_points) == len(set(whole.output_symbols))
    assert whole.num_inputs == whole.num_outputs + 1
    if num_points > 2:
        even = Permutations(group=f"A{num_points}")
        assert even.num_outputs == math.factorial(num_points) // 2
        assert set(even.output_symbols) < set(whole.output_symbols)


@pytest.mark.parametrize("group", ["S2", "S3", "S5", "A3", "A4", "A5"])
def test_generators_reach_the_whole_group(group):
    task = Permutations(group=group, inputs="generators", length=200)
    episodes = task.generate(np.random.default_rng(0), 200)
    asked = episodes.targets[episodes.targets != IGNORED]
    assert set(asked.tolist()) == set(range(task.num_outputs))
    assert task.num_inputs < 8


def test_elements_and_products_are_uniform():
    episodes = Permutations().generate(np.random.default_rng(0), 10_000)
    for symbols in (episodes.inputs - 1, episodes.targets):
        counts = np.bincount(symbols[symbols >= 0], minlength=120)
        # Five standard deviations of a share of 1/120 in 640,000 draws.
        assert np.all(np.abs(counts / counts.sum() - 1 / 120) < 5 * math.sqrt(1 / 120 / 640_000))
