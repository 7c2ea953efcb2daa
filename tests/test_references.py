"""Classes that recipes name by a file or a module."""

from collections.abc import Iterator
from fractions import Fraction
from numbers import Rational

import pytest

from staircase_attention.references import load_reference, reference_file, reference_of

FILE = """
from collections.abc import Iterator

class Cat(Iterator):
    def __next__(self):
        return "meow"

class Fish(Iterator):
    pass

class Stone:
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pets.py"
    path.write_text(FILE)
    return path


def test_a_class_is_loaded_once_and_knows_its_reference(file):
    reference = f"{file}:Cat"
    cat = load_reference(reference, Iterator)
    assert next(cat()) == "meow"
    assert load_reference(reference, Iterator) is cat
    assert reference_of(cat) == reference
    assert reference_file(reference) == file


def test_a_file_that_has_changed_is_run_again(file):
    load_reference(f"{file}:Cat", Iterator)
    file.write_text(FILE.replace("meow", "purr"))
    assert next(load_reference(f"{file}:Cat", Iterator)()) == "purr"


def test_a_class_of_a_module_is_loaded_by_the_modules_name():
    assert load_reference("fractions:Fraction", Rational) is Fraction
    assert reference_of(Fraction) == "fractions:Fraction"
    assert reference_file("fractions:Fraction") is None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("FILE", "must be path/to/file.py:ClassName .*; add the class, as .*pets.py:MyIterator"),
        ("nowhere.py:Cat", "an? iterator file must exist, got 'nowhere.py'; name its whole path"),
        ("no.such.module:Cat", "module no.such.module must be .* got ModuleNotFoundError"),
        ("FILE:Cow", "must define the class .* got 'Cow'; check the spelling"),
        ("FILE:Stone", r"must be a subclass of collections.abc.Iterator, got type; write class"),
        (
            "FILE:Fish",
            "must define all that Iterator leaves open, got one without __next__; add it",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(file, reference, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_reference(reference.replace("FILE", str(file)), Iterator)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_run_is_named(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("class Broken(:")
    with pytest.raises(ValueError, match=r"broken.py must run without error, got SyntaxError"):
        load_reference(f"{path}:Broken", Iterator)
