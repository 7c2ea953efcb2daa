"""What `describe` says of a model is what the model does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from building import ALL_SCHEDULES, OUTPUT_SIZE, build, cores, small
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.models.cost import (
    measure_cost,
    segment_cost,
    warm_up_length,
)

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


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@settings(max_examples=6)
@given(data=st.data(), start=small(0, 20), segment=small(1, 20))
def test_flops_and_state_agree_with_the_running_model(name, data, start, segment):
    schedule = data.draw(ALL_SCHEDULES[name])
    core = data.draw(cores(schedule))
    cost = segment_cost(
        core=core, schedule=schedule, output_size=OUTPUT_SIZE, start=start, segment=segment
    )
    model = build(schedule, core)
    tokens = torch.zeros(1, start + segment, dtype=torch.int64)
    # PyTorch's counter knows the plain attention, not the fused one of the CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        _, state = model(tokens[:, :start])
        with FlopCounterMode(display=False) as counter:
            _, state = model(tokens[:, start:], state)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert cost.state_numbers * 8 == state.num_bytes


@pytest.mark.parametrize("span", [20, 80])
def test_flops_of_long_segments_count_only_the_blocks_in_sight(span):
    schedule, core = TransformerXL(span=span), CoreConfig(width=8, num_layers=2, num_heads=2)
    cost = segment_cost(core=core, schedule=schedule, output_size=OUTPUT_SIZE, start=0, segment=300)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        build(schedule, core)(torch.zeros(1, 300, dtype=torch.int64))
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("name", [name for name in ALL_SCHEDULES if "global" not in name])
@given(data=st.data(), chunks=small(1, 4))
def test_after_the_warm_up_every_segment_costs_the_same(name, data, chunks):
    schedule = data.draw(ALL_SCHEDULES[name])
    core = data.draw(cores(schedule))
    segment = chunks * schedule.period
    start = warm_up_length(schedule, segment)
    costs = [
        segment_cost(core=core, schedule=schedule, output_size=9, start=begin, segment=segment)
        for begin in (start, start + 3 * segment)
    ]
    assert costs[0] == costs[1]


def test_sequential_steps_of_a_segment_are_chunks_and_the_rest_of_the_last_chunks_passes():
    core = CoreConfig(width=8, num_layers=2, num_heads=2)
    steps = {
        schedule.name: measure_cost(
            vocab_size=9, core=core, schedule=schedule, segment=64
        ).per_segment.num_steps
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


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@settings(max_examples=6)
@given(data=st.data(), start=small(0, 20))
def test_the_fullest_state_of_a_chunk_is_foreseen(name, data, start):
    schedule = data.draw(ALL_SCHEDULES[name])
    core = data.draw(cores(schedule))
    cost = segment_cost(
        core=core, schedule=schedule, output_size=OUTPUT_SIZE, start=start, segment=3
    )
    model, state, sizes = build(schedule, core), None, []
    with torch.no_grad():
        for position in range(start + 3 + schedule.chunk_length):
            _, state = model(torch.zeros(1, 1, dtype=torch.int64), state)
            if position >= start + 2:
                sizes.append(state.num_bytes)
    assert cost.most_state_numbers * 8 == max(sizes)


def test_the_cost_of_chunks_of_any_size_is_known_at_once():
    core = CoreConfig(width=8, num_layers=3, num_heads=1, max_distance=5)
    schedule = Staircase(chunk_size=10**12, num_passes=2)
    cost = measure_cost(vocab_size=7, core=core, schedule=schedule, segment=4)
    held = 2 * core.width * core.num_layers
    # The older chunk in its second pass; the newer one, but for its last token, in both.
    assert cost.per_segment.most_state_numbers == held * (10**12 + 2 * (10**12 - 1))
