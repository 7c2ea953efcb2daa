"""Files that appear whole or not at all, and files that come from outside.

Whatever is read passes through `opened`: a regular file, never a device or a pipe. A folder whose
files belong together has a `checksums.json` with the SHA-256 of each of them, which is verified
whenever one of them is used. Folders of earlier versions have none.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from staircase_attention.checks import InputError, input_error, one_line

# Error numbers of a full disk.
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Suffix of files that are being written; a killed process may leave one behind.
PARTIAL = ".partial"
CHECKSUMS = "checksums.json"
# Most bytes of a file that is not tensors or tokens; the largest known tokenizer.json has 33 MB.
MOST_BYTES = 1 << 28
# Where a file that holds its own checksum has it: zeros while the checksum is computed.
SEAL = b'"sha256":"'
NO_SUM = b"0" * 64
# Without these, opening a pipe would wait for its writer. Windows has neither.
OPENING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


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


@contextmanager
def writing(rule: str, path: Path, remedy: str) -> Iterator[None]:
    """Report in one line why something cannot be written."""
    try:
        yield
    except OSError as error:
        raise input_error(rule, f"{path} ({error.strerror})", remedy) from error


@contextmanager
def needing_space(what: str, path: object, remedy: Callable[[], str]) -> Iterator[None]:
    """Report a full disk in one line; `remedy` is asked for when it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        where = f"{path} ({error.strerror})"
        raise OSError(f"{what} needs space on its disk, got none at {where}; {remedy()}") from error


def check_can_write(path: Path, what: str, endings: tuple[str, ...] = ()) -> None:
    """Refuse a file that `write_whole` could not write, or with another ending than these."""
    if endings and path.suffix.lower() not in endings:
        example = f"{path.stem or 'picture'}{endings[0]}"
        rule = f"{what} is saved as {' or '.join(endings)}"
        raise input_error(rule, repr(str(path)), f"name it for example {example}")
    rule = f"{what} must be a file in a folder that can be written to"
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise input_error(rule, f"{path} ({kind})", "name another")
    with writing(rule, path, "name another"):
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
        scratch.open("xb").close()
        scratch.unlink()


def check_can_hold(path: Path, what: str) -> None:
    """Refuse an output folder that cannot be made, before the work for it is done."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".", dir=there))
    except OSError as error:
        received = f"{path} ({there}: {error.strerror})"
        rule = f"{what} must be a folder that can be made"
        raise input_error(rule, received, "name another") from error


def write_json(path: Path, plain: Any) -> None:  # noqa: ANN401
    """Write plain data for people and programs to read."""
    write_whole(path, json_bytes(plain))


def json_bytes(plain: Any) -> bytes:  # noqa: ANN401
    """Plain data as JSON for people and programs to read."""
    return (json.dumps(plain, indent=2) + "\n").encode()


@contextmanager
def opened(path: Path, *, follows_links: bool = True) -> Iterator[BufferedReader]:
    """A regular file to read; anything else is refused, not waited for."""
    flags = OPENING if follows_links else OPENING | getattr(os, "O_NOFOLLOW", 0)
    # Sockets, and links that are not followed, cannot be opened at all.
    refused = input_error("a file must be a regular one", path.name, "replace it by a copy")
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise (refused if error.errno in (errno.ELOOP, errno.ENXIO) else error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused
    with open(descriptor, "rb") as file:
        yield file


def read_file(path: Path, *, most: int | None = MOST_BYTES, follows_links: bool = True) -> bytes:
    """The content of a regular file of at most this size."""
    with opened(path, follows_links=follows_links) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            rule = f"such a file has at most {most:,} bytes"
            raise input_error(rule, f"{path} with {size:,}", "replace it")
        return file.read(size)


def appending(path: Path) -> BinaryIO:
    """A file to append to. A link is refused: in a folder from elsewhere it may lead anywhere."""
    if path.is_symlink():
        raise input_error("a file must be a regular one", f"{path}, a link", "replace it by a copy")
    return path.open("ab")


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file, by its header alone."""
    with opened(path) as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, MOST_BYTES, os.fstat(file.fileno()).st_size))
    tensors = parse_json(header).items()
    return {name: list(one["shape"]) for name, one in tensors if name != "__metadata__"}


