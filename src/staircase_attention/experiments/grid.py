"""One recipe with some settings varied: every combination, named by what differs."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.training.recipe import Recipe

LONGEST_LABEL = 200
"""Characters of a folder's name, with room for the suffixes of files beside it."""
NOT_VARIED = {
    "name": "names show what differs",
    "seed": "every row is run with the seeds 0, 1, ...",
}


def variations(recipe: Recipe, varied: Mapping[str, Sequence[Any]]) -> list[Recipe]:
    """The recipe with every combination of some settings, each named by its path.

    The names end in the shortest form of each path that no other setting of the recipe shares.

    >>> from staircase_attention.training.recipe import EXAMPLE
    >>> rates = {"training.optimizer.learning_rate": [1e-3, 3e-3]}
    >>> for recipe in variations(EXAMPLE, rates | {"training.num_lanes": [4]}):
    ...     print(recipe.name, recipe.training.optimizer.learning_rate)
    example/learning_rate=0.001,num_lanes=4 0.001
    example/learning_rate=0.003,num_lanes=4 0.003
    """
    for path, values in varied.items():
        _check_values(path, values)
    _check_apart(list(varied))
    if not varied:
        return [recipe]
    known = list(_paths(recipe.to_plain()))
    short = [shortest_tail(path, known) for path in varied]
    made = [
        _vary(recipe, dict(zip(varied, values, strict=True)), short)
        for values in itertools.product(*varied.values())
    ]
    _check_names([recipe.name for recipe in made])
    return made


def shortest_tail(path: str, known: Sequence[str]) -> str:
    """The shortest end of a path that no other path has.

    >>> shortest_tail("optimizer.kind", ["optimizer.kind", "model.kind", "model.width"])
    'optimizer.kind'
    >>> shortest_tail("model.width", ["optimizer.kind", "model.kind", "model.width"])
    'width'
    """
    others = [f".{other}" for other in known if other != path]
    parts = path.split(".")
    tails = (".".join(parts[-count:]) for count in range(1, len(parts)))
    return next((tail for tail in tails if not any(o.endswith(f".{tail}") for o in others)), path)


def value_words(value: Any) -> str:  # noqa: ANN401
    """A value as part of a folder's name.

    >>> value_words(1e-3), value_words(None), value_words([1, 2]), value_words("clock.py:Clock")
    ('0.001', 'none', '1-2', 'clock.py-Clock')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    return re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")


def _vary(recipe: Recipe, settings: Mapping[str, Any], short: Sequence[str]) -> Recipe:
    named = zip(short, settings.values(), strict=True)
    label = ",".join(f"{name}={value_words(value)}" for name, value in named)
    return dataclasses.replace(recipe.override(settings), name=f"{recipe.name}/{label}")


def _paths(plain: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The paths of all settings and groups of settings."""
    for name, value in plain.items():
        yield f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{name}.")


def _check_values(path: str, values: Sequence[Any]) -> None:
    if path in NOT_VARIED:
        rule = "a setting that varies must be part of the run"
        raise input_error(rule, f"{path!r}: {NOT_VARIED[path]}", "leave it out")
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        rule = "a setting that varies needs a list of values"
        raise input_error(rule, f"{values!r} for {path}", "give at least one")
    for number, value in enumerate(values):
        if value in values[:number]:
            rule = "values of a setting must differ"
            raise input_error(rule, f"{value!r} twice for {path}", "leave one of them out")


def _check_apart(paths: Sequence[str]) -> None:
    for outer, inner in itertools.permutations(paths, 2):
        if inner.startswith(f"{outer}."):
            rule = "settings that vary must not contain each other"
            raise input_error(rule, f"{outer} and {inner}", "vary one of them")


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        label = name.rpartition("/")[2]
        if len(label) > LONGEST_LABEL:
            rule = f"the name of a variation has at most {LONGEST_LABEL} characters"
            raise input_error(rule, f"{len(label)}: {label}", "vary fewer settings at once")
        if names.count(name) > 1:
            rule = "values must differ in their letters and digits"
            raise input_error(rule, f"two that make {label}", "change one of them")
