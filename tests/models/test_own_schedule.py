"""A schedule from a user's own file equals a loop of its own.

Cuts, orders, resets, gradients and cost are shown with the family's, in the files beside this one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import ALTERNATE, EXACT, build, feed, models, random_tokens, small, tokens
from oracle import oracle_logits
from staircase_attention import ParallelLoop, load_state, save_state
from staircase_attention.schedules import (
    SCHEDULES,
    Order,
    Step,
    joined,
    make_schedule,
    schedule_from_dict,
)


def example_model():
    options = {"chunk_size": 2, "num_window_chunks": 5, "num_passes": 2}
    return build(make_schedule(ALTERNATE, options))


def alternating_states(oracle, embeddings, schedule):
    """The definition, step by step: even chunks are out of sight after their last pass."""
    num_passes, num_query_steps = schedule.num_passes, max(schedule.num_passes, 1)
    chunk = [token // schedule.chunk_size for token in range(len(embeddings))]
    hidden = {(token, 0): embedding for token, embedding in enumerate(embeddings)}
    for step in range(chunk[-1] + num_query_steps):
        age = {t: step - chunk[t] for t in range(len(chunk))}
        queries = [t for t in age if 0 <= age[t] < num_query_steps]
        cached = [
            t
            for t in age
            if chunk[t] % 2 and num_query_steps <= age[t] < schedule.num_window_chunks
        ]
        visible = {t: [u for u in sorted([*cached, *queries]) if u <= t] for t in queries}
        frozen = {t: hidden[t, num_passes] for t in cached}
        moving = {
            t: oracle.inject(hidden[t, age[t]], embeddings[t]) if age[t] else embeddings[t]
            for t in queries
        }
        for layer in range(oracle.core.num_layers):
            moving = oracle.layer_over(layer, frozen | moving, visible)
        hidden |= {(t, age[t] + 1): moving[t] for t in queries}
    return [hidden[t, num_query_steps] for t in range(len(chunk))]


@settings(max_examples=8)
@given(model=models("alternate-cached"), data=st.data(), order=st.sampled_from(["window", "chunk"]))
def test_logits_and_gradients_equal_a_slow_loop(model, data, order):
    batch = data.draw(tokens(max_batch=2, max_length=17))
    parameters = dict(model.named_parameters())
    logits, _ = model(batch, order=order)
    expected = oracle_logits(
        parameters, model.config, model.schedule, batch, recurrence=alternating_states
    )
    torch.testing.assert_close(logits, expected, **EXACT)
    gradients = [
        torch.autograd.grad(found.square().sum(), parameters.values(), allow_unused=True)
        for found in (logits, expected)
    ]
    for name, mine, other in zip(parameters, *gradients, strict=True):
        zero = torch.zeros_like(parameters[name])
        pair = (zero if one is None else one for one in (mine, other))
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9, msg=name)


def test_its_state_is_bounded_and_continues_from_a_file(tmp_path):
    model, batch = example_model(), random_tokens(2, 60)
    logits, state = feed(model, list(batch[:, :51].split(1, dim=1)))
    # The open window is chunks 21 to 25; of the odd ones, 21, 23 and the first token of 25.
    assert state.streams[0].cached == (range(42, 44), range(46, 48), range(50, 51))
    save_state(state, tmp_path / "state.safetensors")
    loaded = load_state(tmp_path / "state.safetensors")
    found = torch.cat([logits, model(batch[:, 51:], loaded)[0]], dim=1)
    torch.testing.assert_close(found, model(batch)[0], **EXACT)


def test_it_is_named_by_its_file_in_plain_data():
    schedule = example_model().schedule
    plain = schedule.to_dict()
    assert plain["reference"] == ALTERNATE
    assert "name" not in plain
    assert schedule_from_dict(plain) == schedule
    assert schedule_from_dict({"name": "staircase", **plain}) == schedule
    assert schedule.name not in SCHEDULES


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedLoop(ParallelLoop):
    """A schedule with an option that a file can only give as a list."""

    places: tuple[tuple[int, ...], ...] = ((1, 2), ())


def test_options_that_are_tuples_come_back_from_a_file(tmp_path):
    model = build(ListedLoop(num_passes=2, span=3))
    plain = json.loads(json.dumps(model.schedule.to_dict()))
    assert plain == model.schedule.to_dict()
    assert schedule_from_dict(plain) == model.schedule
    _, state = model(random_tokens(1, 5))
    save_state(state, tmp_path / "state")
    model(random_tokens(1, 5), load_state(tmp_path / "state"))


def test_the_file_is_one_that_a_user_could_write():
    text = Path(ALTERNATE.rpartition(":")[0]).read_text()
    assert len(text.splitlines()) <= 30
    assert "staircase_attention.schedules import" in text


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedLoop(ParallelLoop):
    """A parallel loop in which earlier tokens are seen as they left their last pass."""

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        del order
        for step in ParallelLoop.steps(self, tokens, num_layers=num_layers, order="chunk"):
            (cell,), now = step.cells, step.tokens.start
            first = max(0, now - self.span + 1)
            if cell.pass_number == self.num_passes:
                cell = replace(cell, cached="output")
            seen = {"frozen": joined([range(first, now)]), "kept": (range(first, now + 1),)}
            yield replace(step, cells=(cell,), retained=0, **seen)


def looped_states(oracle, embeddings, schedule):
    """The definition, token by token."""
    zero = torch.zeros_like(embeddings[0])
    before, outputs = [zero] * schedule.num_passes, {}
    for t, embedding in enumerate(embeddings):
        after, seen = [], range(max(0, t - schedule.span + 1), t + 1)
        for entered in [zero, *before[:-1]]:
            state = entered + embedding
            for layer in range(oracle.core.num_layers):
                state = oracle.layer_over(layer, outputs | {t: state}, {t: seen})[t]
            after.append(state)
        before = after
        outputs[t] = after[-1]
    return list(outputs.values())


@settings(max_examples=8)
@given(num_passes=small(1, 3), span=small(1, 5))
def test_passes_that_lag_and_see_cached_tokens_equal_a_slow_loop(num_passes, span):
    model, batch = build(CachedLoop(num_passes=num_passes, span=span)), random_tokens(2, 9)
    parameters = dict(model.named_parameters())
    expected = oracle_logits(
        parameters, model.config, model.schedule, batch, recurrence=looped_states
    )
    torch.testing.assert_close(model(batch)[0], expected, **EXACT)
    torch.testing.assert_close(feed(model, [*batch.split(4, dim=1)])[0], expected, **EXACT)
