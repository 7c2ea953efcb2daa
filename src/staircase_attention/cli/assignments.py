"""Words of the form name=value on the command line."""

import ast
from collections.abc import Iterable
from typing import Any


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """Options from name=value words; values are Python literals, or else plain text.

    >>> parse_assignments(["num_passes=4", "order=AABB", "attend_self=true"])
    {'num_passes': 4, 'order': 'AABB', 'attend_self': True}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"an option is written name=value, got {word!r}; for example chunk_size=64"
            )
        if name in options:
            raise ValueError(f"an option is given once, got {name} twice; leave one of them out")
        options[name] = parse_value(value)
    return options


def parse_value(text: str) -> Any:  # noqa: ANN401
    """A number, a flag, None, a list of such, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
