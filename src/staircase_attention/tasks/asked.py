"""What a task gives, its members asked one by one: a mistake in its class is told in one line."""

import reprlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from staircase_attention.batches import IGNORED
from staircase_attention.checks import InputError, check_integer, input_error, one_line
from staircase_attention.tasks.episodes import Episodes
from staircase_attention.tasks.task import SplitSizes, Task

Given = TypeVar("Given")


def sizes_of(task: Task) -> SplitSizes:
    """The sizes of a task's splits, refused where they are something else."""
    sizes: object = _asked(task, "split_sizes", lambda: task.split_sizes)
    if not isinstance(sizes, SplitSizes):
        rule = f"split_sizes of {type(task).__name__} must be SplitSizes"
        raise input_error(
            rule, _shown(sizes), "return for example SplitSizes(valid=1000, test=1000)"
        )
    return sizes


def checked_episodes(task: Task, generator: np.random.Generator, num_episodes: int) -> Episodes:
    """What a task generates, refused where it breaks the task's own word."""
    num_inputs = _asked(task, "input_symbols", lambda: task.num_inputs)
    num_outputs = _asked(task, "output_symbols", lambda: task.num_outputs)
    closing_symbol = _asked(task, "closing_symbol", lambda: task.closing_symbol)
    if closing_symbol is not None:
        last = num_inputs - 1
        check_integer("closing_symbol", closing_symbol, minimum=0, maximum=last, example=last)
    episodes: object = _asked(task, "generate", lambda: task.generate(generator, num_episodes))
    if not isinstance(episodes, Episodes):
        rule = f"generate of {type(task).__name__} must return Episodes"
        remedy = "return for example Episodes.from_grid(inputs, targets)"
        raise input_error(rule, _shown(episodes), remedy)
    if len(episodes) != num_episodes:
        rule = f"generate of {task.name} must give the {num_episodes} episodes asked for"
        raise input_error(rule, len(episodes), "let Episodes.starts have one entry an episode")
    for name, symbols, lowest, count in (
        ("input", episodes.inputs, 0, num_inputs),
        ("output", episodes.targets, IGNORED, num_outputs),
    ):
        if symbols.min() < lowest or symbols.max() >= count:
            rule = f"every {name} of {task.name} must be from {lowest} to {count - 1}"
            received = f"{symbols.min()} to {symbols.max()}"
            raise input_error(rule, received, f"name every symbol in {name}_symbols")
    return episodes


def with_length(task: Task, length: int) -> Task:
    """The task with episodes of another length, which it may refuse by a ValueError."""
    found: object = _asked(task, "with_length", lambda: task.with_length(length), ValueError)
    if not isinstance(found, Task):
        rule = f"with_length of {type(task).__name__} must return a task"
        raise input_error(rule, _shown(found), "return for example replace(self, length=length)")
    return found


def _asked(
    task: Task, member: str, ask: Callable[[], Given], its_own: type[Exception] = InputError
) -> Given:
    """What a member of a task gives; a mistake in its code is told in one line."""
    try:
        return ask()
    except (its_own, MemoryError):
        raise
    except Exception as error:
        rule = f"{member} of {type(task).__name__} must run without error"
        # The first two frames are this one and `ask`.
        frames = traceback.extract_tb(error.__traceback__)[2:]
        place = f" (line {frames[0].lineno} of {Path(frames[0].filename).name})" if frames else ""
        raise input_error(rule, f"{one_line(error)}{place}", "correct it in the class") from error


def _shown(value: object) -> str:
    """A value that is not what it should be."""
    return "None" if value is None else f"{reprlib.repr(value)} of type {type(value).__name__}"