def parse_json(content: bytes | str) -> Any:  # noqa: ANN401
    """Plain data from JSON text; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read plain data."""
    return parse_json(read_file(path))


@contextmanager
def as_written(what: str, path: object, remedy: str) -> Iterator[None]:
    """Report in one line whatever turns out wrong while a file's content is taken apart."""
    try:
        yield
    # Content of another shape fails in any of these ways, wherever it is first used.
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error):
            raise
        reason = str(error) if isinstance(error, ValueError) else one_line(error)
        rule = f"{what} must be as it was written"
        raise input_error(rule, f"{path} ({reason})", remedy) from error


def inside(folder: Path, name: str) -> Path:
    """The path of a file that a manifest names, which must lie in its folder."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\0" in name:
        raise input_error("a file's name must stay inside its folder", repr(name), "rename it")
    return folder / name


def read_sums(folder: Path) -> dict[str, list[str]] | None:
    """The checksums that a folder records, for each file one or, during a write, two; or None."""
    path = folder / CHECKSUMS
    if not path.exists() and not path.is_symlink():
        return None
    remedy = f"restore it, or delete it to use {folder} unverified"
    with as_written(CHECKSUMS, path, remedy):
        recorded = {name: [str(one) for one in sums] for name, sums in read_json(path).items()}
        for name in recorded:
            # Whoever packs a run writes a file by each of these names.
            inside(folder, name)
        return recorded


def read_summed(
    folder: Path, name: str, *, most: int | None = MOST_BYTES, follows_links: bool = True
) -> bytes:
    """A file of a folder, if it is what the folder's checksums expect, or if there are none."""
    # Twice: another process may write it, and its checksum, between two reads of ours.
    for _ in range(2):
        content = read_file(folder / name, most=most, follows_links=follows_links)
        sums = read_sums(folder)
        if sums is None or checksum(content) in sums.get(name, ()):
            return content
    raise ValueError(f"{name} differs from {CHECKSUMS}, which may be deleted to use it as it is")


def write_summed(folder: Path, contents: Mapping[str, bytes], also: Iterable[str] = ()) -> None:
    """Write files of a folder with checksums, and record those that others wrote `also`."""
    sums = read_sums(folder)
    if sums is not None:
        new = {name: [checksum(content)] for name, content in contents.items()}
        new |= {name: [sha256_of(folder / name)] for name in also}
        # Old or new: a kill between two writes leaves files that are among what is expected.
        write_json(folder / CHECKSUMS, sums | {k: [*sums.get(k, ()), *new[k]] for k in new})
    for name, content in contents.items():
        write_whole(folder / name, content)
    if sums is not None:
        write_json(folder / CHECKSUMS, sums | new)


def sealed(content: bytes) -> bytes:
    """A file's content with its own checksum in the place that it has for it."""
    place = content.index(SEAL + NO_SUM) + len(SEAL)
    return b"".join((content[:place], checksum(content).encode(), content[place + len(NO_SUM) :]))


def check_seal(content: bytes) -> bool:
    """Refuse content that is not what `sealed` gave; False for content without a checksum."""
    place = content.find(SEAL) + len(SEAL)
    if place < len(SEAL):
        return False
    view, end = memoryview(content), place + len(NO_SUM)
    digest = hashlib.sha256(view[:place])
    digest.update(NO_SUM)
    digest.update(view[end:])
    if view[place:end] != digest.hexdigest().encode():
        raise ValueError("its checksum differs")
    return True


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
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        save(scratch)
        publish_folder(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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


def sha256_of(path: Path) -> str:
    """The checksum of a large file, which is not held in memory."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
