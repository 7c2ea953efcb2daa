"""A recipe is plain data and back, and settings are changed by their paths."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import small_recipe

from staircase_attention import Ladder, Staircase, TransformerXL
from staircase_attention.plain import differences
from staircase_attention.training import OptimizerConfig, Recipe, TaskChoice, load_run, train
from staircase_attention.training.recipe import CorpusChoice, LSTMModel

ALTERNATE = f"{Path(__file__).parents[1]}/examples/alternate.py:AlternateCached"


def test_a_dictionary_changes_the_settings_that_it_names_and_no_others():
    recipe = small_recipe().override({"training.optimizer": {"beta1": 0.8}})
    assert recipe.training.optimizer == OptimizerConfig(learning_rate=1e-2, warm_up=3, beta1=0.8)
    recipe = small_recipe().override(
        {"training": {"num_lanes": 8, "optimizer": {"kind": "adamw", "warm_up": 5}}}
    )
    assert (recipe.training.num_lanes, recipe.training.segment_length) == (8, 7)
    expected = OptimizerConfig(kind="adamw", learning_rate=1e-2, warm_up=5)
    assert recipe.training.optimizer == expected
    assert small_recipe().override({"task.options": {"length": 12}}).task.options["num_valid"] == 20
    recipe = small_recipe().override({"model.schedule": {"name": "staircase", "num_passes": 4}})
    assert recipe.model.schedule == Staircase(chunk_size=3, num_passes=4)


@pytest.mark.parametrize("given", [Ladder(num_passes=2, span=5), OptimizerConfig(beta2=0.5)])
def test_a_config_or_another_thing_takes_the_place_of_the_old_one(given):
    path = "training.optimizer" if isinstance(given, OptimizerConfig) else "model.schedule"
    recipe = small_recipe().override({path: given})
    assert given in (recipe.training.optimizer, recipe.model.schedule)
    for task in (
        {"task": {"kind": "task", "reference": "random-walk", "options": {"length": 7}}},
        {"task.options.length": 7, "task.reference": "random-walk"},
    ):
        assert small_recipe().override(task).task.options == {"length": 7}


@pytest.mark.parametrize(
    "changes",
    [
        {
            "model.schedule.num_window_chunks": 4,
            "model.schedule.reference": ALTERNATE,
        },
        {"model.schedule": {"reference": ALTERNATE, "chunk_size": 3, "num_window_chunks": 4,
                            "num_passes": 2}},
    ],
    ids=["path by path", "as a whole"],
)  # fmt: skip
def test_a_schedule_of_one_s_own_trains_by_reference(tmp_path, changes):
    recipe = small_recipe().override(changes)
    train(recipe, tmp_path / "run")
    schedule = load_run(tmp_path / "run").model.schedule
    assert schedule.name == "alternate-cached"
    assert (schedule.chunk_size, schedule.num_window_chunks, schedule.num_passes) == (3, 4, 2)
    # Back to one of the family.
    recipe = recipe.override({"model.schedule.name": "cached-staircase"})
    assert recipe.model.schedule.name == "cached-staircase"


def test_differences_are_named_by_their_paths():
    before, now = ({"seed": 0, "task": {"length": length}} for length in (3, 4))
    assert list(differences(before, now)) == ["task.length = 4 in place of 3"]


def test_another_kind_or_name_by_its_path_takes_the_place_of_the_old_one():
    recipe = small_recipe().override({"model.schedule.span": 5, "model.schedule.name": "ladder"})
    assert recipe.model.schedule == Ladder(num_passes=2, span=5)
    lstm = recipe.override({"model.width": 8, "model.num_layers": 1, "model.kind": "lstm"})
    assert lstm.model == LSTMModel(width=8, num_layers=1)
    family = {f"model.core.{name}": value for name, value in asdict(recipe.model.core).items()}
    family |= {"model.schedule.name": "transformer-xl", "model.schedule.span": 4}
    back = lstm.override(family | {"model.kind": "family"}).model
    assert (back.core, back.schedule) == (recipe.model.core, TransformerXL(span=4))
    text = recipe.override({"task.folder": "corpus", "task.kind": "corpus"})
    assert text.task == CorpusChoice(folder="corpus")
    task = text.override({"task.kind": "task", "task.reference": "boxes", "task.options.length": 9})
    assert task.task == TaskChoice(reference="boxes", options={"length": 9})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.schedule.name": "ladder"}, "option span of ladder must be given"),
        (
            {"model.schedule.name": "ladder", "model.schedule.chunk_size": 3},
            "options of ladder must be among span, .*, got 'chunk_size'",
        ),
        ({"model.schedule.name": "lader"}, "did you mean 'ladder'"),
        ({"model.kind": "lstm"}, "recipe.model.width must be given"),
        (
            {"model.kind": "lstm", "model.core.width": 3},
            "one that the recipe has, got .*model.core'",
        ),
        (
            {"model.kind": "lstm", "model.wdith": 3},
            "got 'model.wdith'; did you mean 'width'",
        ),
        ({"model.kind": "gru"}, "recipe.model.kind must be one of family, lstm, got 'gru'"),
        ({"task.kind": "corpus", "task.options.length": 3}, "got 'task.options'"),
    ],
)
def test_settings_that_the_other_kind_has_not_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        small_recipe().override(changes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.keep_every", 0),
        ("training.optimizer.learning_rate", -1.0),
        ("training.optimizer.beta1", 2.0),
        ("training.optimizer.gradient_clip", 0.0),
        ("training.optimizer.adamw_fraction", 0.5),
        ("training.optimizer.warm_up", -5),
        ("training.optimizer.final_fraction", 7.0),
        ("training.divergence.smoothing", 2.0),
        ("training.divergence.patience", 0),
        ("training.divergence.max_rollbacks", -1),
        ("training.num_micro_batches", 3),
        ("training.num_updates", 1e1),
        ("training.num_updates", True),
        ("training.recompute", 1),
        ("training.precision", "bf16"),
        ("training.optimizer", {"kind": "Adam"}),
        ("training.evaluation_tokens", 64),
        ("seed", -1),
        ("data_seed", 2**70),
        ("name", "../elsewhere"),
        ("name", "/elsewhere"),
        ("task.options", 5),
        ("model.schedule", 3),
        ("model.schedule.chunk_sise", 3),
        ("training.optimiser", {}),
        ("training.num_updates.more", 1),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting, value):
    with pytest.raises(ValueError, match=r"got .*; ") as caught:
        small_recipe().override({setting: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["seed", "training.num_updates", "training.optimizer.warm_up", "model.core.width"]
)
def test_a_value_out_of_bounds_is_refused_with_a_remedy_that_can_be_typed(setting):
    with pytest.raises(ValueError, match=rf"^small: {setting} must .* example {setting}=\d+$"):
        small_recipe().override({setting: -1})


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"num_updates": 1e1}])
def test_a_wrong_setting_is_refused_where_a_config_is_made(changes):
    with pytest.raises(ValueError, match=r"TrainingConfig\.\w+ must be .*, got"):
        replace(small_recipe().training, **changes)


def test_a_recipe_that_could_not_be_read_again_is_not_trained(tmp_path):
    recipe = small_recipe()
    with pytest.raises(ValueError, match=r"recipe\.task\.options must be .*, got"):
        train(replace(recipe, task=replace(recipe.task, options=5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_may_do_without_clipping_and_rollbacks_by_infinite_bounds():
    recipe = small_recipe(
        training__optimizer__gradient_clip=math.inf, training__divergence__jump_factor=math.inf
    )
    assert Recipe.from_plain(json.loads(json.dumps(recipe.to_plain()))) == recipe
    with pytest.raises(ValueError, match="learning_rate must be a number over 0, got inf"):
        small_recipe(training__optimizer__learning_rate=math.inf)


def test_settings_may_be_numbers_of_numpy():
    recipe = small_recipe(seed=np.int64(3), training__optimizer__beta1=np.float32(0.5))
    assert (recipe.seed, type(recipe.seed)) == (3, int)
    assert type(recipe.training.optimizer.beta1) is float
