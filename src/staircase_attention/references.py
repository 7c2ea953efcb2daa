"""Classes that a recipe names by text: `path/to/file.py:Class` or `package.module:Class`.

Loading a reference runs code. Whoever reads one from a file that somebody else may have written
must first ask whether the user trusts `reference_file(reference)`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from staircase_attention.checks import input_error, one_line, suggestion

Kind = TypeVar("Kind")

_loaded: dict[type, str] = {}
"""The reference by which each class was loaded."""


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
        remedy = f"write class {class_name}({kind.__name__})"
        raise input_error(rule, type(found).__name__, remedy)
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
            raise input_error(
                f"option {option} of {name} must be given", "no value", f"add {option}"
            )


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        rule = f"module {name} must be one that Python can import"
        raise input_error(rule, one_line(error), "check the name before the colon") from error


def _run_file(path: Path, noun: str) -> ModuleType:
    if not path.is_file():
        rule = f"a {noun} file must exist"
        raise input_error(rule, repr(str(path)), "check the path before the colon")
    code = str(path.resolve()).encode() + path.read_bytes()
    name = f"staircase_{path.stem}_{hashlib.sha256(code).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while they are being made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        rule = f"{noun} file {path} must run without error"
        raise input_error(rule, one_line(error), "run it with python to see where") from error
    return module
