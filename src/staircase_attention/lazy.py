"""Packages that import their names on first use, so that a command loads only what it needs."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__all__`, `__getattr__` and `__dir__` (PEP 562), from the imports of its stub.

    The stub is the file `__init__.pyi`, which type checkers and editors read as well.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        name.name: line.module
        for line in stub.body
        if isinstance(line, ast.ImportFrom) and line.module
        for name in line.names
    }

    def find(name: str) -> Any:  # noqa: ANN401
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return sorted(homes), find, lambda: sorted({*homes, *vars(sys.modules[package])})
