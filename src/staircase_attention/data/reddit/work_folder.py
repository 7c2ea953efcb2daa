"""A folder that a killed process leaves in order: whole files, one user at a time."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from staircase_attention.data.checks import refusal
from staircase_attention.data.files import sync_folder

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two preparations apart.
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
"""The end of names of files that are being written; what is left of them counts for nothing."""


def write_whole(path: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Write a file that appears complete or not at all, even if the machine stops."""
    scratch = path.with_name(path.name + PARTIAL)
    with scratch.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read plain data."""
    return json.loads(path.read_bytes())


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
                raise refusal(rule, f"{folder}, which is in use", remedy) from error
        yield
