"""Which code a run folder may execute: only code that this user has trained with.

A run's config.json may name a task or a schedule by reference, as 'path/to/file.py:Class' or
'package.module:Class'. Whoever made the folder chose that text, so loading a downloaded run could
execute any file within reach. `train` therefore records the code of a recipe in a store outside of
run folders, and a run folder's recipe is built only if its code is there:

* a file counts if its absolute path is recorded with the SHA-256 of its present content;
* a module counts if its name is recorded. Its content is not compared, because installed packages
  are upgraded; but without the record nothing is imported, since the current folder is often on
  Python's search path, and a downloaded folder is a package there.

What recorded code imports in turn is not checked. `trust_code=True` leaves the checks out.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.files import checksum, read_json, write_json
from staircase_attention.references import reference_file

STATE_HOME = "STAIRCASE_STATE_HOME"
"""Environment variable: the folder of the store."""


def record_code(recipe: Mapping[str, Any]) -> None:
    """Trust the code that a recipe, as plain data, names."""
    files, modules = _code(recipe)
    if not files and not modules:
        return
    path = _store_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        store = _read_store()
        for file in files:
            known = store["files"].setdefault(str(file), [])
            if (content := checksum(file.read_bytes())) not in known:
                known.append(content)
        store["modules"] = sorted({*store["modules"], *modules})
        write_json(path, store)


def require_trusted_code(recipe: Mapping[str, Any], run: Path) -> None:
    """Refuse a run whose recipe, as plain data, names code that this user never trained with."""
    store = _read_store()
    files, modules = _code(recipe)
    remedy = "read it, then allow it with --trust-code (in Python, trust_code=True)"
    for file in files:
        known = store["files"].get(str(file), [])
        if not file.is_file() or checksum(file.read_bytes()) in known:
            continue  # Whoever loads a missing file reports it.
        why = "which changed since you trained with it" if known else "which you never trained with"
        raise input_error(
            "code named by a run folder must be a file that you trained with",
            f"{file}, {why}, from {run}",
            remedy,
        )
    for module in modules:
        if module not in store["modules"]:
            raise input_error(
                "code named by a run folder must be a module that you trained with",
                f"{module}, from {run}",
                remedy,
            )


def _code(recipe: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """The files and the modules that a recipe refers to, at any depth of its task and model."""
    files: list[Path] = []
    modules: list[str] = []
    for reference in _references([recipe.get("task"), recipe.get("model")]):
        file = reference_file(reference)
        if file is not None:
            files.append(file.resolve())
        elif ":" in reference:
            modules.append(reference.rpartition(":")[0])
    return files, modules


def _references(plain: object) -> Iterator[str]:
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            if key in ("reference", "name") and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(plain, list | tuple):
        for part in plain:
            yield from _references(part)


def _store_path() -> Path:
    """Where the store is: in $STAIRCASE_STATE_HOME, or where the system keeps a user's state."""
    if chosen := os.environ.get(STATE_HOME):
        return Path(chosen) / "trusted_code.json"
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "staircase-attention" / "trusted_code.json"


def _read_store() -> dict[str, Any]:
    """The store; a damaged one trusts nothing."""
    store: dict[str, Any] = {"files": {}, "modules": []}
    with contextlib.suppress(OSError, ValueError, TypeError):
        store |= read_json(_store_path())
    return store


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time read and write the store."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
