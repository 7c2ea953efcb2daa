"""What `describe` says of a model is what the model does."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from building import ALL_SCHEDULES, OUTPUT_SIZE, VOCAB_SIZE, WithoutSelf, build, cores, small
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.models import measure_cost

REDDIT = {"width": 1024, "num_heads": 8}
"""With a vocabulary of 8,008: the paper's Reddit models."""


@pytest.mark.parametrize(
    ("schedule", "num_layers", "millions"),
    [
        (TransformerXL(span=256), 8, 117),
        (TransformerXL(span=256), 16, 218),
        (Staircase(chunk_size=32, num_passes=8), 8, 117),
        (CachedStaircase(chunk_size=128, num_window_chunks=3, num_passes=1), 8, 117),
        (Ladder(num_passes=8, span=256), 8, 117),
        (UniversalTransformer(num_passes=8, span=256), 1, 29),
        (FeedbackTransformer(span=512), 8, 102),
    ],
)
def test_parameter_counts_are_those_of_the_papers_reddit_table(schedule, num_layers, millions):
    core = CoreConfig(num_layers=num_layers, **REDDIT)
    cost = measure_cost(vocab_size=8008, core=core, schedule=schedule, segment=64)
    # The table is left out: its 0.03M or 0.07M would turn the paper's 102 into 103.
    table = schedule.default_max_distance * core.head_size
    assert round((cost.num_parameters - table) / 1e6) == millions


def draw_cost(data, schedule, **segment):
    core = data.draw(cores(schedule))
    sizes = {"vocab_size": VOCAB_SIZE, "output_size": OUTPUT_SIZE}
    return core, measure_cost(core=core, schedule=schedule, **sizes, **segment)


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@settings(max_examples=4)
@given(data=st.data(), start=small(0, 12), segment=small(1, 12))
def test_costs_agree_with_the_running_model(name, data, start, segment):
    schedule = data.draw(ALL_SCHEDULES[name])
    core, cost = draw_cost(data, schedule, start=start, segment=segment)
    model = build(schedule, core)
    tokens = torch.zeros(1, start + segment, dtype=torch.int64)
    # PyTorch's counter knows the plain attention, not the fused one of the CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        _, state = model(tokens[:, :start])
        with FlopCounterMode(display=False) as counter:
            _, state = model(tokens[:, start:], state)
        sizes = [state.num_bytes]
        for _ in range(schedule.chunk_length):
            _, state = model(tokens[:, :1], state)
            sizes.append(state.num_bytes)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert [8 * cost.state_numbers, 8 * cost.most_state_numbers] == [sizes[0], max(sizes)]
    assert cost.num_parameters == model.num_parameters


@pytest.mark.parametrize("length", [8, 10, 13])
def test_tokens_that_do_not_see_themselves_are_in_no_bank(length):
    model = build(WithoutSelf(chunk_size=4, num_window_chunks=3, num_passes=1))
    _, state = model(torch.zeros(1, length, dtype=torch.int64))
    sizes = {"vocab_size": VOCAB_SIZE, "segment": length, "start": 0}
    cost = measure_cost(core=model.config, schedule=model.schedule, **sizes)
    assert 8 * cost.state_numbers == state.num_bytes


@pytest.mark.parametrize("name", [name for name in ALL_SCHEDULES if "global" not in name])
@settings(max_examples=6)
@given(data=st.data(), chunks=small(1, 4))
def test_after_the_warm_up_every_segment_costs_the_same(name, data, chunks):
    schedule = data.draw(ALL_SCHEDULES[name])
    segment = chunks * schedule.period
    core, cost = draw_cost(data, schedule, segment=segment)
    again = {"start": cost.start + 3 * segment, "segment": segment}
    later = measure_cost(
        core=core, schedule=schedule, vocab_size=VOCAB_SIZE, output_size=OUTPUT_SIZE, **again
    )
    assert later == replace(cost, **again)


def test_sequential_steps_of_a_segment_are_chunks_and_the_rest_of_the_last_chunks_passes():
    core = CoreConfig(width=8, num_layers=2, num_heads=2)
    steps = {
        schedule.name: measure_cost(
            vocab_size=9, core=core, schedule=schedule, segment=64
        ).num_steps
        for schedule in (
            Staircase(chunk_size=16, num_passes=4),
            CachedStaircase(chunk_size=8, num_window_chunks=4, num_passes=1),
            Ladder(num_passes=3, span=16),
            FeedbackTransformer(span=16),
        )
    }
    assert steps == {
        "staircase": 64 // 16 + 3,
        "cached-staircase": 64 // 8,
        "ladder": 3,
        "feedback-transformer": 64,
    }


def test_the_cost_of_chunks_of_any_size_is_known_at_once():
    core = CoreConfig(width=8, num_layers=3, num_heads=1, max_distance=5)
    schedule = Staircase(chunk_size=10**12, num_passes=2)
    cost = measure_cost(vocab_size=7, core=core, schedule=schedule, segment=4)
    held = 2 * core.width * core.num_layers
    # The older chunk in its second pass; the newer one, but for its last token, in both.
    assert cost.most_state_numbers == held * (10**12 + 2 * (10**12 - 1))
