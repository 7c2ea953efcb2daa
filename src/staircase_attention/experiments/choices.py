"""How this room refuses a name it does not know: the rule, what was received, the nearest."""

import difflib
from collections.abc import Iterable

MOST_NAMES = 8
"""Names that fit in a line; of more only the nearest is told."""


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known.

    >>> require_known("a table", "random-wlak", ["random-walk", "algorithm"])
    Traceback (most recent call last):
    ValueError: a table must be one of random-walk, algorithm, got 'random-wlak'; did you mean \
'random-walk'?
    """
    names = list(known)
    if name in names:
        return
    shown = f"one of {', '.join(names)}" if len(names) <= MOST_NAMES else "one that exists"
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else f"take for example {names[0]!r}"
    raise ValueError(f"{what} must be {shown}, got {name!r}; {remedy}")
