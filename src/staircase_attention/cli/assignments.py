"""Settings on the command line, written name=value."""

import ast
import re
from collections.abc import Iterable
from typing import Any

from staircase_attention.checks import input_error

TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)
"""A quoted string, or else a single character."""

LARGEST = 2**63 - 1
"""The largest signed integer of 64 bits."""


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """Settings from name=value words; values are Python literals, or else plain text.

    >>> parse_assignments(["num_passes=4", "order=AABB", "attend_self=true"])
    {'num_passes': 4, 'order': 'AABB', 'attend_self': True}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise input_error(
                "a setting is written name=value", repr(word), "use for example chunk_size=64"
            )
        if name in options:
            raise input_error("a setting is given once", f"{name} twice", "leave one of them out")
        options[name] = parse_value(value)
        check_size(name, options[name])
    return options


def parse_variations(words: Iterable[str]) -> dict[str, list[Any]]:
    """Values to try, from name=value,value,... words.

    >>> parse_variations(["num_passes=2,4", "order=ABAB,AABB", "sizes=[1,2],[3]"])
    {'num_passes': [2, 4], 'order': ['ABAB', 'AABB'], 'sizes': [[1, 2], [3]]}
    """
    varied: dict[str, list[Any]] = {}
    for word in words:
        _, equals, text = word.partition("=")
        parts = split_values(text)
        if not equals or not all(parts):
            raise input_error(
                "a varied setting is written name=value,value",
                repr(word),
                "use for example chunk_size=32,64",
            )
        [path] = parse_assignments([word])
        if path in varied:
            raise input_error("a setting is varied once", f"{path} twice", "join its values")
        varied[path] = [parse_value(part) for part in parts]
        check_size(path, varied[path])
    return varied


def split_values(text: str) -> list[str]:
    """The parts between commas, except for commas within brackets or quotes.

    >>> split_values("[1, 2],{'a': 3, 'b': 4},'x,y',z")
    ['[1, 2]', "{'a': 3, 'b': 4}", "'x,y'", 'z']
    """
    parts, depth = [""], 0
    for token in TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        if token == "," and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def check_size(name: str, value: Any) -> None:  # noqa: ANN401
    """Refuse integers, also in lists, that no tensor can hold."""
    if isinstance(value, list | tuple):
        for part in value:
            check_size(name, part)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise input_error(
            f"{name} must be an integer of at most 64 bits", value, "use a smaller one"
        )


def parse_value(text: str) -> Any:  # noqa: ANN401
    """A number, a flag, None, a list of these, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
