"""State is a value: moved, detached, selected, reset, saved and loaded, and bounded in size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from building import EXACT, build, example_models, name_of, random_tokens
from staircase_attention import (
    CachedStaircase,
    GlobalCachedStaircase,
    Staircase,
    State,
    load_state,
    save_state,
)

each_model = pytest.mark.parametrize("model", example_models(), ids=name_of)


@each_model
@pytest.mark.parametrize("length", [0, 1, 7, 12])
def test_a_saved_stream_continues_bit_for_bit(model, length, tmp_path):
    batch = random_tokens(2, length + 5)
    _, state = model(batch[:, :length])
    state = state.reset([True, False]) if length == 7 else state
    save_state(state, tmp_path / "state.safetensors")
    loaded = load_state(tmp_path / "state.safetensors")
    expected, _ = model(batch[:, length:], state)
    found, _ = model(batch[:, length:], loaded)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert loaded.lengths == state.lengths
    assert loaded.num_bytes == state.num_bytes
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_state_file_is_read_without_pickle(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="with version unknown"):
        load_state(path)
    path.write_bytes(b"not a tensor file")
    with pytest.raises(ValueError, match="a safetensors file must be as it was written"):
        load_state(path)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "absent")


@each_model
def test_state_holds_no_more_memory_than_it_says(model):
    _, state = model(random_tokens(2, 31))
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for stream in state.streams
        for tensor in stream.tensors
    }
    assert sum(held.values()) == state.num_bytes


def test_a_printed_state_says_where_it_stands_without_its_numbers():
    schedule = CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=2)
    _, state = build(schedule)(random_tokens(2, 9))
    assert "tensor" not in repr(state)
    assert "rows=(0, 1), position=9, starts=(0, 0)" in repr(state)


@each_model
def test_state_size_is_bounded_except_for_the_global_model(model):
    sizes, state = [], None
    with torch.no_grad():
        for piece in random_tokens(1, 40).split(1, dim=1):
            _, state = model(piece, state)
            sizes.append(state.num_bytes)
    grows = max(sizes[20:]) > max(sizes[:20])
    assert grows == (not model.schedule.is_state_bounded)
    assert model.schedule.is_state_bounded == (model.schedule.name != "global-cached-staircase")


@each_model
def test_a_detached_state_carries_no_gradient_and_the_same_numbers(model):
    batch = random_tokens(2, 12)
    _, state = model(batch[:, :7])
    attached, _ = model(batch[:, 7:], state)
    detached, _ = model(batch[:, 7:], state.detach())
    assert any(tensor.requires_grad for stream in state.streams for tensor in stream.tensors)
    assert not any(
        tensor.requires_grad for stream in state.detach().streams for tensor in stream.tensors
    )
    torch.testing.assert_close(attached, detached, rtol=0.0, atol=0.0)


@each_model
def test_a_state_in_other_numbers_serves_a_model_in_those_numbers(model):
    batch = random_tokens(2, 12)
    expected, _ = model(batch)
    _, state = model(batch[:, :7])
    single = model.float()
    try:
        found, _ = single(batch[:, 7:], state.to(dtype=torch.float32))
    finally:
        model.double()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected[:, 7:], rtol=1e-3, atol=1e-3)


@each_model
@pytest.mark.parametrize("length", [6, 7])
def test_selected_rows_continue_as_they_would_have(model, length):
    batch = random_tokens(3, length + 5)
    _, state = model(batch[:, :length])
    state = state.reset([False, True, False])
    expected, _ = model(batch[:, length:], state)
    rows = [2, 1, 1, 0]
    for given in (rows, torch.tensor(rows), np.array(rows)):
        found, chosen = model(batch[rows, length:], state.select(given))
    torch.testing.assert_close(found, expected[rows], **EXACT)
    assert chosen.lengths == (length + 5, 5, 5, length + 5)


def test_reset_heals_a_row_whose_state_is_not_finite():
    model = build(Staircase(chunk_size=3, num_passes=2))
    batch = random_tokens(2, 12)
    _, state = model(batch[:, :6])
    spoilt = state.map(lambda tensor: tensor.index_fill(0, torch.tensor([1]), torch.nan))
    found, _ = model(batch[:, 6:], spoilt.reset([False, True]))
    expected, _ = model(batch[1:, 6:])
    torch.testing.assert_close(found[1:], expected, **EXACT)


def test_rows_reset_where_a_chunk_begins_share_one_stream_and_others_do_not():
    model = build(Staircase(chunk_size=3, num_passes=2))
    _, aligned = model(random_tokens(2, 6))
    _, inside = model(random_tokens(2, 7))
    assert len(aligned.reset([True, False]).streams) == 1
    assert len(inside.reset([True, False]).streams) == 2
    assert len(inside.reset([True, True]).streams) == 1
    assert inside.reset([True, True]).num_bytes == 0


@pytest.mark.parametrize("batch_size", [-1, 0])
def test_a_state_without_rows_is_refused(batch_size):
    model = build(Staircase(chunk_size=3, num_passes=2))
    with pytest.raises(ValueError, match=f"an integer of at least 1, got {batch_size};"):
        model.initial_state(batch_size)


def test_rows_that_begin_where_others_have_a_chunk_share_their_stream():
    """However often rows restart, there are no more streams than places in a chunk."""
    model = build(Staircase(chunk_size=3, num_passes=2))
    state, generator = model.initial_state(5), torch.Generator().manual_seed(0)
    for _ in range(40):
        _, state = model(random_tokens(5, 1), state)
        state = state.reset(torch.rand(5, generator=generator) < 0.3)
        phases = [stream.position % 3 for stream in state.streams]
        assert len(set(phases)) == len(phases)
        assert sorted(row for stream in state.streams for row in stream.rows) == list(range(5))
        assert all(list(stream.rows) == sorted(stream.rows) for stream in state.streams)


def test_cached_keys_and_values_are_computed_once(monkeypatch):
    model = build(CachedStaircase(chunk_size=2, num_window_chunks=5, num_passes=1))
    frozen = []
    freeze = model.core.freeze
    monkeypatch.setattr(
        model.core, "freeze", lambda levels: frozen.append(levels[0].shape[1]) or freeze(levels)
    )
    model(random_tokens(1, 24))
    assert sum(frozen) == 24


@pytest.mark.parametrize(
    ("mask", "message"),
    [([True], "each of the 2 batch rows"), ([1, 0], "torch.int64"), ([[True, False]], "(1, 2)")],
)
def test_a_mask_of_the_wrong_kind_is_refused(mask, message):
    state = build(Staircase(chunk_size=3, num_passes=2)).initial_state(2)
    with pytest.raises(ValueError, match="one True or False") as caught:
        state.reset(mask)
    assert message in str(caught.value)


@pytest.mark.parametrize("rows", [[2], [-1], [], [True, False], [0.0], ["1"]])
def test_rows_that_are_not_numbers_of_rows_are_refused(rows):
    state = build(Staircase(chunk_size=3, num_passes=2)).initial_state(2)
    with pytest.raises(ValueError, match="numbers from 0 to 1"):
        state.select(rows)


def test_joined_states_continue_as_each_would_have():
    model = build(Staircase(chunk_size=3, num_passes=2))
    batch = random_tokens(5, 12)
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]
    states = [model(batch[rows, :7])[1] for rows in parts]
    expected, _ = model(batch[:, 7:], model(batch[:, :7])[1])
    joined = State.join(states)
    assert len(joined.streams) == 1
    torch.testing.assert_close(model(batch[:, 7:], joined)[0], expected, **EXACT)
    shifted = model(batch[3:, 6:7], states[2].reset([True, True]))[1]
    apart = State.join([states[0], shifted])
    assert len(apart.streams) == 2
    assert apart.lengths == (7, 7, 1, 1)


def test_streams_at_one_position_are_joined_row_by_row():
    model = build(CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1))
    batch = random_tokens(4, 18)
    _, first = model(batch[:2, :6])
    _, second = model(batch[2:, :4])
    # Its rows begin at 4 and at 6: there is less in its cache.
    _, second = model(batch[2:, 4:6], second.reset([True, False]))
    apart = [first, second.reset([False, True])]
    joined = State.join(apart).select([0, 2, 1, 3])
    assert [stream.rows for stream in joined.streams] == [(0, 1, 2, 3)]
    found, joined = model(batch[[0, 2, 1, 3], 6:], joined)
    expected = [
        model(rows, state)[0] for rows, state in zip(batch[:, 6:].split(2), apart, strict=True)
    ]
    torch.testing.assert_close(found[[0, 2, 1, 3]], torch.cat(expected), **EXACT)
    assert joined.lengths == (18, 14, 18, 12)


def test_states_of_different_models_cannot_be_joined():
    states = [build(Staircase(chunk_size=size, num_passes=2)).initial_state(1) for size in (2, 3)]
    for wrong in (states, []):
        with pytest.raises(ValueError, match="must be of one model"):
            State.join(wrong)


def test_a_state_is_saved_only_where_a_folder_is(tmp_path):
    state = build(Staircase(chunk_size=3, num_passes=2)).initial_state(1)
    with pytest.raises(ValueError, match="a state must be a file in a folder that can be written"):
        save_state(state, tmp_path / "absent" / "state.safetensors")
    with pytest.raises(FileNotFoundError, match="which is no file"):
        load_state(tmp_path)


def test_what_came_before_every_row_of_a_global_model_is_forgotten():
    model = build(GlobalCachedStaircase(chunk_size=2, num_passes=1))
    batch = random_tokens(2, 40)
    state, sizes, outputs = model.initial_state(2), [], []
    for number, piece in enumerate(batch.split(4, dim=1)):
        logits, state = model(piece, state.reset([number % 2 == 0, number % 2 == 1]))
        sizes.append(state.num_bytes)
        outputs.append(logits)
    assert max(sizes[3:]) == max(sizes[:3])
    alone, _ = model(batch[1:, 36:])
    torch.testing.assert_close(outputs[-1][1:], alone, **EXACT)


def test_a_state_of_version_1_continues_as_it_would_have():
    """The file was written when the cache held a single range of positions."""
    model = build(CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2))
    batch = random_tokens(2, 12)
    loaded = load_state(Path(__file__).parent / "saved" / "state-version-1.safetensors")
    torch.testing.assert_close(model(batch[:, 7:], loaded)[0], model(batch)[0][:, 7:], **EXACT)
    assert loaded.streams[0].cached == model(batch[:, :7])[1].streams[0].cached
