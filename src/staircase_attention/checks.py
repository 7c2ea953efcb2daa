"""Checks of values that a user gives: one line with the rule, what was received, and a remedy."""

import difflib
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

# An error lists up to this many choices; of more it names the nearest only.
MOST_LISTED = 10
# An error shows this many characters of a value, which may be a whole file.
MOST_SHOWN = 400
# Bounds of a number, in words and as a comparison.
BOUNDS = {
    "minimum": ("of at least", operator.ge),
    "above": ("over", operator.gt),
    "maximum": ("of at most", operator.le),
    "below": ("under", operator.lt),
}


class InputError(ValueError):
    """A value that a user got wrong. The same call would fail again."""


def input_error(rule: str, received: object, remedy: str) -> InputError:
    """The error for a broken rule.

    >>> input_error("length must be an integer of at least 1", 0, "use for example 400")
    InputError('length must be an integer of at least 1, got 0; use for example 400')
    """
    return InputError(f"{_shown(rule)}, got {_shown(received)}; {remedy}")


def printable(text: str) -> str:
    """A text in one line, with what a terminal would obey spelt out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in " ".join(text.split()))


def _shown(value: object) -> str:
    """A value in one line that can be printed, whatever a stranger wrote into it."""
    text = printable(str(value))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def check_integer(
    name: str, value: object, *, minimum: int, maximum: int | None = None, example: int
) -> None:
    """Refuse anything but an int from minimum to maximum (True and False are no integers)."""
    if isinstance(value, int) and not isinstance(value, bool):
        highest = value if maximum is None else maximum
        if minimum <= value <= highest:
            return
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    rule = f"{name} must be an integer {bounds}"
    raise input_error(rule, repr(value), f"use for example {name}={example}")


def check_number(name: str, value: object, *, example: float, **bounds: float) -> None:
    """Refuse anything but a number within these BOUNDS, finite unless a maximum is given."""
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value <= sys.float_info.max or "maximum" in bounds)
        and all(BOUNDS[kind][1](value, bound) for kind, bound in bounds.items())
    ):
        return
    words = " and ".join(f"{BOUNDS[kind][0]} {bound:g}" for kind, bound in bounds.items())
    rule = f"{name} must be a number {words}"
    raise input_error(rule, repr(value), f"use for example {name}={example:g}")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise input_error(f"{name} must be True or False", repr(value), "use one of these")


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse anything but one of the choices, and suggest the nearest.

    >>> check_choice("table", "random-wlak", ["random-walk", "algorithm"])
    Traceback (most recent call last):
    staircase_attention.checks.InputError: table must be one of random-walk, algorithm, \
got 'random-wlak'; did you mean 'random-walk'?
    """
    known = list(choices)
    if any(value is choice or value == choice for choice in known):
        return
    names = [str(choice) for choice in known]
    listed = f"one of {', '.join(names)}" if len(names) <= MOST_LISTED else "a known name"
    raise input_error(f"{name} must be {listed}", repr(value), suggestion(str(value), names))


def check_fields(config: Any, prefix: str = "", *, examples: Mapping[str, Any] = {}) -> None:  # noqa: ANN401
    """Refuse a dataclass with a value that its field's type, or its metadata, does not allow.

    An integer must be at least 1, and a number that has BOUNDS at least 0, unless the metadata
    have another minimum.
    """
    for option in fields(config):
        name, value, kind = option.name, getattr(config, option.name), option.type
        bounds = {bound: option.metadata[bound] for bound in BOUNDS if bound in option.metadata}
        # An optional value: a union of its kind with None.
        if type(None) in get_args(kind):
            kind = None if value is None else get_args(kind)[0]
        if get_origin(kind) is Literal:
            check_choice(f"{prefix}{name}", value, get_args(kind))
        elif kind is bool:
            check_flag(f"{prefix}{name}", value)
        elif kind is float and bounds:
            bounds = bounds if "above" in bounds else {"minimum": 0} | bounds
            usual = option.default if isinstance(option.default, float) else 0.1
            check_number(f"{prefix}{name}", value, **bounds, example=examples.get(name, usual))
        elif kind is int:
            bounds = {"minimum": 1} | bounds
            usual = option.default if isinstance(option.default, int) else 4
            example = examples.get(name, max(usual, bounds["minimum"]))
            check_integer(f"{prefix}{name}", value, **bounds, example=example)


def import_extra(name: str, *, needed_for: str, extra: str = "corpora") -> Any:  # noqa: ANN401
    """Import a package of an extra, which only some inputs or commands need."""
    try:
        return import_module(name)
    except ImportError as error:
        rule = f"{needed_for} needs the package {name.partition('.')[0]}"
        remedy = f"run pip install 'staircase-attention[{extra}]'"
        raise input_error(rule, "none installed", remedy) from error


def suggestion(word: str, choices: Iterable[str]) -> str:
    """What to write in place of a misspelt word.

    >>> suggestion("algoritm", ["random-walk", "algorithm"])
    "did you mean 'algorithm'?"
    """
    names = list(choices)
    if not names:
        return "leave it out"
    nearest = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"use for example {names[0]!r}"


def one_line(error: Exception) -> str:
    """An error as it stands at the end of a traceback, in one line: KeyError: 'x'."""
    return " ".join(f"{type(error).__name__}: {error}".split())
