"""How this room refuses a value: the rule, what was received, the way out, in one line."""

import importlib
import math
from typing import Any

from staircase_attention.refusals import RefusedError


def refusal(rule: str, received: object, remedy: str) -> RefusedError:
    """The error that says so.

    >>> refusal("num_lanes must be a whole number of at least 1", 0, "use for example 512")
    RefusedError('num_lanes must be a whole number of at least 1, got 0; use for example 512')
    """
    return RefusedError(f"{rule}, got {received}; {remedy}")


def check_whole_number(name: str, value: object, *, minimum: int, example: int) -> None:
    """Refuse anything but an int of at least minimum (True and False are not numbers)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
        return
    rule = f"{name} must be a whole number of at least {minimum}"
    raise refusal(rule, repr(value), f"use for example {name}={example}")


def check_weight(value: object) -> None:
    """Refuse anything but a finite number above 0."""
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and 0 < value < math.inf:
        return
    remedy = "leave out a source that is not wanted"
    raise refusal("a weight must be a number above 0", repr(value), remedy)


def optional_module(name: str, *, needed_for: str) -> Any:  # noqa: ANN401
    """A package that only some inputs need."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        rule = f"{needed_for} needs the package {package}"
        raise refusal(rule, "none installed", f"run pip install {package}") from error
