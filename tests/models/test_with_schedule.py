"""The same parameters under another timetable."""

import pytest
import torch

from building import EXACT, build, random_tokens
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)

CORE = {"width": 8, "num_layers": 2, "num_heads": 2}


def test_parameters_are_shared_and_both_models_go_on_training():
    model = build(Staircase(chunk_size=3, num_passes=4))
    other = model.with_schedule(CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=1))
    assert list(other.state_dict()) == list(model.state_dict())
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine is theirs
    batch = random_tokens(2, 9)
    before, _ = model(batch)
    alone = build(other.schedule, other.config)
    alone.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(batch)[0], alone(batch)[0], **EXACT)
    assert not torch.allclose(other(batch)[0], before)
    with torch.no_grad():
        other.core.positions.table.zero_()
    assert not torch.allclose(model(batch)[0], before)
    assert model.schedule != other.schedule


def test_whether_a_token_sees_itself_is_the_schedules_affair():
    kept = {"share_keys_values": False, "memory": "top"}
    model = build(FeedbackTransformer(span=4, **kept))
    other = model.with_schedule(FeedbackTransformer(span=4, attend_self=True, **kept))
    batch = random_tokens(1, 6)
    before, _ = model(batch)
    assert not torch.allclose(other(batch)[0], before)
    torch.testing.assert_close(model(batch)[0], before, **EXACT)


def test_a_state_of_one_timetable_is_refused_by_another():
    model = build(Staircase(chunk_size=3, num_passes=3))
    _, state = model(random_tokens(1, 4))
    with pytest.raises(ValueError, match="of a model of the same shape"):
        model.with_schedule(Staircase(chunk_size=3, num_passes=2))(random_tokens(1, 4), state)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Staircase(chunk_size=3, num_passes=5), "needs a position table of 15 rows, got one of 12"),
        (FeedbackTransformer(span=4), "mixes_layers = False"),
        (UniversalTransformer(num_passes=2, span=4), "num_layers = 1, got 2"),
        ("staircase", "schedule must be a Schedule, got 'staircase'"),
    ],
)
def test_a_timetable_that_does_not_fit_is_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        build(Staircase(chunk_size=3, num_passes=4)).with_schedule(schedule)


def test_a_table_that_clips_distances_already_serves_any_reach():
    core = CoreConfig(**CORE, max_distance=5)
    model = build(TransformerXL(span=9), core).with_schedule(TransformerXL(span=20))
    assert model.with_schedule(TransformerXL(span=30)).config.max_distance == 5
