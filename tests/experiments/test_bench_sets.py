"""What `staircase bench` can time, and at which sizes."""

import importlib.util

import pytest
import torch

from staircase_attention import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Staircase,
    TransformerXL,
)
from staircase_attention.experiments import bench, find_recipe
from staircase_attention.experiments.bench.flops import num_passes, update_flops
from staircase_attention.models import measure_cost
from staircase_attention.training.build import build_model

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def find(*names, device=CPU, **overrides):
    """Subjects by name."""
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    subjects, _ = bench.find_subjects(names, overrides=changed, device=device)
    return {subject.name: subject for subject in subjects}


def num_parameters(subject):
    with torch.device("meta"):
        return build_model(subject.recipe, subject).num_parameters


@pytest.mark.parametrize(
    ("name", "sizes", "schedule"),
    [
        ("algorithm", (256, 4, 4, 128, 256), Staircase(chunk_size=16, num_passes=4)),
        ("random-walk", (256, 4, 4, 128, 512), Staircase(chunk_size=8, num_passes=8)),
        ("enwik8", (512, 8, 8, 256, 128), Staircase(chunk_size=64, num_passes=4)),
        ("reddit", (1024, 8, 8, 256, 32), Staircase(chunk_size=32, num_passes=8)),
    ],
)
def test_the_engine_set_has_the_sizes_of_the_public_comparison(name, sizes, schedule):
    recipe = find("engine", device=GPU)[f"engine/{name}"].recipe
    core, training = recipe.model.core, recipe.training
    found = (core.width, core.num_layers, core.num_heads)
    assert (*found, training.segment_length, training.num_lanes) == sizes
    assert recipe.model.schedule == schedule
    assert core.dropout == core.embedding_dropout == 0
    assert training.precision == "bfloat16"


def test_the_relative_set_has_the_models_of_the_reddit_table_at_one_size():
    subjects = find("relative")
    schedules = [subject.recipe.model.schedule for subject in subjects.values()][:5]
    assert schedules == [
        TransformerXL(span=256),
        CachedStaircase(chunk_size=128, num_window_chunks=3, num_passes=1),
        Staircase(chunk_size=32, num_passes=8),
        Ladder(num_passes=8, span=256),
        FeedbackTransformer(span=512),
    ]
    millions = [num_parameters(subject) / 1e6 for subject in subjects.values()][:5]
    assert millions == pytest.approx([117.18, 117.20, 117.18, 117.18, 102.54], abs=0.01)
    assert {subject.baseline for subject in subjects.values()} == {"relative/transformer-xl"}
    assert all(subject.num_outputs == 8008 for subject in subjects.values())


def test_a_set_is_in_float32_without_a_gpu_and_takes_settings():
    assert find("engine/reddit")["engine/reddit"].recipe.training.precision == "float32"
    wanted = {"training__precision": "bfloat16", "training__num_lanes": 4}
    changed = find("engine", **wanted)["engine/reddit"].recipe.training
    assert (changed.precision, changed.num_lanes) == ("bfloat16", 4)


def test_rows_and_sets_and_recipes_may_be_mixed_and_come_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find("engine/reddit", "parity/lstm", "engine", "parity/lstm")
    assert list(found) == [
        "engine/reddit",
        "parity/lstm",
        "engine/algorithm",
        "engine/random-walk",
        "engine/enwik8",
    ]


def test_a_corpus_that_is_not_there_gets_likely_symbols(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find("enwik8-small/ladder", "base/ladder-8", "parity/staircase")
    assert [subject.num_inputs for subject in found.values()][:2] == [256, 8008]
    parity = find_recipe("parity/staircase")
    assert found["parity/staircase"].recipe == parity


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["engin"], "did you mean 'engine'?"),
        (["parity/stairs"], "did you mean 'parity/staircase'?"),
        ([], "got none"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(names, words):
    with pytest.raises(ValueError, match="got") as caught:
        bench.find_subjects(names, overrides={}, device=CPU)
    assert words in str(caught.value)


def test_without_transformers_the_gpt_is_left_out_with_a_note(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name)
    )
    subjects, notes = bench.find_subjects(["relative"], overrides={}, device=CPU)
    assert len(subjects) == 5
    assert len(notes) == 1
    assert "relative/gpt-2 needs the package transformers" in notes[0]
    with pytest.raises(ValueError, match="needs the package transformers"):
        bench.find_subjects(["relative/gpt-2"], overrides={}, device=CPU)


def test_operations_are_three_forward_passes_of_all_lanes():
    subject = find("engine/reddit")["engine/reddit"]
    model = subject.recipe.model
    cost = measure_cost(vocab_size=8008, core=model.core, schedule=model.schedule, segment=256)
    assert update_flops(subject) == 3 * 32 * cost.per_segment.flops
    assert update_flops(subject) == pytest.approx(42e12, rel=0.01)


@pytest.mark.parametrize(
    ("schedule", "passes"),
    [
        (Staircase(chunk_size=4, num_passes=3), 3),
        (CachedStaircase(chunk_size=4, num_window_chunks=3, num_passes=2), 2),
        (Ladder(num_passes=5, span=8), 5),
        (TransformerXL(span=8), 1),
        (FeedbackTransformer(span=8), 1),
    ],
)
def test_a_new_token_makes_as_many_passes_as_its_schedule_says(schedule, passes):
    assert num_passes(schedule, num_layers=2) == passes
