"""Timetables are plain data that cover the grid, in either order, and never ask for the future."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from building import SCHEDULES, small
from staircase_attention import CoreConfig, SequenceModel
from staircase_attention.schedules import (
    CachedStaircase,
    Staircase,
    TransformerXL,
    check_steps,
    make_schedule,
    schedule_from_dict,
)

each_kind = pytest.mark.parametrize("name", SCHEDULES)
LAYERS = 2


def grid(schedule, tokens, order):
    """Every (token, pass, layer) that the timetable computes, in the order it does."""
    return [
        (token, cell.pass_number, layer)
        for step in schedule.steps(tokens, num_layers=LAYERS, order=order)
        for cell in step.cells
        for layer in step.layers
        for token in cell.tokens
    ]


@each_kind
@given(data=st.data(), start=small(0, 9), length=small(0, 20))
def test_both_orders_compute_the_same_cells_once_each(name, data, start, length):
    schedule = data.draw(SCHEDULES[name])
    tokens = range(start, start + length)
    by_window, by_chunk = (grid(schedule, tokens, order) for order in ("window", "chunk"))
    assert len(set(by_window)) == len(by_window)
    assert sorted(by_window) == sorted(by_chunk)
    assert {token for token, _, _ in by_window} == set(tokens)


@each_kind
@given(data=st.data(), length=small(1, 20))
def test_queries_of_a_step_are_neighbours_and_follow_what_is_frozen(name, data, length):
    schedule = data.draw(SCHEDULES[name])
    for step in schedule.steps(range(length), num_layers=LAYERS, order="window"):
        flat = [token for cell in step.cells for token in cell.tokens]
        assert flat == list(step.tokens)
        assert all(part.stop <= step.tokens.start for part in step.frozen)


@each_kind
@given(data=st.data())
def test_a_schedule_survives_the_trip_through_plain_data(name, data):
    schedule = data.draw(SCHEDULES[name])
    assert schedule_from_dict(schedule.to_dict()) == schedule


@each_kind
@given(data=st.data(), num_layers=small(1, 3))
def test_every_token_goes_through_all_its_passes(name, data, num_layers):
    check_steps(data.draw(SCHEDULES[name]), num_layers)


class Thinned(CachedStaircase):
    """Without every second step, with all steps twice, or without any."""

    kept = 1

    def steps(self, tokens, **options):
        for number, step in enumerate(super().steps(tokens, **options)):
            yield from [step] * (self.kept if number % 2 or self.kept != 1 else 0)


@pytest.mark.parametrize(
    ("kept", "received"),
    [
        (1, r"passes \[2, 2\] of 2"),
        (2, r"passes \[1, 1, 1, 1, 2, "),
        (0, "passes none of 2 layers"),
    ],
)
def test_a_schedule_of_one_s_own_that_leaves_out_or_repeats_a_pass_is_refused(kept, received):
    Thinned.kept = kept
    schedule = Thinned(chunk_size=2, num_window_chunks=3, num_passes=2)
    with pytest.raises(ValueError, match=f"steps of Thinned must take .*{received}"):
        SequenceModel(vocab_size=4, core=CoreConfig(width=4, num_layers=2, num_heads=1),
                      schedule=schedule)  # fmt: skip


def test_the_staircase_climbs_as_in_figure_one():
    steps = Staircase(chunk_size=2, num_passes=3).steps(range(7), num_layers=1, order="window")
    rows = [[(cell.chunk, cell.pass_number) for cell in step.cells] for step in steps]
    assert rows == [
        [(0, 1)],
        [(0, 2), (1, 1)],
        [(0, 3), (1, 2), (2, 1)],
        [(1, 3), (2, 2), (3, 1)],
        [(2, 3), (3, 2)],
        [(3, 3)],
    ]


def test_the_papers_words_are_derived_from_the_schedule():
    row = CachedStaircase(chunk_size=128, num_window_chunks=3, num_passes=1).paper_row
    assert (row.recurrent_steps, row.step_size, row.forward_size) == (1, 384, 128)
    row = Staircase(chunk_size=32, num_passes=8).paper_row
    assert (row.recurrent_steps, row.step_size, row.forward_size) == (8, 256, 32)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stairway", {}, "did you mean 'staircase'"),
        ("zzz", {}, "a schedule must be one of staircase, .* got 'zzz'; use for example"),
        ("staircase", {"chunk_size": 2}, "option num_passes of staircase must be given"),
        ("staircase", {"chunk_size": 2, "num_passes": 2, "speed": 1}, "got 'speed'"),
    ],
)
def test_an_unknown_schedule_or_option_is_refused_with_the_known_ones(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(name, options)


def test_options_that_are_newer_than_saved_states_are_written_only_where_they_matter():
    assert TransformerXL(span=4).to_dict() == {"name": "transformer-xl", "span": 4}
    other = TransformerXL(span=4, span_includes_self=False)
    assert other.to_dict() == {"name": "transformer-xl", "span": 4, "span_includes_self": False}
