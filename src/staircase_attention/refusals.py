"""How a value is refused in whichever room: rule, what was received, the way out, in one line."""


class RefusedError(ValueError):
    """Something that a user can get wrong, said in full, and that would go wrong again."""


def refusal(rule: str, received: object, remedy: str) -> RefusedError:
    """The error that says so.

    >>> refusal("length must be a whole number of at least 1", 0, "use for example 400")
    RefusedError('length must be a whole number of at least 1, got 0; use for example 400')
    """
    return RefusedError(f"{rule}, got {received}; {remedy}")


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
