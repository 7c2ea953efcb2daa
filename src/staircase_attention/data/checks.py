"""Weights, and packages that may not be there."""

import importlib
import math
from typing import Any

from staircase_attention.checks import input_error


def check_weight(value: object) -> None:
    """Refuse anything but a finite number above 0."""
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and 0 < value < math.inf:
        return
    remedy = "leave out a source that is not wanted"
    raise input_error("a weight must be a number above 0", repr(value), remedy)


def optional_module(name: str, *, needed_for: str) -> Any:  # noqa: ANN401
    """A package that only some inputs need."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        rule = f"{needed_for} needs the package {package}"
        raise input_error(rule, "none installed", f"run pip install {package}") from error
