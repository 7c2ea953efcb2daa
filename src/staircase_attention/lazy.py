"""Packages that import their names on first use, so that a command loads only what it needs."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """A module's `__getattr__` (PEP 562) that finds these names in these submodules.

    The package imports the same names under TYPE_CHECKING, for type checkers and editors.
    """
    # Once per package, so that an unknown name is refused without importing anything.
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:  # noqa: ANN401
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
