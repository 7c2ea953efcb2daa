"""Lanes are contiguous streams over all of a split; evaluation predicts every token once."""

import itertools
import json
from dataclasses import asdict

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
    TokenSplit,
    evaluation_batches,
)
from staircase_attention.data.mixture import Piece
from staircase_attention.data.writer import CorpusWriter


def split_of(tmp_path_factory, num_tokens, shard_tokens=17, end_symbol=300):
    """A split of distinct tokens: 0, 1, 2, ..., and 256 as the last."""
    folder = tmp_path_factory.mktemp("split")
    writer = CorpusWriter(folder, ByteTokeniser(), num_sources=1, shard_tokens=shard_tokens)
    tokens = np.arange(num_tokens - 1, dtype=np.uint32)
    writer.add([Piece(b"", "train", 0, True)], [tokens])
    record = writer.finish()["train"]
    return TokenSplit(folder, record, dtype="uint16", end_symbol=end_symbol)


def values(split):
    return split.tokens(0, split.num_tokens).astype(np.int64)


sizes = {"num_lanes": st.integers(1, 12), "segment_length": st.integers(1, 20)}


@given(**sizes, num_tokens=st.integers(12, 120), num_batches=st.integers(1, 12))
def test_lanes_continue_from_batch_to_batch_around_the_ring(
    num_tokens, num_lanes, segment_length, num_batches, tmp_path_factory
):
    split = split_of(tmp_path_factory, num_tokens)
    lanes = TokenLanes(split=split, num_lanes=num_lanes, segment_length=segment_length)
    position, batches = lanes.first_position(), []
    for _ in range(num_batches):
        batch, position = lanes.batch(position)
        batches.append(batch)
        # Every position is restored from a file.
        position = TokenPosition(**json.loads(json.dumps(asdict(position))))
    assert asdict(position) == {
        "update": num_batches,
        "offset": num_batches * segment_length,
        "num_lanes": num_lanes,
    }
    inputs = np.concatenate([batch.inputs for batch in batches], axis=1)
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    ring = values(split)
    for lane in range(num_lanes):
        places = lane * num_tokens // num_lanes + np.arange(num_batches * segment_length)
        assert inputs[lane].tolist() == ring[places % num_tokens].tolist()
        assert targets[lane].tolist() == ring[(places + 1) % num_tokens].tolist()
    for batch in batches:
        assert batch.num_answers == batch.inputs.size
        for array in (batch.inputs, batch.targets):
            assert array.dtype == np.int64
            assert array.flags.c_contiguous


@given(
    **sizes,
    num_tokens=st.integers(2, 80),
    num_first=st.none() | st.integers(1, 90),
    has_end=st.booleans(),
)
def test_every_token_is_predicted_exactly_once_from_the_one_before(
    num_tokens, num_first, num_lanes, segment_length, has_end, tmp_path_factory
):
    split = split_of(tmp_path_factory, num_tokens, end_symbol=300 if has_end else None)
    batches = list(
        evaluation_batches(
            split, num_lanes=num_lanes, segment_length=segment_length, num_tokens=num_first
        )
    )
    whole = values(split).tolist()
    before = dict(zip(whole, [300, *whole], strict=False))
    num_targets = len(whole[0 if has_end else 1 :][:num_first])
    num_lanes = min(num_lanes, num_targets)
    for batch in batches:
        assert batch.inputs.shape == (num_lanes, min(segment_length, -(-num_targets // num_lanes)))
        kept = batch.targets != IGNORED
        assert np.all(batch.inputs[~kept] == 0)
        assert [before[target] for target in batch.targets[kept]] == batch.inputs[kept].tolist()
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    assert targets[targets != IGNORED].tolist() == whole[0 if has_end else 1 :][:num_first]
    for one, after in itertools.pairwise(batches):
        kept = after.targets[:, 0] != IGNORED
        assert after.inputs[kept, 0].tolist() == one.targets[kept, -1].tolist()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"num_lanes": 0}, "num_lanes must be an integer of at least 1, got 0; use for example"),
        ({"segment_length": 0}, "segment_length must be an integer of at least 1, got 0"),
        ({"num_lanes": 51}, "at least one token for each of 51 lanes, got 50; use fewer lanes"),
    ],
)
def test_impossible_lanes_are_refused(options, line, tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    with pytest.raises(InputError, match=line):
        TokenLanes(**{"split": split, "num_lanes": 2, "segment_length": 5} | options)


def test_a_position_of_other_lanes_and_no_tokens_are_refused(tmp_path_factory):
    split = split_of(tmp_path_factory, 50)
    position = TokenLanes(split=split, num_lanes=2, segment_length=5).first_position()
    with pytest.raises(InputError, match=r"a position must have 3 lanes, .* got 2; resume with"):
        TokenLanes(split=split, num_lanes=3, segment_length=5).batch(position)
    with pytest.raises(InputError, match="num_tokens must be an integer of at least 1, got"):
        next(evaluation_batches(split, num_lanes=2, segment_length=5, num_tokens=0))
