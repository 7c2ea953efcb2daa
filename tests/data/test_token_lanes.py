"""Lanes are contiguous streams over all of a split; evaluation predicts every token once."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.data import (
    IGNORED,
    ByteTokeniser,
    InputError,
    TokenLanes,
    TokenPosition,
    evaluation_batches,
)
from staircase_attention.data.corpus_writer import CorpusWriter, Piece
from staircase_attention.data.token_split import TokenSplit


def split_of(tmp_path_factory, num_tokens, shard_tokens=17, end_symbol=300):
    """A split whose tokens are all different: 0, 1, 2, ..."""
    folder = tmp_path_factory.mktemp("split")
    writer = CorpusWriter(folder, ByteTokeniser(), num_sources=1, shard_tokens=shard_tokens)
    tokens = np.arange(num_tokens - 1, dtype=np.uint32)
    writer.add([Piece(b"", "train", 0, True)], [tokens])
    record = writer.finish()["train"]
    return TokenSplit(folder, record, dtype="uint16", end_symbol=end_symbol)


def values(split):
    return split.tokens(0, split.num_tokens).astype(np.int64)


sizes = {"num_tokens": st.integers(12, 120), "num_lanes": st.integers(1, 12)}


@given(**sizes, segment_length=st.integers(1, 20), num_batches=st.integers(1, 12))
def test_lanes_go_on_from_batch_to_batch_around_the_ring(
    num_tokens, num_lanes, segment_length, num_batches, tmp_path_factory
):
    split = split_of(tmp_path_factory, num_tokens)
    lanes = TokenLanes(split=split, num_lanes=num_lanes, segment_length=segment_length)
    position, batches = lanes.first_position(), []
    for _ in range(num_batches):
        batch, position = lanes.batch(position)
        batches.append(batch)
    assert (position.update, position.offset) == (num_batches, num_batches * segment_length)
    inputs = np.concatenate([batch.inputs for batch in batches], axis=1)
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    ring = values(split)
    for lane in range(num_lanes):
        places = lane * num_tokens // num_lanes + np.arange(num_batches * segment_length)
        assert inputs[lane].tolist() == ring[places % num_tokens].tolist()
        assert targets[lane].tolist() == ring[(places + 1) % num_tokens].tolist()
    assert not any(batch.is_padding.any() for batch in batches)
    assert all(batch.num_answers == batch.inputs.size for batch in batches)


@given(**sizes)
def test_an_epoch_gives_every_token_once(num_tokens, num_lanes, tmp_path_factory):
    num_tokens -= num_tokens % num_lanes
    split = split_of(tmp_path_factory, num_tokens)
    lanes = TokenLanes(split=split, num_lanes=num_lanes, segment_length=num_tokens // num_lanes)
    first, position = lanes.batch(lanes.first_position())
    assert sorted(first.inputs.ravel()) == sorted(values(split))
    second, _ = lanes.batch(position)
    assert second.inputs[:-1].tolist() == first.inputs[1:].tolist()


def test_a_position_comes_back_from_a_file_and_any_batch_can_be_had_again(tmp_path_factory):
    split = split_of(tmp_path_factory, 100)
    lanes = TokenLanes(split=split, num_lanes=4, segment_length=7)
    position = lanes.first_position()
    for _ in range(5):
        _, position = lanes.batch(position)
    again = TokenPosition.from_plain(json.loads(json.dumps(position.as_plain())))
    assert again == position
    assert lanes.batch(again)[0].inputs.tolist() == lanes.batch(position)[0].inputs.tolist()


def test_batches_have_the_form_that_training_expects(tmp_path_factory):
    lanes = TokenLanes(split=split_of(tmp_path_factory, 100), num_lanes=4, segment_length=7)
    batch, _ = lanes.batch(lanes.first_position())
    for array in (batch.inputs, batch.targets):
        assert array.shape == (4, 7)
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
    part = batch.rows(range(1, 3))
    assert part.inputs.tolist() == batch.inputs[1:3].tolist()
    assert part.is_padding.shape == (2, 7)


@given(
    num_tokens=st.integers(2, 80),
    num_lanes=st.integers(1, 12),
    segment_length=st.integers(1, 20),
    has_end=st.booleans(),
)
def test_every_token_is_predicted_exactly_once_from_the_one_before(
    num_tokens, num_lanes, segment_length, has_end, tmp_path_factory
):
    split = split_of(tmp_path_factory, num_tokens, end_symbol=300 if has_end else None)
    batches = list(evaluation_batches(split, num_lanes=num_lanes, segment_length=segment_length))
    whole = values(split)
    before = {int(token): int(whole[number - 1]) for number, token in enumerate(whole)}
    before[int(whole[0])] = 300
    predicted = []
    for batch in batches:
        assert batch.inputs.shape == (num_lanes, segment_length)
        kept = ~batch.is_padding
        assert np.all(batch.targets[~kept] == IGNORED)
        assert np.all(batch.inputs[~kept] == 0)
        for given_token, target in zip(batch.inputs[kept], batch.targets[kept], strict=True):
            assert before[int(target)] == given_token
            predicted.append(int(target))
    assert sorted(predicted) == sorted(whole.tolist()[0 if has_end else 1 :])


@given(
    num_tokens=st.integers(2, 80),
    num_first=st.integers(1, 90),
    num_lanes=st.integers(1, 12),
    segment_length=st.integers(1, 20),
    has_end=st.booleans(),
)
def test_lanes_lie_in_the_first_tokens_where_no_more_are_asked_for(
    num_tokens, num_first, num_lanes, segment_length, has_end, tmp_path_factory
):
    split = split_of(tmp_path_factory, num_tokens, end_symbol=300 if has_end else None)
    batches = evaluation_batches(
        split, num_lanes=num_lanes, segment_length=segment_length, num_tokens=num_first
    )
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    expected = values(split)[0 if has_end else 1 :][:num_first]
    assert targets[targets != IGNORED].tolist() == expected.tolist()


def test_no_first_tokens_at_all_are_refused(tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    with pytest.raises(InputError, match="num_tokens must be a whole number of at least 1, got"):
        next(evaluation_batches(split, num_lanes=2, segment_length=5, num_tokens=0))


def test_evaluation_lanes_go_on_from_batch_to_batch(tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    batches = list(evaluation_batches(split, num_lanes=3, segment_length=4))
    for before, after in itertools.pairwise(batches):
        kept = ~after.is_padding[:, 0]
        assert after.inputs[kept, 0].tolist() == before.targets[kept, -1].tolist()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"num_lanes": 0},
            "num_lanes must be a whole number of at least 1, got 0; use for example",
        ),
        ({"segment_length": 0}, "segment_length must be a whole number of at least 1, got 0"),
        ({"num_lanes": 51}, "at least one token for each of 51 lanes, got 50; use fewer lanes"),
    ],
)
def test_lanes_that_cannot_be_are_refused(options, line, tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    with pytest.raises(InputError, match=line):
        TokenLanes(**{"split": split, "num_lanes": 2, "segment_length": 5} | options)


def test_a_position_of_other_lanes_is_refused(tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    position = TokenLanes(split=split, num_lanes=2, segment_length=5).first_position()
    with pytest.raises(InputError, match=r"a position must have 3 lanes, .* got 2; resume with"):
        TokenLanes(split=split, num_lanes=3, segment_length=5).batch(position)
