"""Typed configs to plain data and back: a dataclass is a dictionary, checked against its types."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from staircase_attention.checks import InputError, check_choice, input_error, suggestion
from staircase_attention.schedules import Schedule, schedule_from_dict, schedule_kind

Config = TypeVar("Config")
# Groups that describe a thing by its kind, name or reference: another one has other settings.
NAMED = ("task", "model", "schedule")
# Settings that by themselves choose another thing, in the order in which they are changed.
IDENTITIES = (
    *("model.kind", "task.kind", "task.reference"),
    *("model.schedule.name", "model.schedule.reference"),
)
SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
EXAMPLES = {int: "8", float: "0.5", bool: "true", str: "'a'"}


def to_plain(value: Any) -> Any:  # noqa: ANN401
    """A config as dictionaries, lists, numbers and text."""
    if isinstance(value, Schedule):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        names = [field.name for field in dataclasses.fields(value)]
        return kind | {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return value


def from_plain(config: type[Config], plain: Any, path: str = "config") -> Config:  # noqa: ANN401
    """The config that `to_plain` wrote, or an error that names the path of the wrong setting."""
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    # Where kind only tells classes apart, it has done so by now.
    over = {"kind"} - fields.keys()
    given = {name: part for name, part in _group(plain, path).items() if name not in over}
    # A field without a default has MISSING for both.
    required = [one.name for one in fields.values() if one.default is one.default_factory]
    for name in (*given, *required):
        if name not in fields:
            raise _unknown(f"{path}.{name}", name, fields)
        if name not in given:
            raise input_error(f"{path}.{name} must be given", "nothing", f"add {name}")
    hints = typing.get_type_hints(config)
    values = {name: convert(hints[name], part, f"{path}.{name}") for name, part in given.items()}
    try:
        return config(**values)
    except InputError as error:
        # A config names its settings by its class, but here they have paths that can be given.
        own, paths = f"{config.__name__}.", f"{path}.".removeprefix("recipe.")
        raise InputError(str(error).replace(own, paths)) from error


def override(plain: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with some settings changed, each named by its path, as training.num_updates.

    A dictionary changes the settings that it names. But a config replaces the old one, and so does
    a task, model or schedule of another kind, name or reference. Chosen by its path, a schedule
    keeps the options that both have. Whether there are such settings `from_plain` will say.
    """
    changed: dict[str, Any] = to_plain(plain)
    # What is chosen comes first: settings that are given with it are its own.
    first = [path for path in IDENTITIES if path in assignments]
    for path in dict.fromkeys([*first, *assignments]):
        *groups, last = path.split(".")
        place, value = changed, assignments[path]
        for group in groups:
            if not isinstance(place.setdefault(group, {}), dict):
                raise _unknown(path, last, [])
            place = place[group]
        if path in IDENTITIES and value != place.get(last):
            kept = {"kind"}
            if "schedule" in groups:
                kept = {field.name for field in dataclasses.fields(schedule_kind(str(value)))}  # type: ignore[arg-type]
            for name in place.keys() - kept:
                del place[name]
        old = place.get(last) if isinstance(value, Mapping) else None
        place[last] = _merge(last, old, to_plain(value))
    return changed


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401
    """The settings in which plain data differ, in words: task.length = 4 in place of 3."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            inner = f"{path}.{name}".removeprefix(".")
            yield from differences(before.get(name), now.get(name), inner)
    elif before != now:
        yield f"{path} = {now} in place of {before}"


def _merge(group: str, old: Any, new: Any) -> Any:  # noqa: ANN401
    """The old settings of a group with the new ones, or the new ones alone for another thing."""
    are_groups = isinstance(old, dict) and isinstance(new, dict)
    identity = ("kind", "name", "reference") if group in NAMED else ()
    if not are_groups or any(key in new and new[key] != old.get(key) for key in identity):
        return new
    return old | {name: _merge(name, old.get(name), value) for name, value in new.items()}


def _unknown(path: str, name: str, known: typing.Iterable[str]) -> InputError:
    rule = "a setting must be one that the recipe has"
    return input_error(rule, repr(path.removeprefix("recipe.")), suggestion(name, known))


def _group(value: Any, path: str) -> Mapping[str, Any]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise input_error(f"{path} must be a group of settings", repr(value), "give its settings")
    return value


def convert(hint: Any, value: Any, path: str) -> Any:  # noqa: ANN401
    """A plain value as the type that a config asks for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or dataclasses.is_dataclass(value):
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        # Configs that can stand in one place have a class variable that tells them apart.
        kinds = {one.kind: one for one in arguments if hasattr(one, "kind")}
        if not kinds:
            [only] = [one for one in arguments if one is not types.NoneType]
            return convert(only, value, path)
        kind = _group(value, path).get("kind")
        check_choice(f"{path}.kind", kind, kinds)
        return from_plain(kinds[kind], value, path)
    if origin is typing.Literal:
        check_choice(path, value, arguments)
        return value
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise input_error(f"{path} must be a list", repr(value), "write it in [brackets]")
        return origin(convert(arguments[0], part, f"{path}[{i}]") for i, part in enumerate(value))
    if origin is not None:
        items = _group(value, path).items()
        return {name: convert(arguments[1], part, f"{path}.{name}") for name, part in items}
    if hint is Schedule:
        return schedule_from_dict(_group(value, path))
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast("type[Any]", hint), value, path)
    # NumPy's numbers are numbers too; True and False are not.
    wider = {int: Integral, float: Real}.get(hint, hint)
    if isinstance(value, wider) and (hint is bool or not isinstance(value, bool)):
        return hint(value)
    received = f"{value!r} ({type(value).__name__})"
    rule, remedy = f"{path} must be {SCALARS[hint]}", f"use for example {EXAMPLES[hint]}"
    raise input_error(rule, received, remedy)
