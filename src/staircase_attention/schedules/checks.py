"""Checks of what a user writes into a schedule or a config: rule, received value, way out."""

from collections.abc import Collection
from typing import Any


def require_integer(owner: object, name: str, *, at_least: int, remedy: str) -> None:
    """Refuse an attribute that is not a whole number, or is one too small."""
    value: Any = getattr(owner, name)
    label = f"{type(owner).__name__}.{name}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{label} must be a whole number, got {value!r} ({type(value).__name__}); {remedy}"
        )
    if value < at_least:
        raise ValueError(f"{label} must be at least {at_least}, got {value}; {remedy}")


def require_choice(owner: object, name: str, choices: Collection[Any]) -> None:
    """Refuse an attribute that is none of the known choices."""
    value: Any = getattr(owner, name)
    if not any(value is choice or value == choice for choice in choices):
        known = " or ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"{type(owner).__name__}.{name} must be {known}, got {value!r}; choose one of these"
        )


def require_flag(owner: object, name: str) -> None:
    """Refuse an attribute that is not True or False."""
    value: Any = getattr(owner, name)
    if not isinstance(value, bool):
        raise TypeError(
            f"{type(owner).__name__}.{name} must be True or False, "
            f"got {value!r} ({type(value).__name__}); write one of these"
        )
