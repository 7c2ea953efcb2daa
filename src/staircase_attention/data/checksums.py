"""Checksums of files, remembered while these stay as they are."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from staircase_attention.files import write_json


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(paths: Iterable[Path], cache: Path) -> dict[Path, str]:
    """The checksums of many files, on all cores.

    They are kept in the file `cache`, and taken from there for a file whose size and time of
    change are still the same.
    """
    known: Mapping[str, str] = json.loads(cache.read_text()) if cache.exists() else {}
    keys = {path: _key(path) for path in paths}
    unknown = [path for path, key in keys.items() if key not in known]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(unknown, pool.map(sha256_of, unknown), strict=True))
    sums = {path: found.get(path) or known[key] for path, key in keys.items()}
    if found:
        write_json(cache, {keys[path]: value for path, value in sums.items()})
    return sums


def _key(path: Path) -> str:
    status = path.stat()
    return f"{path.absolute()} {status.st_size} {status.st_mtime_ns}"
