"""A stream is the same however it is cut, walked or batched, and never sees its future."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import (
    ALL_SCHEDULES,
    EXACT,
    VOCAB_SIZE,
    build,
    feed,
    models,
    random_tokens,
    small,
    tokens,
)
from staircase_attention import ParallelLoop, Staircase, State
from staircase_attention.schedules import schedule

each_kind = pytest.mark.parametrize("name", ALL_SCHEDULES)


@pytest.fixture(autouse=True, scope="module")
def _short_runs():
    """Runs of tokens are cut in short streams, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "LONGEST_RUN", 4)
        yield


@each_kind
@settings(max_examples=6)
@given(data=st.data())
def test_cuts_and_orders_leave_logits_unchanged(name, data):
    """Whole, in a few pieces or token by token, each piece by windows or by chunks."""
    model, batch = data.draw(models(name)), data.draw(tokens(max_length=23))
    length = batch.shape[1]
    every_token = st.just(list(range(1, length)))
    cuts = data.draw(st.lists(small(0, length), max_size=5).map(sorted) | every_token)
    order = data.draw(st.sampled_from(["window", "chunk"]))
    whole, _ = model(batch, order=order)
    state, outputs = None, []
    for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
        order = data.draw(st.sampled_from(["window", "chunk"]))
        logits, state = model(batch[:, start:stop], state, order=order)
        outputs.append(logits)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, **EXACT)
    assert state.lengths == (length,) * batch.shape[0]


@each_kind
@settings(max_examples=6)
@given(data=st.data())
def test_changing_a_token_changes_no_logit_before_it_and_some_from_it_on(name, data):
    model, batch = data.draw(models(name)), data.draw(tokens())
    place = data.draw(small(0, batch.shape[1] - 1))
    changed = batch.clone()
    changed[:, place] = (changed[:, place] + data.draw(small(1, VOCAB_SIZE - 1))) % VOCAB_SIZE
    before, after = model(batch)[0], model(changed)[0]
    torch.testing.assert_close(before[:, :place], after[:, :place], rtol=0.0, atol=0.0)
    assert (before[:, place:] - after[:, place:]).abs().max() > 1e-6


@each_kind
@settings(max_examples=6)
@given(data=st.data())
def test_rows_of_a_batch_are_streams_of_their_own_that_restart_at_any_time(name, data):
    """Each row equals its pieces alone: inside a chunk, several times, at different moments."""
    model = data.draw(models(name))
    rows, lengths = 3, data.draw(st.lists(small(1, 7), min_size=2, max_size=4))
    resets = [[False] * rows] + [
        data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)) for _ in lengths[1:]
    ]
    batch = random_tokens(rows, sum(lengths), seed=data.draw(small(0, 99)))

    state, outputs = model.initial_state(rows), []
    for piece, mask in zip(batch.split(lengths, dim=1), resets, strict=True):
        logits, state = model(piece, state.reset(torch.tensor(mask)))
        outputs.append(logits)
    together = torch.cat(outputs, dim=1)

    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for row in range(rows):
        begins = [start for start, mask in zip(starts, resets, strict=False) if mask[row]]
        bounds = sorted({0, *begins, starts[-1]})
        for start, stop in pairwise(bounds):
            alone, _ = model(batch[row : row + 1, start:stop])
            torch.testing.assert_close(together[row : row + 1, start:stop], alone, **EXACT)


@each_kind
@settings(max_examples=5)
@given(data=st.data())
def test_gradients_flow_through_a_state_as_if_the_stream_were_whole(name, data):
    model, batch = data.draw(models(name)), data.draw(tokens(max_batch=2, max_length=11))
    cut = data.draw(small(0, batch.shape[1]))
    parameters = list(model.parameters())
    gradients = []
    for pieces in ([batch], [batch[:, :cut], batch[:, cut:]]):
        logits, _ = feed(model, pieces)
        found = torch.autograd.grad(logits.square().sum(), parameters, allow_unused=True)
        gradients.append([torch.zeros(1) if one is None else one for one in found])
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, split, rtol=1e-9, atol=1e-9)


# PyTorch's compiler warns of what it does itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_gives_the_same_numbers_piece_by_piece():
    model = build(Staircase(chunk_size=3, num_passes=2))
    batch = random_tokens(2, 17)
    whole, _ = model(batch)
    compiled = torch.compile(model, backend="eager")
    state, outputs = None, []
    for piece in batch.split([5, 1, 1, 10], dim=1):
        logits, state = compiled(piece, state)
        outputs.append(logits)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, **EXACT)


def test_all_passes_of_a_token_of_a_parallel_loop_are_one_batch():
    model, sizes = build(ParallelLoop(num_passes=4, span=5)), []
    state = model(random_tokens(3, 9))[1].reset([False, True, False])
    model.core.register_forward_pre_hook(lambda _, given: sizes.append(tuple(given[0].shape[:2])))
    model(random_tokens(3, 1), state)
    assert sizes == [(4 * 3, 1)]


@each_kind
@settings(max_examples=2)
@given(data=st.data())
def test_rows_that_come_and_go_share_streams_and_continue_as_each_would_alone(name, data):
    """A row joins with any history behind it, leaves, and comes back."""
    model = data.draw(models(name))
    batch = random_tokens(3, 40, seed=data.draw(small(0, 99)))
    alone, _ = model(batch)
    read, apart = [0] * 3, dict.fromkeys(range(3))
    together, state = [], None
    for _ in range(4):
        newcomers = data.draw(st.sets(small(0, 2)))
        for row in sorted(newcomers - {*together}):
            length = data.draw(small(1, 7))
            piece = batch[row : row + 1, read[row] : read[row] + length]
            _, apart[row] = model(piece, apart[row])
            read[row] += piece.shape[1]
            state = State.join([apart[row]] if state is None else [state, apart[row]], shifts=True)
            together.append(row)
        if together:
            phases = {length % model.schedule.period for length in state.lengths}
            assert len(state.streams) == len(phases)
            pieces = torch.stack([batch[row, read[row] : read[row] + 2] for row in together])
            logits, state = model(pieces, state)
            for found, row in zip(logits, together, strict=True):
                expected = alone[row, read[row] : read[row] + 2]
                torch.testing.assert_close(found, expected, **EXACT)
                read[row] += 2
            stays = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
            for place, row in enumerate(together):
                apart[row] = state.select([place])
            kept = [place for place in range(len(together)) if stays[place]]
            state = state.select(kept) if kept else None
            together = [together[place] for place in kept]
