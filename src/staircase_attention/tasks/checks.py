"""How this room refuses a value: the rule, what was received, the way out, in one line."""

import difflib
from collections.abc import Iterable

from staircase_attention.refusals import RefusedError


def refusal(rule: str, received: object, remedy: str) -> RefusedError:
    """The error for something a user can get wrong.

    >>> refusal("length must be a whole number of at least 1", 0, "use for example 400")
    RefusedError('length must be a whole number of at least 1, got 0: use for example 400')
    """
    return RefusedError(f"{rule}, got {received}: {remedy}")


def one_line(error: Exception) -> str:
    """An error as it stands at the end of a traceback, in one line.

    >>> one_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_whole_number(
    name: str, value: object, *, minimum: int, maximum: int | None = None, example: int
) -> None:
    """Refuse anything but an int from minimum to maximum (True and False are not numbers)."""
    if isinstance(value, int) and not isinstance(value, bool):
        highest = value if maximum is None else maximum
        if minimum <= value <= highest:
            return
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    rule = f"{name} must be a whole number {bounds}"
    raise refusal(rule, repr(value), f"use for example {name}={example}")


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
