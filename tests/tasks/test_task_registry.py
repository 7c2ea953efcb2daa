"""Tasks load by name and from a user's file; tests/test_references.py has files that fail."""

import re
from pathlib import Path

import numpy as np
import pytest

from staircase_attention.tasks import (
    BUILT_IN,
    Algorithm,
    Permutations,
    RandomWalk,
    SplitSizes,
    Task,
    load_task,
    split,
)

DOCS = Path(__file__).parents[2] / "docs" / "tutorials" / "task.md"

USER_FILE = """
from dataclasses import dataclass
import numpy as np
from staircase_attention.tasks import Episodes, Task

@dataclass(frozen=True)
class Echo(Task):
    width: int
    length: int = 5
    input_symbols = ("a", "b")
    output_symbols = ("a", "b")

    def generate(self, generator, num_episodes):
        symbols = generator.integers(2, size=(num_episodes, self.length * self.width))
        return Episodes.from_grid(symbols, symbols)

    def with_length(self, length):
        return Echo(self.width, length)

@dataclass(frozen=True)
class Picky(Echo):
    width: int = 1

    def __post_init__(self):
        if self.width == 2:
            raise ValueError("two is\\nodd")
        {}[self.width]
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    return path


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("random-walk", {"walls": "wrap", "length": 9}, RandomWalk(walls="wrap", length=9)),
        ("algorithm", {"num_variables": 5}, Algorithm(num_variables=5, num_statements=100)),
        ("permutations", {"group": "A5", "length": 7}, Permutations(group="A5", length=7)),
    ],
)
def test_built_in_tasks_load_by_name_and_change_only_their_length(name, options, expected):
    task = load_task(name, **options)
    assert task == expected
    assert task.name == name
    length = "num_statements" if name == "algorithm" else "length"
    assert task.with_length(500) == load_task(name, **{**options, length: 500})


def test_every_built_in_task_names_each_symbol_once():
    for name, task_class in BUILT_IN.items():
        task = load_task(name)
        assert isinstance(task, task_class)
        assert len(set(task.input_symbols)) == task.num_inputs
        assert len(set(task.output_symbols)) == task.num_outputs
    assert Algorithm().split_sizes == SplitSizes(train=10_000, valid=1_000, test=1_000)


def test_a_task_of_the_user_loads_from_its_file(user_file):
    task = load_task(f"{user_file}:Echo", width=4)
    assert isinstance(task, Task)
    assert task.name == "echo"
    assert (task.num_inputs, task.num_outputs) == (2, 2)
    assert task.split_sizes == SplitSizes(train=None, valid=1_000, test=1_000)
    assert np.all(split(task, "test", seed=0).lengths == 20)


def test_the_task_in_the_docs_works_and_takes_thirty_lines(tmp_path):
    (example,) = re.findall(r"```python\n(# clock\.py\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(example.splitlines()) <= 30
    (tmp_path / "clock.py").write_text(example)
    task = load_task(f"{tmp_path}/clock.py:Clock", length=50, num_hours=24)
    test = split(task, "test", seed=0)
    words = task.show(*test[0]).replace("[", "").replace("]", "").split()
    hour = 0
    assert words[0] == "START"
    for move, answer in zip(words[1::2], words[2::2], strict=True):
        hour = (hour + {"forward": 1, "back": -1}[move]) % 24
        assert int(answer) == hour
    assert np.all(split(task.with_length(99), "test", seed=0).lengths == 100)


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("algoritm", {}, "a task must be one of .*, got 'algoritm'; did you mean 'algorithm'?"),
        ("MINE", {}, "a task of your own must be .* got '.*mine.py'; add the class, as .*:MyTask"),
        ("nowhere.py:Echo", {}, "a task file must exist, got 'nowhere.py'; name its whole"),
        ("MINE:dataclass", {}, r"must be a subclass of .*Task, got function; write class"),
        ("MINE:Echo", {}, "option width of .*Echo must be given, got no value; add width"),
        ("MINE:Echo", {"widht": 3}, "must be among width, length, got 'widht'; did you mean 'wid"),
        ("algorithm", {"length": 3}, "options of algorithm must be among num_train, .*'length'"),
        ("algorithm", {"num_variables": 6}, "num_variables must be .* from 2 to 5, got 6; use for"),
        ("algorithm", {"num_statements": 0}, "num_statements must be an integer of at least 1, "),
        ("algorithm", {"distribution": "author"}, "one of authors, redraw, .* mean 'authors'?"),
        ("permutations", {"group": "S7"}, "group must be S2 to S6 or A3 to A6, got 'S7'; use for"),
        ("permutations", {"group": "A2"}, "group must be .* got 'A2'"),
        ("permutations", {"group": 5}, "group must be .* got 5"),
        ("permutations", {"length": 0}, "length must be an integer of at least 1, got 0; use"),
        ("permutations", {"inputs": "generator"}, "inputs must .*; did you mean 'generators'?"),
        ("random-walk", {"length": True}, "length must be .* got True"),
        ("random-walk", {"height": 2.0}, r"height must be an integer from 1 to 256, got 2\.0"),
        ("random-walk", {"height": 1, "width": 1}, "two cells or more, got 1 x 1; use"),
        ("random-walk", {"walls": "blok"}, "walls must be one of block, wrap, got 'blok'; did you"),
        ("random-walk", {"start": "random"}, "start must be one of corner, centre, got 'random'"),
        ("random-walk", {"heading": 3}, "heading must be one of .* got 3"),
        ("random-walk", {"num_test": -1}, "num_test must be"),
        ("random-walk", {"num_train": 0}, "num_train must be an integer of at least 1, got 0"),
        ("MINE:Picky", {}, "options of .*Picky must be .* got KeyError: 1; check them, and what"),
        ("MINE:Picky", {"width": 2}, "options of .*Picky must be .* got ValueError: two is odd; "),
        ("permutations", {"group": ["S5"]}, "options of permutations must be .* got TypeError: "),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(user_file, reference, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_task(reference.replace("MINE", str(user_file)), **options)
    assert "\n" not in str(caught.value)
