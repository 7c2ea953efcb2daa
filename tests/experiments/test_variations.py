"""Every combination of varied settings is there once, under a name that says what differs."""

import itertools
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.experiments import find_recipe, variations
from staircase_attention.experiments.comparisons import value_words

STAIRCASE = find_recipe("parity/staircase")
SETTINGS = {
    "training.optimizer.learning_rate": st.floats(1e-6, 1.0),
    "training.optimizer.kind": st.sampled_from(["adam", "adamw", "muon"]),
    "training.optimizer.gradient_clip": st.none() | st.floats(0.1, 10.0),
    "training.num_lanes": st.integers(1, 512),
    "training.recompute": st.booleans(),
    "data_seed": st.integers(0, 9),
    "task.options.group": st.sampled_from(["S2", "S3", "S5"]),
}


@st.composite
def varied_settings(draw):
    paths = draw(st.lists(st.sampled_from(sorted(SETTINGS)), min_size=1, max_size=3, unique=True))
    return {
        path: draw(st.lists(SETTINGS[path], min_size=1, max_size=3, unique=True)) for path in paths
    }


@given(varied_settings())
def test_every_combination_is_there_once_and_its_name_does_as_a_folder(varied):
    made = variations(STAIRCASE, varied)
    combinations = list(itertools.product(*varied.values()))
    assert len({recipe.name for recipe in made}) == len(made) == len(combinations)
    for recipe, values in zip(made, combinations, strict=True):
        changed = STAIRCASE.override(dict(zip(varied, values, strict=True)))
        assert recipe.to_plain() == changed.to_plain() | {"name": recipe.name}
        path = PurePosixPath(recipe.name)
        assert path.parent == PurePosixPath("parity/staircase")
        assert not set(path.name) & set(" \\:*?\"'<>|[]{}()$&;")


def test_names_say_what_differs_as_shortly_as_they_can():
    varied = {
        "training.optimizer.kind": ["muon"],
        "training.num_lanes": [64],
        "model.schedule.chunk_size": [2, 4],
        "training.recompute": [True],
        "training.keep_every": [None],
        "task.options.length": [24],
    }
    names = [recipe.name for recipe in variations(STAIRCASE, varied)]
    rest = "recompute=true,keep_every=none,length=24"
    assert names == [
        f"parity/staircase/kind=muon,num_lanes=64,chunk_size={size},{rest}" for size in (2, 4)
    ]


def test_values_are_parts_of_a_folder_s_name():
    values = [1e-3, None, [1, 2], "clock.py:Clock"]
    assert [value_words(value) for value in values] == ["0.001", "none", "1-2", "clock.py-Clock"]


def test_whole_groups_can_be_varied():
    schedules = [
        {"name": "staircase", "chunk_size": 2, "num_passes": 4},
        {"name": "ladder", "num_passes": 2, "span": 8},
    ]
    made = variations(STAIRCASE, {"model.schedule": schedules})
    assert [recipe.model.schedule.to_dict()["name"] for recipe in made] == ["staircase", "ladder"]
    tail = "schedule=name-staircase-chunk_size-2-num_passes-4"
    assert made[0].name == f"parity/staircase/{tail}"


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        ({"training.num_lane": [1]}, "got 'training.num_lane'; did you mean 'num_lanes'"),
        ({"training.num_lanes": []}, "needs a list of values, got [] for training.num_lanes; give"),
        ({"training.num_lanes": 4}, "needs a list of values, got 4 for training.num_lanes; give"),
        ({"task.reference": "abc"}, "needs a list of values, got 'abc' for task.reference; give"),
        ({"training.num_lanes": [4, 8, 4]}, "got two that make num_lanes=4; change one of them"),
        ({"training.num_lanes": [0]}, "num_lanes must be an integer of at least 1, got 0; "),
        ({"seed": [0, 1]}, "a row is run with several seeds, got seed=...; use --seeds"),
        ({"name": ["a"]}, "names show the recipe and what varies, got name=...; leave it out"),
        (
            {"training.optimizer.warm_up": [0], "training.optimizer": [{}]},
            "contain each other, got training.optimizer and training.optimizer.warm_up; vary one",
        ),
        ({"task.reference": ["a:b", "a/b"]}, "got two that make reference=a-b; change"),
    ],
)
def test_mistakes_are_one_line(varied, message):
    with pytest.raises(ValueError, match="got") as error:
        variations(STAIRCASE, varied)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
