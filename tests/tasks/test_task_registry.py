"""Loading tasks: by name, from a user's file, and what is said when that fails."""

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

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"

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

class Lacking(Task):
    input_symbols = ("a",)

class Stranger:
    pass

@dataclass(frozen=True)
class Picky(Echo):
    width: int = 1

    def __post_init__(self):
        if self.width == 2:
            raise ValueError("two is\\nodd")
        {}[self.width]

number = 3
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    return path


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("random-walk", {"length": 100}, RandomWalk(length=100)),
        ("algorithm", {"num_variables": 5}, Algorithm(num_variables=5)),
        ("permutations", {"group": "A5", "length": 9}, Permutations(group="A5", length=9)),
    ],
)
def test_built_in_tasks_load_by_name(name, options, expected):
    assert load_task(name, **options) == expected
    assert expected.name == name


def test_every_built_in_task_loads_with_its_defaults():
    for name, task_class in BUILT_IN.items():
        task = load_task(name)
        assert isinstance(task, task_class)
        assert len(set(task.input_symbols)) == task.num_inputs
        assert len(set(task.output_symbols)) == task.num_outputs


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
        ("chess", {}, "a task must be one of random-walk, .* or path/to/file.py:ClassName, got"),
        ("MINE", {}, "a task must be .* got '.*mine.py'; add the class, as .*mine.py:MyTask"),
        ("nowhere.py:Echo", {}, "a task file must exist, got 'nowhere.py'; check the path before"),
        ("MINE:Ecko", {}, "mine.py must define the class .* got 'Ecko'; check the spelling"),
        ("MINE:Stranger", {}, r"must be a subclass of .*, got type; write class Stranger\(Task\)"),
        ("MINE:number", {}, "must be a subclass of .*Task, got int"),
        (
            "MINE:Lacking",
            {},
            "must define all that Task leaves open, got one without "
            "generate, output_symbols, with_length; add it",
        ),
        ("MINE:Echo", {}, "option width of .*Echo must be given, got no value; add width"),
        ("MINE:Echo", {"widht": 3}, "must be among width, length, got 'widht'; did you mean 'wid"),
        (
            "algorithm",
            {"length": 3},
            "options of algorithm must be among num_variables, .*'length'",
        ),
        ("algorithm", {"num_variables": 9}, "num_variables must be .* from 2 to 5, got 9; use for"),
        ("MINE:Picky", {}, "options of .*Picky must be .* got KeyError: 1; check them, and what"),
        ("MINE:Picky", {"width": 2}, "options of .*Picky must be .* got ValueError: two is odd; "),
        ("permutations", {"group": ["S5"]}, "options of permutations must be .* got TypeError: "),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(user_file, reference, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_task(reference.replace("MINE", str(user_file)), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Broken(:", "must run without error, got SyntaxError: .*; run it with python"),
        ("import no_such_module", "got ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_does_not_run_is_named(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_task(f"{path}:Broken")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
