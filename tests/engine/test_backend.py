"""Accelerating a model changes how it is computed, not what; where kernels cannot run, nothing."""

import copy

import pytest
import torch

from staircase_attention import (
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    SequenceModel,
    Staircase,
    engine,
)
from staircase_attention.engine.backend import FusedBackend
from staircase_attention.models import LSTMSequenceModel
from staircase_attention.models.backend import PlainBackend
from staircase_attention.models.exits import with_exits


def build(schedule=None, *, width=32, **settings):
    core = CoreConfig(width=width, num_layers=1, num_heads=2, **settings)
    schedule = schedule or Staircase(chunk_size=2, num_passes=2)
    return SequenceModel(vocab_size=7, core=core, schedule=schedule)


def runner(model, **options):
    hidden = torch.zeros(1, 2, model.config.width, **options)
    return model.backend.runner(model.core, hidden, recompute=False)


def test_a_model_is_accelerated_in_place_and_back():
    model = build()
    assert engine.accelerate(model) is model
    assert isinstance(copy.deepcopy(model).backend, FusedBackend)
    assert engine.plain(model) is model
    assert isinstance(model.backend, PlainBackend)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (build(qk_norm=True), {}),
        (build(num_key_value_heads=1), {}),
        (build(FeedbackTransformer(span=3), positions="rotary"), {}),
        (build(FeedbackTransformer(span=3), num_coda_layers=1), {}),
        (build(width=24), {}),
        (build(FeedbackTransformer(span=3, attend_self=True)), {}),
        (build().double(), {"dtype": torch.float64}),
        (build(), {"device": "meta"}),
    ],
)
def test_the_plain_core_runs_what_the_fused_one_cannot(model, options):
    assert runner(engine.accelerate(model), **options) is model.core


def test_other_models_are_left_as_they_are():
    model = LSTMSequenceModel(vocab_size=7, output_size=7, width=8, num_layers=1)
    assert engine.plain(engine.accelerate(model)) is model
    model = with_exits(build(Ladder(num_passes=2, span=4)), "change", 0.1)
    backend = model.backend
    assert engine.plain(engine.accelerate(model)).backend is backend
