"""Lanes: contiguous streams, exact resumption, every token of an evaluation once."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.plain import from_plain, to_plain
from staircase_attention.tasks import (
    IGNORED,
    Algorithm,
    Episodes,
    Epochs,
    Growth,
    Lanes,
    Permutations,
    Position,
    RandomWalk,
    evaluation_batches,
    lanes_of_process,
    training_source,
)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=20)
SIZES = st.integers(1, 7)
TASKS = [
    RandomWalk(length=20),
    Algorithm(num_statements=10, num_train=40),
    Algorithm(num_statements=10, num_train=None),
    Permutations(length=6),
]


def numbered(lengths):
    """Episodes in which every token is unlike any other; a target is 1,000 further."""
    places = np.arange(sum(lengths))
    return Episodes(
        inputs=places, targets=places + 1_000, starts=np.cumsum(lengths) - np.array(lengths)
    )


def read(lanes, num_batches, position=None):
    """Inputs and targets of some batches side by side, and the positions before each and after."""
    positions = [position or lanes.first_position()]
    batches = []
    for _ in range(num_batches):
        batch, position = lanes.batch(positions[-1])
        batches.append(batch)
        positions.append(position)
    inputs = np.concatenate([batch.inputs for batch in batches], axis=1)
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    return inputs, targets, positions


GROWTHS = st.just(Growth()) | st.builds(
    Growth,
    first_tokens=st.integers(2, 6),
    first_updates=st.none() | st.integers(1, 5),
    double_every=st.integers(1, 3),
    num_doublings=st.integers(1, 3),
)


def expected_lane(source, lane, lanes, num_tokens):
    """A lane by its definition, token by token."""
    inputs, targets, number, offset = [], [], lane, 0
    for place in range(num_tokens):
        episodes, (index,) = source.find(np.array([number]))
        episode = episodes[index]
        whole = len(episode[0])
        length = min(whole, lanes.growth.longest(place // lanes.segment_length) or whole)
        is_cut = offset == length - 1 < whole - 1 and lanes.closing_symbol is not None
        inputs.append(lanes.closing_symbol if is_cut else episode[0][offset])
        targets.append(IGNORED if is_cut else episode[1][offset])
        offset += 1
        if offset == length:
            number, offset = number + lanes.num_lanes, 0
    return inputs, targets


@given(LENGTHS, SIZES, SIZES, GROWTHS, st.sampled_from([None, 77]))
def test_a_lane_is_its_episodes_cut_as_growth_says(lengths, num_lanes, length, growth, closing):
    source = Epochs(numbered(lengths), seed=0)
    lanes = Lanes(
        source=source,
        num_lanes=num_lanes,
        segment_length=length,
        growth=growth,
        closing_symbol=closing,
    )
    inputs, targets, positions = read(lanes, 10)
    assert inputs.dtype == targets.dtype == np.int64
    for lane in range(num_lanes):
        expected = expected_lane(source, lane, lanes, 10 * length)
        assert (inputs[lane].tolist(), targets[lane].tolist()) == expected
    later = read(lanes, 4, positions[6])
    assert np.array_equal(later[0], inputs[:, 6 * length :])
    assert later[2] == positions[6:]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_saved_position_is_all_that_resuming_needs(task):
    """Whatever the segments, from the same lanes or from new ones, in any order."""
    lanes = Lanes(source=training_source(task, seed=1), num_lanes=4, segment_length=16)
    inputs, targets, positions = read(lanes, 40)
    longer = read(replace(lanes, segment_length=64), 10)
    assert np.array_equal(longer[0], inputs)
    assert longer[2][-1].episodes == positions[-1].episodes
    assert longer[2][-1].offsets == positions[-1].offsets
    fresh = replace(lanes, source=training_source(task, seed=1))
    assert inputs[2].tolist() == expected_lane(fresh.source, 2, lanes, 640)[0]
    for resumed, update in ((fresh, 17), (lanes, 3), (fresh, 39), (lanes, 25)):
        position = from_plain(Position, json.loads(json.dumps(to_plain(positions[update]))))
        assert position == positions[update]
        assert position.update == update
        rest_inputs, rest_targets, rest = read(resumed, 40 - update, position)
        assert np.array_equal(rest_inputs, inputs[:, update * 16 :])
        assert np.array_equal(rest_targets, targets[:, update * 16 :])
        assert rest == positions[update:]


def test_positions_of_older_versions_can_be_read():
    """As checkpoints contain them."""
    plain = {"update": 3, "episodes": [4, 1], "offsets": [0, 17]}
    position = Position(update=3, episodes=(4, 1), offsets=(0, 17))
    assert from_plain(Position, plain) == position
    assert to_plain(position) == plain


def test_a_position_beyond_the_cut_is_refused():
    lanes = Lanes(source=training_source(TASKS[0], seed=1), num_lanes=2, segment_length=8)
    _, position = lanes.batch(lanes.first_position())
    short = replace(lanes, growth=Growth(first_tokens=4))
    with pytest.raises(ValueError, match="within episodes of 4 tokens at most, got 8 tokens"):
        short.batch(position)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_tokens": 1},
        {"first_updates": 0},
        {"double_every": 0},
        {"num_doublings": 0},
        {"num_doublings": 40},
    ],
)
def test_invalid_growth_is_refused(wrong):
    with pytest.raises(ValueError, match="must be an integer"):
        Growth(**wrong)


@given(lengths=LENGTHS, num_lanes=SIZES, segment_length=SIZES)
def test_lanes_that_restart_are_at_their_next_episodes(lengths, num_lanes, segment_length):
    source = Epochs(episodes=numbered(lengths), seed=0)
    lanes = Lanes(source=source, num_lanes=num_lanes, segment_length=segment_length)
    _, position = lanes.batch(lanes.first_position())
    restarted = lanes.restarted(position)
    assert restarted.update == position.update
    assert lanes.restarted(restarted) == restarted
    pairs = zip(position.episodes, position.offsets, restarted.episodes, strict=True)
    for number, offset, now in pairs:
        assert now == (number if offset == 0 else number + num_lanes)
    store, indices = source.find(np.array(restarted.episodes))
    batch, _ = lanes.batch(restarted)
    assert (batch.inputs[:, 0] == store.inputs[store.starts[indices]]).all()


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
def test_processes_share_the_global_batch_by_rows(num_processes):
    lanes = Lanes(source=training_source(RandomWalk(), seed=1), num_lanes=8, segment_length=5)
    batch, _ = lanes.batch(lanes.first_position())
    ranges = [lanes_of_process(process, num_processes, 8) for process in range(num_processes)]
    parts = [batch.rows(lanes_here) for lanes_here in ranges]
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), batch.targets)
    assert sum(part.num_answers for part in parts) == batch.num_answers


@given(LENGTHS, SIZES, SIZES)
def test_evaluation_gives_every_token_once_and_in_order(lengths, num_lanes, segment_length):
    episodes = numbered(lengths)
    batches = list(evaluation_batches(episodes, num_lanes=num_lanes, segment_length=segment_length))
    num_lanes = min(num_lanes, len(lengths))
    width = min(segment_length, max(sum(lengths[lane::num_lanes]) for lane in range(num_lanes)))
    for batch in batches:
        assert batch.inputs.shape == batch.targets.shape == (num_lanes, width)
        is_padding = batch.targets == IGNORED
        assert np.all(batch.inputs[is_padding] == 0)
        assert np.all(batch.targets[~is_padding] == batch.inputs[~is_padding] + 1_000)
    assert sum(batch.num_answers for batch in batches) == sum(lengths)
    assert batches[-1].num_answers
    for lane in range(num_lanes):
        inputs = np.concatenate([batch.inputs[lane] for batch in batches])
        is_padding = np.concatenate([batch.targets[lane] == IGNORED for batch in batches])
        mine = [inputs.tolist() for inputs, _ in list(episodes)[lane::num_lanes]]
        assert inputs[~is_padding].tolist() == [token for one in mine for token in one]
        assert np.all(np.diff(is_padding.astype(int)) >= 0), "padding is a tail"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda lanes: lanes(num_lanes=0), "num_lanes must be an integer of at least 1, got 0"),
        (lambda lanes: lanes(segment_length=1.5), r"segment_length must be .* got 1\.5; use for"),
        (
            lambda lanes: lanes(num_lanes=3).batch(lanes(num_lanes=2).first_position()),
            "a position must have 3 lanes, as its Lanes have, got 2; resume with the num_lanes",
        ),
        (
            lambda _: lanes_of_process(0, 9, 8),
            "num_lanes must be at least the 9 processes, got 8; use for example num_lanes=9",
        ),
        (
            lambda _: next(evaluation_batches(numbered([1]), num_lanes=0, segment_length=1)),
            "num_lanes must be an integer of at least 1, got 0",
        ),
    ],
)
def test_invalid_lanes_are_refused(wrong, message):
    def lanes(num_lanes=1, segment_length=1):
        source = Epochs(numbered([2, 3]), seed=0)
        return Lanes(source=source, num_lanes=num_lanes, segment_length=segment_length)

    with pytest.raises(ValueError, match=message) as caught:
        wrong(lanes)
    assert "\n" not in str(caught.value)
