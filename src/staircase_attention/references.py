"""Classes that a recipe names by text: `path/to/file.py:Class` or `package.module:Class`.

Loading a reference runs code. Whoever made a run folder chose that text, so loading a downloaded
run could execute any file within reach. `train` therefore records the code of a recipe in a store
outside of run folders, and a run folder's recipe is built only if its code is there:

* a file counts if its absolute path is recorded with the SHA-256 of its present content;
* a module counts if its name is recorded. Its content is not compared, because installed packages
  are upgraded; but without the record nothing is imported, since the current folder is often on
  Python's search path, and a downloaded folder is a package there.

What recorded code imports in turn is not checked. `trust_code=True` leaves the checks out.
"""

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from staircase_attention.checks import input_error, one_line, suggestion
from staircase_attention.files import checksum, locked, read_json, write_json

Kind = TypeVar("Kind")

# Environment variable: the folder of the store of trusted code.
STATE_HOME = "STAIRCASE_STATE_HOME"
# The reference by which each class was loaded.
_loaded: dict[type, str] = {}


def load_reference(reference: str, kind: type[Kind]) -> type[Kind]:
    """The class that a reference names, which must be a subclass of `kind`.

    A file that has not changed is run once: loading the same reference again gives the same class.
    """
    noun = kind.__name__.lower()
    place, colon, class_name = reference.rpartition(":")
    if not colon:
        rule = f"a {noun} of your own must be path/to/file.py:ClassName or module:ClassName"
        raise input_error(rule, repr(reference), f"add the class, as {reference}:My{kind.__name__}")
    path = reference_file(reference)
    module = _import(place) if path is None else _run_file(path, noun)
    found = getattr(module, class_name, None)
    if found is None:
        rule = f"{place} must define the class that is named after the colon"
        raise input_error(rule, repr(class_name), "check the spelling")
    if not (inspect.isclass(found) and issubclass(found, kind)):
        rule = f"{reference} must be a subclass of {kind.__module__}.{kind.__name__}"
        raise input_error(rule, type(found).__name__, f"write class {class_name}({kind.__name__})")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        rule = f"{reference} must define all that {kind.__name__} leaves open"
        raise input_error(rule, f"one without {', '.join(missing)}", "add it")
    _loaded[found] = reference
    return found


def reference_file(reference: str) -> Path | None:
    """The file of code that a reference names; None for a module.

    >>> reference_file("mine.py:Clock"), reference_file("package.module:Clock")
    (PosixPath('mine.py'), None)
    """
    place = reference.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None


def reference_of(kind: type) -> str:
    """The reference that names a class: the one it was loaded by, or its module's."""
    if kind in _loaded:
        return _loaded[kind]
    place = kind.__module__
    if place == "__main__":
        place = getattr(sys.modules[place], "__file__", None) or place
    return f"{place}:{kind.__qualname__}"


def line_in_own_code(error: Exception) -> str | None:
    """The last line of code named by a reference that an error came through."""
    modules = {kind.__module__ for kind in _loaded}
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in frames
        if frame.f_globals.get("__name__") in modules
    ]
    return own[-1] if own else None


def check_options(name: str, kind: type, options: Mapping[str, object]) -> None:
    """Refuse options that the class does not take, and those that are missing."""
    parameters = inspect.signature(kind).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            rule = f"options of {name} must be among {', '.join(parameters) or 'none'}"
            raise input_error(rule, repr(option), suggestion(option, parameters))
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            rule = f"option {option} of {name} must be given"
            raise input_error(rule, "no value", f"add {option}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        rule = f"module {name} must be one that Python can import"
        raise input_error(rule, one_line(error), "check the name before the colon") from error


def _run_file(path: Path, noun: str) -> ModuleType:
    if not path.is_file():
        rule = f"a {noun} file must exist"
        raise input_error(rule, repr(str(path)), "name its whole path, or call from its folder")
    code = path.read_bytes()
    name = f"staircase_{path.stem}_{checksum(str(path.resolve()).encode() + code)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses look their module up by name while they are being made.
    sys.modules[name] = module
    try:
        # Not by Python's import: a file compiled before, in a folder from a stranger, may be of
        # other code than the one that is trusted.
        exec(compile(code, path, "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        rule = f"{noun} file {path} must run without error"
        raise input_error(rule, one_line(error), "run it with python to see where") from error
    return module


def record_code(recipe: Mapping[str, Any]) -> None:
    """Trust the code that a recipe, as plain data, names."""
    files, modules = _code(recipe)
    if not files and not modules:
        return
    path = _store_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two runs that start together must not write each other's records away.
    with locked(path.parent, wait=True):
        store = _read_store()
        for file in files:
            known = store["files"].setdefault(str(file), [])
            if (content := checksum(file.read_bytes())) not in known:
                known.append(content)
        store["modules"] = sorted({*store["modules"], *modules})
        write_json(path, store)


def require_trusted_code(recipe: Mapping[str, Any], run: Path) -> None:
    """Refuse a run whose recipe, as plain data, names code that this user never trained with."""
    store, unknown = _read_store(), list[tuple[str, str]]()
    files, modules = _code(recipe)
    for file in files:
        known = store["files"].get(str(file), [])
        # Whoever loads a missing file reports it.
        if file.is_file() and checksum(file.read_bytes()) not in known:
            why = "changed since you trained with it" if known else "you never trained with"
            unknown.append(("file", f"{file}, which {why}"))
    unknown += [("module", module) for module in modules if module not in store["modules"]]
    if unknown:
        kind, code = unknown[0]
        rule = f"code named by a run folder must be a {kind} that you trained with"
        remedy = "read it, then allow it with --trust-code (in Python, trust_code=True)"
        raise input_error(rule, f"{code}, from {run}", remedy)


def _code(recipe: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """The files and the modules that a recipe refers to, at any depth of its task and model."""
    files: list[Path] = []
    modules: list[str] = []
    for reference in _references([recipe.get("task"), recipe.get("model")]):
        file = reference_file(reference)
        if file is not None:
            # A link, or a path that leads elsewhere from another working folder, is no other file.
            files.append(file.resolve())
        elif ":" in reference:
            modules.append(reference.rpartition(":")[0])
    return files, modules


def _references(plain: object) -> Iterator[str]:
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            # A name with a colon would be loaded as a reference, too.
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
    # Whoever can damage the store must gain nothing by it.
    with contextlib.suppress(OSError, ValueError, TypeError):
        store |= read_json(_store_path())
    return store
