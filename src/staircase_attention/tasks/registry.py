"""Finding a task by its name, or in a user's own file."""

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from staircase_attention.checks import InputError, input_error, one_line, suggestion
from staircase_attention.tasks.algorithm import Algorithm
from staircase_attention.tasks.permutations import Permutations
from staircase_attention.tasks.random_walk import RandomWalk
from staircase_attention.tasks.task import Task, task_name

BUILT_IN: dict[str, type[Task]] = {
    task_name(task_class): task_class for task_class in (RandomWalk, Algorithm, Permutations)
}


def load_task(reference: str, **options: object) -> Task:
    """A task by reference, with its options.

    >>> load_task("random-walk", length=100).split_sizes
    SplitSizes(train=None, valid=1000, test=1000)

    Args:
        reference: a name in BUILT_IN, or 'path/to/file.py:ClassName' for a task of one's own.
        options: what the class takes, as Python values.
    """
    task_class = find_task(reference)
    _check_options(reference, task_class, options)
    try:
        return task_class(**options)
    except (InputError, MemoryError):
        raise
    except Exception as error:
        rule = f"options of {reference} must be values that it can use"
        raise input_error(
            rule, one_line(error), "check them, and what it does with them"
        ) from error


def find_task(reference: str) -> type[Task]:
    """The class that a reference names."""
    if reference in BUILT_IN:
        return BUILT_IN[reference]
    path, colon, class_name = reference.rpartition(":")
    if colon and path.endswith(".py"):
        return _find_class(Path(path), class_name)
    names = ", ".join(BUILT_IN)
    rule = f"a task must be one of {names}, or path/to/file.py:ClassName"
    remedy = f"add the class, as {reference}:MyTask"
    if not reference.endswith(".py"):
        remedy = suggestion(reference, BUILT_IN)
    raise input_error(rule, repr(reference), remedy)


def _find_class(path: Path, class_name: str) -> type[Task]:
    found = getattr(_run_file(path), class_name, None)
    if found is None:
        rule = f"{path} must define the class that is named after the colon"
        raise input_error(rule, repr(class_name), "check the spelling")
    if not (inspect.isclass(found) and issubclass(found, Task)):
        rule = f"{path}:{class_name} must be a subclass of staircase_attention.tasks.Task"
        raise input_error(rule, type(found).__name__, f"write class {class_name}(Task)")
    if missing := sorted(found.__abstractmethods__):
        rule = f"{path}:{class_name} must define all that Task leaves open"
        raise input_error(rule, f"one without {', '.join(missing)}", "add it, see docs/tasks.md")
    return found


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise input_error(
            "a task file must exist", repr(str(path)), "check the path before the colon"
        )
    spec = importlib.util.spec_from_file_location(f"staircase_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while they are being made.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        rule = f"task file {path} must run without error"
        raise input_error(rule, one_line(error), "run it with python to see where") from error
    return module


def _check_options(reference: str, task_class: type[Task], options: dict[str, object]) -> None:
    parameters = inspect.signature(task_class).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            rule = f"options of {reference} must be among {', '.join(parameters) or 'none'}"
            raise input_error(rule, repr(option), suggestion(option, parameters))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            rule = f"option {name} of {reference} must be given"
            raise input_error(rule, "no value", f"add {name}")
