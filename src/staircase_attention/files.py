"""Files that appear whole or not at all, JSON, checksums."""

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from staircase_attention.checks import InputError, input_error

# Error numbers of a full disk.
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Suffix of files that are being written; a killed process may leave one behind.
PARTIAL = ".partial"


def write_whole(path: Path, *parts: bytes | bytearray) -> None:
    """Write a file that appears complete, and stays so if the machine stops right after."""
    # A unique name, so that two writers of the same file do not write into each other's.
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with scratch.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        # A power loss drops what is not synced, in any order: the name must not be there before its
        # content, nor before the files beside it that it was written after.
        sync(path.parent)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def check_can_write(path: Path, what: str) -> None:
    """Refuse a file that `write_whole` could not write, before the work for it is done."""
    rule = f"{what} must be a file in a folder that can be written to"
    if path.is_dir():
        raise input_error(rule, f"{path} (a folder)", "name another")
    try:
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
        scratch.open("xb").close()
        scratch.unlink()
    except OSError as error:
        raise input_error(rule, f"{path} ({error.strerror})", "name another") from error


def check_can_hold(path: Path, what: str) -> None:
    """Refuse an output folder that cannot be made, before the work for it is done."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        received = "cannot be written to" if there.is_dir() else "is a file"
        rule = f"{what} must be a folder that can be made"
        raise input_error(rule, f"{path}, where {there} {received}", "name another")


def write_json(path: Path, plain: Any) -> None:  # noqa: ANN401
    """Write plain data for people and programs to read."""
    write_whole(path, (json.dumps(plain, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read plain data."""
    return json.loads(path.read_bytes())


def sync(path: Path) -> None:
    """Make the names in a folder durable, or the content of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, durable; one that is there is left as it is."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync(folder.parent)


def save_folder(path: Path, save: Callable[[Path], object]) -> None:
    """Let a function write the files of a new folder, which appears with all of them."""
    scratch = path.with_name(f".{path.name}{PARTIAL}")
    for old in (path, scratch):
        shutil.rmtree(old, ignore_errors=True)
    scratch.mkdir()
    save(scratch)
    publish_folder(scratch, path)


def publish_folder(scratch: Path, target: Path) -> None:
    """Rename a folder that is complete, so that it appears with all its files or not at all."""
    for path in [*scratch.rglob("*"), scratch]:
        sync(path)
    scratch.rename(target)
    sync(target.parent)


class FolderInUseError(InputError):
    """A folder in which another process works."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[int]:
    """Keep other processes out of a folder; wait for them, or refuse. Gives its descriptor."""
    # Windows has no such module, but must be able to import this one.
    import fcntl

    # The folder itself is locked: no lock file is left behind, and the system unlocks it when this
    # process ends, however it ends.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FolderInUseError(
                f"a folder must be used by one process at a time, got two for {folder}; "
                "wait for the other, or name another folder"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def checksum(content: bytes) -> str:
    """What tells one content from any other."""
    return hashlib.sha256(content).hexdigest()
