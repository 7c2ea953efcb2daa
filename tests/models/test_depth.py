"""One set of weights in several numbers of passes: states, and gradients through the last ones."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, SCHEDULES, build, feed, random_tokens, small
from oracle import oracle_logits
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    Ladder,
    ParallelLoop,
    Staircase,
    State,
)
from staircase_attention.models import at_depth

CORE = CoreConfig(width=8, num_layers=2, num_heads=2, max_distance=40)
# With layers outside of the recurrence, which every pass sees again.
AROUND = replace(CORE, num_prelude_layers=1, num_coda_layers=1, injection="gated")
CORES = st.sampled_from([CORE, AROUND])
DIALS = ("staircase", "cached-staircase", "global-cached-staircase", "ladder", "parallel-loop")


def two_depths(schedule, before, after, core=CORE):
    model = build(schedule.with_passes(before), core)
    return model, model.with_schedule(schedule.with_passes(after))


@pytest.mark.parametrize(("kind", "most"), [(Ladder, 9), (ParallelLoop, 9), (ParallelLoop, 1)])
@settings(max_examples=20)
@given(data=st.data(), length=small(0, 30))
def test_a_ladder_or_a_parallel_loop_goes_to_fewer_passes_exactly(kind, most, data, length):
    before = data.draw(small(1, 4))
    span = data.draw(small(1, most))
    after = data.draw(small(1, before))
    # A coda remembers what tokens were after their last pass, whichever that was.
    core = replace(data.draw(CORES), num_coda_layers=0)
    deep, less = two_depths(kind(num_passes=1, span=span), before, after, core)
    batch = random_tokens(2, length)
    found, expected = at_depth(less, deep(batch)[1]), less(batch)[1]
    assert found.model == expected.model
    assert found.lengths == expected.lengths
    banks, others = (state.streams[0].banks for state in (found, expected))
    torch.testing.assert_close(banks, others, **EXACT)


@pytest.mark.parametrize("name", DIALS)
@settings(max_examples=8)
@given(data=st.data(), first=small(1, 23), second=small(1, 12))
def test_a_stream_changes_its_depth_anywhere(name, data, first, second):
    """It holds what a stream of that depth does, or less, and continues as any state does."""
    schedule = data.draw(SCHEDULES[name])
    most = getattr(schedule, "num_window_chunks", 4)
    before, after = data.draw(small(1, most)), data.draw(small(1, most))
    one, other = two_depths(schedule, before, after, data.draw(CORES))
    batch = random_tokens(2, first + second)
    state = at_depth(other, one(batch[:, :first])[1])
    assert at_depth(other, state) is state
    usual = other(batch[:, :first])[1].streams[0]
    for key, bank in state.streams[0].banks.items():
        assert bank.num_tokens <= usual.banks[key].num_tokens
    whole, _ = other(batch[:, first:], state)
    pieces, rest = [], state
    for token in batch[:, first:].split(1, dim=1):
        logits, rest = other(token, rest, order="chunk")
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **EXACT)
    if before == after:
        torch.testing.assert_close(whole, other(batch)[0][:, first:], **EXACT)


def test_what_deeper_passes_find_is_what_tokens_left_at_their_last():
    shallow, deep = two_depths(Ladder(num_passes=1, span=6), 2, 4)
    state = shallow(random_tokens(2, 9))[1]
    old, new = state.streams[0].banks, at_depth(deep, state).streams[0].banks
    assert {bank for bank, _ in new} == {1, 2, 3, 4}
    for (bank, layer), held in new.items():
        assert all(map(torch.equal, held, old[min(bank, 2), layer]))


@settings(max_examples=20)
@given(before=small(1, 4), after=small(1, 4), length=small(1, 20))
def test_a_staircase_keeps_each_chunk_at_its_pass_or_its_last(before, after, length):
    """Of step s, chunk i is at pass s - i + 1."""
    size = 3
    one, other = two_depths(Staircase(chunk_size=size, num_passes=1), before, after)
    state = one(random_tokens(1, length))[1]
    old, new = state.streams[0].banks, at_depth(other, state).streams[0].banks
    for (step, layer), held in new.items():
        for back in range(1, held.num_tokens + 1):
            chunk = (length - back) // size
            made = min(step - chunk + 1, before)
            source = old[chunk + made - 1, layer]
            for mine, theirs in zip(held, source, strict=True):
                assert torch.equal(mine[:, :, -back], theirs[:, :, -back])


def test_a_window_without_a_cache_restarts_and_another_model_s_state_stays():
    """With as many passes as chunks nothing is cached, and with fewer there is nothing to read."""
    schedule = CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1)
    other_chunks = build(Staircase(chunk_size=3, num_passes=2))(random_tokens(1, 4))[1]
    assert at_depth(build(Staircase(chunk_size=2, num_passes=3)), other_chunks) is other_chunks
    for before, after in ((3, 2), (1, 3)):
        one, other = two_depths(schedule, before, after)
        assert at_depth(other, one(random_tokens(2, 9))[1]).lengths == (0, 0)


def test_rows_that_have_just_restarted_leave_the_others_where_they_are():
    one, other = two_depths(CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=1), 1, 2)
    batch = random_tokens(2, 8)
    restarted = one(batch)[1].reset([False, True]).select([1])
    alone = one(batch[:1, :3])[1]
    state = at_depth(other, State.join([restarted, alone]))
    assert state.lengths == (0, 3)
    expected = [other(batch[:1], one_row)[0] for one_row in (None, at_depth(other, alone))]
    found, _ = other(batch[[0, 0]], state)
    torch.testing.assert_close(found, torch.cat(expected), **EXACT)


def test_what_is_dropped_from_a_cache_beside_cut_passes_leaves_gradients_of_the_rest():
    schedule = CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=3)
    model, batch = build(schedule), random_tokens(1, 12)
    model.gradient_passes = 1
    gradients = []
    for pieces in ([batch], [batch[:, :8], batch[:, 8:]]):
        logits, _ = feed(model, pieces)
        weight = model.core.layers[0].attention.query.weight
        gradients.append(torch.autograd.grad(logits.square().sum(), weight))
    torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("name", DIALS)
@settings(max_examples=6)
@given(data=st.data(), last=small(1, 4), cut=small(0, 8))
def test_gradients_flow_through_the_last_passes_only(name, data, last, cut):
    schedule = data.draw(SCHEDULES[name])
    if isinstance(schedule, Ladder):
        schedule = replace(schedule, order="ABAB")
    model, batch = build(schedule, data.draw(CORES)), random_tokens(1, 8)
    model.gradient_passes = last
    weights = torch.randn(*batch.shape, model.output_size, dtype=torch.float64)
    logits, _ = feed(model, [batch[:, :cut], batch[:, cut:]])
    num_cut = max(0, schedule.num_passes - last)
    parameters = dict(model.named_parameters())
    expected = oracle_logits(parameters, model.config, schedule, batch, num_cut=num_cut)
    torch.testing.assert_close(logits, expected, **EXACT)
    ours, theirs = (
        torch.autograd.grad((found * weights).sum(), parameters.values(), allow_unused=True)
        for found in (logits, expected)
    )
    for parameter, mine, other in zip(parameters.values(), ours, theirs, strict=True):
        mine, other = (torch.zeros_like(parameter) if one is None else one for one in (mine, other))
        torch.testing.assert_close(mine, other, **EXACT)


def test_a_window_that_has_yet_to_fill_up_joins_no_full_one():
    """Of the older chunks that its rows would see, it has nothing."""
    narrow, wide = two_depths(Staircase(chunk_size=2, num_passes=1), 1, 3)
    batch = random_tokens(2, 20)
    states = [at_depth(wide, narrow(batch[:1, :9])[1]), wide(batch[1:, :5])[1]]
    pieces = [batch[:1, 9:15], batch[1:, 5:11]]
    alone = [wide(piece, state)[0] for piece, state in zip(pieces, states, strict=True)]
    joined = State.join(states, shifts=True)
    together, _ = wide(torch.cat(pieces), joined)
    torch.testing.assert_close(together, torch.cat(alone), **EXACT)
