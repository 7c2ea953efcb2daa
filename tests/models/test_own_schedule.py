"""A schedule from a user's own file gets all that the family gets, and equals a loop of its own."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from building import EXACT, OUTPUT_SIZE, build, cores, feed, random_tokens, small, tokens
from oracle import Oracle
from staircase_attention import load_state, save_state
from staircase_attention.models.cost import segment_cost
from staircase_attention.schedules import SCHEDULES, Schedule, make_schedule, schedule_from_dict

FILE = Path(__file__).parents[1] / "examples" / "alternate.py"
REFERENCE = f"{FILE}:AlternateCached"


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    window = draw(small(1, 6))
    options = {"chunk_size": draw(small(1, 3)), "num_window_chunks": window}
    return make_schedule(REFERENCE, {**options, "num_passes": draw(small(0, min(window, 3)))})


@st.composite
def alternating_models(draw):
    schedule = draw(schedules())
    return build(schedule, draw(cores(schedule)), seed=draw(small(0, 999)))


def example_model():
    options = {"chunk_size": 2, "num_window_chunks": 5, "num_passes": 2}
    return build(make_schedule(REFERENCE, options))


def alternating_logits(parameters, model, batch):
    """The definition, step by step: even chunks are out of sight after their last pass."""
    schedule, oracle = model.schedule, Oracle(parameters, model.config)
    num_passes, num_query_steps = schedule.num_passes, max(schedule.num_passes, 1)
    embeddings = oracle.embed(batch)
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
        moving = {t: hidden[t, age[t]] for t in queries}
        for layer in range(oracle.core.num_layers):
            moving = oracle.layer_over(layer, frozen | moving, visible)
        hidden |= {(t, age[t] + 1): moving[t] for t in queries}
    outputs = [oracle.read_out(hidden[t, num_query_steps]) for t in range(len(chunk))]
    return torch.stack(outputs, dim=1)


@settings(max_examples=20)
@given(model=alternating_models(), data=st.data(), order=st.sampled_from(["window", "chunk"]))
def test_logits_and_gradients_equal_a_slow_loop(model, data, order):
    batch = data.draw(tokens(max_batch=2, max_length=17))
    parameters = dict(model.named_parameters())
    logits, _ = model(batch, order=order)
    expected = alternating_logits(parameters, model, batch)
    torch.testing.assert_close(logits, expected, **EXACT)
    gradients = [
        torch.autograd.grad(found.square().sum(), parameters.values(), allow_unused=True)
        for found in (logits, expected)
    ]
    for name, mine, other in zip(parameters, *gradients, strict=True):
        zero = torch.zeros_like(parameters[name])
        pair = (zero if one is None else one for one in (mine, other))
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9, msg=name)


@given(model=alternating_models(), data=st.data())
def test_any_cuts_orders_and_resets_leave_logits_unchanged(model, data):
    lengths = data.draw(st.lists(small(1, 9), min_size=1, max_size=5))
    batch = random_tokens(2, sum(lengths))
    restarts = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    state, outputs, start = None, [], 0
    for piece, restarts_now in zip(batch.split(lengths, dim=1), restarts, strict=True):
        if restarts_now and state is not None:
            state = state.reset([False, True])
            start = sum(one.shape[1] for one in outputs)
        order = data.draw(st.sampled_from(["window", "chunk"]))
        logits, state = model(piece, state, order=order)
        outputs.append(logits)
    found = torch.cat(outputs, dim=1)
    torch.testing.assert_close(found[:1], model(batch[:1])[0], **EXACT)
    torch.testing.assert_close(found[1:, start:], model(batch[1:, start:])[0], **EXACT)


def test_its_state_is_bounded_and_continues_from_a_file(tmp_path):
    model, batch = example_model(), random_tokens(2, 60)
    logits, state = feed(model, list(batch[:, :51].split(1, dim=1)))
    # The open window is chunks 21 to 25; of the odd ones, 21, 23 and the first token of 25.
    assert state.streams[0].cached == (range(42, 44), range(46, 48), range(50, 51))
    save_state(state, tmp_path / "state.safetensors")
    loaded = load_state(tmp_path / "state.safetensors")
    found = torch.cat([logits, model(batch[:, 51:], loaded)[0]], dim=1)
    torch.testing.assert_close(found, model(batch)[0], **EXACT)


@settings(max_examples=8)
@given(schedule=schedules(), data=st.data(), start=small(0, 20), segment=small(1, 20))
def test_its_cost_is_what_it_does(schedule, data, start, segment):
    core = data.draw(cores(schedule))
    cost = segment_cost(
        core=core, schedule=schedule, output_size=OUTPUT_SIZE, start=start, segment=segment
    )
    model, batch = build(schedule, core), torch.zeros(1, start + segment, dtype=torch.int64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        _, state = model(batch[:, :start])
        with FlopCounterMode(display=False) as counter:
            _, state = model(batch[:, start:], state)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert cost.state_numbers * 8 == state.num_bytes


def test_it_is_named_by_its_file_in_plain_data():
    schedule = example_model().schedule
    plain = schedule.to_dict()
    assert plain["reference"] == REFERENCE
    assert "name" not in plain
    assert schedule_from_dict(plain) == schedule
    assert schedule_from_dict({"name": "staircase", **plain}) == schedule
    assert schedule.name not in SCHEDULES


def test_the_file_is_one_that_a_user_could_write():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 30
    assert "staircase_attention.schedules import" in text
