"""Episodes: sequences laid end to end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.tasks import IGNORED, Episodes
from staircase_attention.tasks.task import ragged_range

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=12)


def numbered(lengths):
    """Episodes in which every token is unlike any other."""
    num_tokens = sum(lengths)
    return Episodes(
        inputs=np.arange(num_tokens),
        targets=np.where(np.arange(num_tokens) % 2, np.arange(num_tokens), IGNORED),
        starts=np.cumsum(lengths) - lengths,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=9))
def test_a_ragged_range_is_its_ranges_in_order(pairs):
    firsts = np.array([first for first, _ in pairs], dtype=np.int64)
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    expected = [place for first, count in pairs for place in range(first, first + count)]
    assert ragged_range(firsts, counts).tolist() == expected


@given(LENGTHS)
def test_episodes_can_be_counted_indexed_and_walked_through(lengths):
    episodes = numbered(lengths)
    assert len(episodes) == len(lengths)
    assert episodes.lengths.tolist() == lengths
    assert episodes.num_tokens == sum(lengths)
    assert episodes.num_answers == sum(lengths) // 2
    walked = [inputs.tolist() for inputs, _ in episodes]
    assert walked == [episodes[index][0].tolist() for index in range(len(episodes))]
    assert np.concatenate(walked).tolist() == list(range(sum(lengths)))
    assert episodes[-1][0].tolist() == walked[-1]


@given(LENGTHS, st.data())
def test_taking_episodes_keeps_each_whole_and_in_the_order_asked(lengths, data):
    episodes = numbered(lengths)
    indices = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9))
    taken = episodes.take(np.array(indices, dtype=np.int64))
    assert [inputs.tolist() for inputs, _ in taken] == [episodes[i][0].tolist() for i in indices]
    assert [targets.tolist() for _, targets in taken] == [episodes[i][1].tolist() for i in indices]


@given(LENGTHS, LENGTHS)
def test_concatenating_gives_the_episodes_of_all_parts(first, second):
    joined = Episodes.concatenate([numbered(first), numbered(second)])
    parts = [*numbered(first), *numbered(second)]
    assert [inputs.tolist() for inputs, _ in joined] == [inputs.tolist() for inputs, _ in parts]


def test_an_index_past_the_end_is_an_index_error():
    with pytest.raises(IndexError):
        numbered([1, 2])[2]


@pytest.mark.parametrize(
    ("inputs", "targets", "starts", "message"),
    [
        ([0, 1], [0], [0], r"must be equally long, got 2 inputs and 1 targets; put IGNORED"),
        (
            [0, 1],
            [0, 1],
            [1],
            r"starts must increase from 0 .* got \[1\]\.\.\. over 2 tokens; give",
        ),
        ([0, 1], [0, 1], [0, 2], r"starts must increase .* no episode may be empty"),
        ([0, 1], [0, 1], [0, 0], r"starts must increase"),
        ([0, 1], [0, 1], [], r"starts must increase"),
        ([[0, 1]], [0, 1], [0], r"inputs must be a one-dim.*got 2 dimensions of int64; flatten"),
        ([0, 1], [0.5, 1], [0], r"targets must be .* of integers, got 1 dimensions of float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(inputs, targets, starts, message):
    with pytest.raises(ValueError, match=message) as caught:
        Episodes(inputs=np.array(inputs), targets=np.array(targets), starts=np.array(starts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            np.zeros((2, 3), int),
            np.zeros((3, 2), int),
            r"one shape, .*got \(2, 3\) and \(3, 2\); give",
        ),
        (np.zeros(3, int), np.zeros(3, int), r"one shape, .*got \(3,\) and \(3,\); give"),
        (
            np.full((1, 2), 2**32 + 1),
            np.zeros((1, 2), int),
            r"inputs must be from -.*, got 4294967297",
        ),
    ],
)
def test_grids_that_do_not_fit_are_refused(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        Episodes.from_grid(inputs, targets)
