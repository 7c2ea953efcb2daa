"""Words that a user may have misspelt, and errors in one line."""

import difflib
from collections.abc import Iterable

from staircase_attention.refusals import refusal


def one_line(error: Exception) -> str:
    """An error as it stands at the end of a traceback, in one line.

    >>> one_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of the choices, and point at the nearest."""
    choices = tuple(choices)
    if value not in choices:
        raise refusal(
            f"{name} must be one of {', '.join(choices)}",
            repr(value),
            suggestion(str(value), choices),
        )


def suggestion(word: str, choices: Iterable[str]) -> str:
    """What to write instead of a misspelt word.

    >>> suggestion("algoritm", ["random-walk", "algorithm"])
    "did you mean 'algorithm'?"
    """
    choices = tuple(choices)
    if not choices:
        return "leave it out"
    nearest = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"use for example {choices[0]!r}"
