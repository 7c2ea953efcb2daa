"""Tokens leave a Ladder early: each by itself, whatever it is batched with, and filled in later."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, MODERN, build, feed, random_tokens, small
from oracle import Oracle
from staircase_attention import CoreConfig, Ladder, Staircase
from staircase_attention.models import LSTMSequenceModel, with_exits

CORES = [
    CoreConfig(width=8, num_layers=2, num_heads=2),
    CoreConfig(width=8, num_layers=1, num_heads=2, positions="rotary", **MODERN),
]


@st.composite
def rules(draw, cores=CORES):
    schedule = Ladder(num_passes=draw(small(1, 4)), span=draw(small(1, 7)))
    model = build(schedule, draw(st.sampled_from(cores)), seed=draw(small(0, 99)))
    if model.config.num_coda_layers == 0 and draw(st.booleans()):
        return with_exits(model, "confidence", draw(st.floats(0.3, 0.9)))
    return with_exits(model, "change", draw(st.floats(0.3, 1.2)))


def leaving_slowly(model, tokens):
    """The definition, token by token from the oracle's parts: outputs and passes made."""
    exits, schedule = model.backend, model.schedule
    oracle = Oracle(dict(model.named_parameters()), model.config)
    entered, keys, outputs, passes = oracle.embed(tokens), {}, [], []
    for t, state in enumerate(entered):
        done = [False] * len(tokens)
        made = torch.zeros(len(tokens), dtype=torch.int64)
        for n in range(1, schedule.num_passes + 1):
            moving = state
            for layer in range(model.config.num_layers):
                offered = oracle.attended(layer, t, moving)
                left = oracle.attended(layer, t, state)
                going = ~torch.tensor(done)[:, None]
                offered = offered._replace(
                    key=offered.key.where(going, left.key),
                    value=offered.value.where(going, left.value),
                )
                keys[n, layer, t] = offered
                seen = [keys[n, layer, u] for u in range(max(0, t - schedule.span + 1), t + 1)]
                moving = oracle.layer(layer, t, moving, seen)
            for row, is_done in enumerate(done):
                if not is_done:
                    one = moving[row]
                    if exits.rule == "confidence":
                        best = oracle.read_out(one[None]).softmax(-1).max()
                        leaves = best > exits.threshold
                    else:
                        leaves = (one - state[row]).norm() < exits.threshold * one.norm()
                    done[row], made[row] = bool(leaves), n
                else:
                    moving = moving.clone()
                    moving[row] = state[row]
            state = moving
        outputs.append(oracle.read_out(state))
        passes.append(made)
    return torch.stack(outputs, 1), int(torch.stack(passes).sum())


@settings(max_examples=10)
@given(model=rules(CORES[:1]), seed=small(0, 99))
def test_logits_and_passes_are_those_of_a_slow_loop(model, seed):
    tokens = random_tokens(2, 9, seed=seed)
    expected, num_passes = leaving_slowly(model, tokens)
    torch.testing.assert_close(model(tokens)[0], expected, **EXACT)
    assert (model.backend.num_tokens, model.backend.num_passes) == (18, num_passes)


@settings(max_examples=12)
@given(model=rules(), data=st.data(), rows=small(1, 4))
def test_a_row_depends_neither_on_its_batch_nor_on_cuts(model, data, rows):
    tokens = random_tokens(rows, 17, seed=data.draw(small(0, 99)))
    whole, _ = model(tokens)
    together = model.backend.num_passes
    for row in range(rows):
        sizes = data.draw(st.sampled_from([[17], [5, 12], [1] * 17, [9, 1, 7]]))
        alone, _ = feed(model, list(tokens[row : row + 1].split(sizes, dim=1)))
        torch.testing.assert_close(alone, whole[row : row + 1], **EXACT)
    assert model.backend.num_passes == 2 * together


@settings(max_examples=10)
@given(model=rules())
def test_rows_that_restart_forget_what_came_before(model):
    tokens = random_tokens(3, 9)
    state = model(tokens)[1].reset([False, True, False])
    found, _ = model(tokens, state)
    torch.testing.assert_close(found[1], model(tokens)[0][1], **EXACT)


@pytest.mark.parametrize(("rule", "never"), [("confidence", 1.0), ("change", 0.0)])
def test_a_rule_that_nothing_meets_is_the_model_itself(rule, never):
    model, tokens = build(Ladder(num_passes=3, span=5)), random_tokens(2, 12)
    other = with_exits(model, rule, never)
    torch.testing.assert_close(other(tokens)[0], model(tokens)[0], **EXACT)
    assert other.backend.num_passes == 3 * other.backend.num_tokens
    always = with_exits(model, "change", 1e9)
    one_pass = model.with_schedule(Ladder(num_passes=1, span=5))
    torch.testing.assert_close(always(tokens)[0], one_pass(tokens)[0], **EXACT)


def test_another_schedule_needs_exits_of_its_own():
    quick = with_exits(build(Ladder(num_passes=4, span=5)), "change", 0.5)
    fewer = quick.with_schedule(Ladder(num_passes=2, span=5))
    with pytest.raises(ValueError, match="call with_exits after with_schedule"):
        fewer(random_tokens(1, 3))


def test_an_lstm_has_no_exits():
    lstm = LSTMSequenceModel(vocab_size=5, output_size=5, width=4, num_layers=1)
    with pytest.raises(ValueError, match="ABAB, got an LSTM; leave it out"):
        with_exits(lstm, "change", 0.5)


def test_products_are_made_for_the_tokens_that_stay():
    model, sizes = build(Ladder(num_passes=4, span=5), seed=1), []
    quick = with_exits(model, "confidence", 0.5)
    model.core.layers[0].feed_forward.register_forward_pre_hook(
        lambda _, given: sizes.append(len(given[0]))
    )
    quick(random_tokens(4, 25))
    assert sizes[0] == 100
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < sizes[-1] < 100
    assert sum(sizes) == quick.backend.num_passes


def test_confidence_after_a_pass_is_not_that_after_a_coda():
    core = CoreConfig(width=8, num_layers=1, num_heads=2, num_coda_layers=2)
    with pytest.raises(ValueError, match=r"got num_coda_layers=2; use the rule change$"):
        with_exits(build(Ladder(num_passes=2, span=4), core), "confidence", 0.5)


@pytest.mark.parametrize(
    ("schedule", "rule", "threshold", "message"),
    [
        (Staircase(chunk_size=2, num_passes=2), "change", 0.5, "exits are for Ladders"),
        (Ladder(num_passes=2, span=4, order="AABB"), "change", 0.5, "exits are for Ladders"),
        (Ladder(num_passes=2, span=4), "hope", 0.5, "an exit rule"),
        (Ladder(num_passes=2, span=4), "confidence", 2, "of at most 1, got 2; .* confidence=0.9"),
        (Ladder(num_passes=2, span=4), "change", math.nan, "change must be .* got nan"),
    ],
)
def test_wrong_exits_are_refused(schedule, rule, threshold, message):
    with pytest.raises(ValueError, match=message):
        with_exits(build(schedule), rule, threshold)
