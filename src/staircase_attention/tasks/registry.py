"""Tasks by name: those of this package, and a user's own."""

from staircase_attention.checks import InputError, input_error, one_line, suggestion
from staircase_attention.references import check_options, load_reference
from staircase_attention.tasks import chomsky, state
from staircase_attention.tasks.algorithm import Algorithm
from staircase_attention.tasks.permutations import Permutations
from staircase_attention.tasks.random_walk import RandomWalk
from staircase_attention.tasks.task import Task, task_name

# The tasks of `staircase suite` by their class in the Chomsky hierarchy, then our own.
SUITE: dict[str, tuple[type[Task], ...]] = {
    "regular": (
        *(chomsky.EvenPairs, chomsky.ModularArithmeticSimple),
        *(chomsky.ParityCheck, chomsky.CycleNavigation),
    ),
    "context-free": (
        *(chomsky.StackManipulation, chomsky.ReverseString),
        *(chomsky.ModularArithmetic, chomsky.SolveEquation),
    ),
    "context-sensitive": (
        *(chomsky.DuplicateString, chomsky.MissingDuplicate, chomsky.OddsFirst),
        *(chomsky.BinaryAddition, chomsky.BinaryMultiplication, chomsky.ComputeSqrt),
        chomsky.BucketSort,
    ),
    "state": (state.Dyck, state.SwapProgram, state.Boxes, state.Morris),
}
BUILT_IN: dict[str, type[Task]] = {
    task_name(one): one
    for group in ((RandomWalk, Algorithm, Permutations), *SUITE.values())
    for one in group
}


def load_task(reference: str, **options: object) -> Task:
    """A task by reference, with its options.

    >>> load_task("random-walk", length=100).split_sizes
    SplitSizes(train=None, valid=1000, test=1000)

    Args:
        reference: a name in BUILT_IN, or 'path/to/file.py:ClassName' for a user's task.
        options: the arguments of the class, as Python values.
    """
    if reference in BUILT_IN:
        task_class = BUILT_IN[reference]
    elif ":" in reference or reference.endswith(".py"):
        task_class = load_reference(reference, Task)  # type: ignore[type-abstract]
    else:
        rule = f"a task must be one of {', '.join(BUILT_IN)}, or path/to/file.py:ClassName"
        raise input_error(rule, repr(reference), suggestion(reference, BUILT_IN))
    check_options(reference, task_class, options)
    try:
        return task_class(**options)
    except (InputError, MemoryError):
        raise
    except Exception as error:
        rule = f"options of {reference} must be values that it can use"
        remedy = "check them, and what it does with them"
        raise input_error(rule, one_line(error), remedy) from error
