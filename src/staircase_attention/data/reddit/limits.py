"""How much a preparation holds in memory at once, and for how long, whatever the dumps are."""

from dataclasses import dataclass, fields

from staircase_attention.checks import check_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Sizes in bytes, and a time. With these, a preparation of any size takes less than 1 GiB."""

    run_bytes: int = 128 << 20
    """Comments gathered before they are written."""
    run_seconds: int = 10
    """Time after which they are written in any case: what a kill can cost."""
    largest_group_bytes: int = 64 << 20
    """Comments that are made documents of at once, unless a single thread has more."""
    largest_window_bytes: int = 256 << 20
    """What Zstandard may hold of a dump; a larger window, as in `zstd --long=31`, lies in a file in
    the work folder. With `2 << 30` every window is held."""

    def __post_init__(self) -> None:
        """Refuse what is nothing."""
        for field in fields(self):
            example = 10 if field.name == "run_seconds" else 64 << 20
            check_integer(field.name, getattr(self, field.name), minimum=1, example=example)
