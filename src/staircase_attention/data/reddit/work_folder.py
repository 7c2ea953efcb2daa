"""A folder that one preparation works in at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from staircase_attention.checks import input_error

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two preparations apart.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however that comes."""
    with (folder / "lock").open("wb") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                rule = "a work folder must have one preparation at a time"
                remedy = "wait for the other process, or name another folder"
                raise input_error(rule, f"{folder}, which is in use", remedy) from error
        yield
