"""Typed configs to plain data and back, with every value checked on the way in."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from staircase_attention.schedules import Schedule, schedule_from_dict

Config = TypeVar("Config")


def to_plain(value: Any) -> Any:  # noqa: ANN401
    """A config as dictionaries, lists, numbers and text."""
    if isinstance(value, Schedule):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return kind | {name: to_plain(part) for name, part in fields.items()}
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return value


def from_plain(kind: type[Config], plain: Any, where: str = "config") -> Config:  # noqa: ANN401
    """The config that `to_plain` wrote, or a one-line error that says what is wrong where."""
    _require_group(plain, where)
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {name: value for name, value in plain.items() if name != "kind" or "kind" in fields}
    for name in given:
        if name not in fields:
            raise ValueError(unknown(f"{where}.{name}", name, list(fields)))
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING
        if name not in given and not optional and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{name} must be given, got nothing; add {name}")
    values = {
        name: _convert(hints[name], value, f"{where}.{name}") for name, value in given.items()
    }
    return kind(**values)


def override(plain: dict[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with some settings changed, each named by its path, as training.num_updates."""
    changed: dict[str, Any] = _copy(plain)
    for path, value in assignments.items():
        *groups, last = path.split(".")
        place = changed
        for depth, group in enumerate(groups):
            inner = place.get(group)
            if not isinstance(inner, dict):
                known = [f"{name}" for name, part in place.items() if isinstance(part, dict)]
                raise ValueError(unknown(".".join(groups[: depth + 1]), group, known))
            place = inner
        # A task's options are its own affair: it checks them itself.
        if last not in place and groups[-1:] != ["options"]:
            raise ValueError(unknown(path, last, list(place)))
        place[last] = to_plain(value)
    return changed


def unknown(path: str, name: str, known: list[str]) -> str:
    """What is said of a setting that is not there."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(known)}"
    return f"a setting must be one that the recipe has, got {path!r}; {hint}"


def _copy(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return value


def _convert(hint: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """A plain value as the type that is asked for."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, where)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            choices = ", ".join(repr(choice) for choice in typing.get_args(hint))
            raise ValueError(f"{where} must be one of {choices}, got {value!r}; choose one of them")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where} must be a list, got {value!r}; write it in [brackets]")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, part, f"{where}[{i}]") for i, part in enumerate(value))
    if origin is not None:
        return _require_group(value, where)
    if isinstance(hint, type) and issubclass(hint, Schedule):
        return _schedule(value, where)
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast("type[Any]", hint), value, where)
    return _convert_number(hint, value, where)


def _require_group(value: Any, where: str) -> Mapping[str, Any]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a group of settings, got {value!r}; give its settings")
    return value


def _schedule(value: Any, where: str) -> Schedule:  # noqa: ANN401
    if "name" not in _require_group(value, where):
        raise ValueError(f"{where} must have a name, got {value!r}; add one, as name='staircase'")
    return schedule_from_dict(value)


def _convert_union(hints: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    if value is None and types.NoneType in hints:
        return None
    configs = [hint for hint in hints if dataclasses.is_dataclass(hint)]
    if len(configs) > 1:
        kinds = {config.kind: config for config in configs}  # type: ignore[union-attr]
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind not in kinds:
            raise ValueError(
                f"{where}.kind must be one of {', '.join(kinds)}, got {kind!r}; choose one of them"
            )
        return from_plain(typing.cast("type[Any]", kinds[kind]), value, where)
    [inner] = [hint for hint in hints if hint is not types.NoneType]
    return _convert(inner, value, where)


def _convert_number(hint: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    is_flag = isinstance(value, bool)
    # NumPy's numbers are as good as any.
    if hint is int and isinstance(value, Integral) and not is_flag:
        return int(value)
    if hint is float and isinstance(value, Real) and not is_flag:
        return float(value)
    if type(value) is not hint:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        rule = names.get(hint, getattr(hint, "__name__", str(hint)))
        raise ValueError(
            f"{where} must be {rule}, got {value!r} ({type(value).__name__}); give such a value"
        )
    return value
