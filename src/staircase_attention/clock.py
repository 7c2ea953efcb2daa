"""Durations in a readable form."""


def clock(seconds: float) -> str:
    """Seconds as minutes or hours.

    >>> clock(125), clock(3725)
    ('02:05', '1:02:05')
    """
    whole = round(seconds)
    minutes = f"{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes  # noqa: PLR2004
