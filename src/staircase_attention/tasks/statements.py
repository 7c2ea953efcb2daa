"""Drawing and executing the statements of the Algorithm task, for many programs at once.

"Drawn again when not allowed" is done without drawing again: a draw that is repeated until it
is allowed falls on each allowed choice in proportion to its chance in one draw. So the chances
of one draw are written down as whole numbers, those of choices that are not allowed are set to
0, and one draw from what is left has exactly the same distribution.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.int64]
Distribution = Literal["authors", "redraw"]

LOWEST, HIGHEST = 1, 10
UNSET = 0
ASSIGN, INCREMENT, DECREMENT, PRINT, IF = range(5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """One statement of each program, or all of them: arrays of one shape.

    A field that a statement's kind does not use holds a draw that nothing reads.
    """

    kind: Values
    """ASSIGN, INCREMENT, DECREMENT, PRINT or IF."""
    body: Values
    """What an IF guards, ASSIGN, INCREMENT or DECREMENT; for any other statement, its kind."""
    variable: Values
    """What is assigned, counted or printed; for an IF, by its body."""
    constant: Values
    """The value that ASSIGN gives."""
    left: Values
    """The variable that an IF compares."""
    right: Values
    """The variable it is compared with; equal to left where that is a constant."""
    right_constant: Values
    """The constant it is compared with."""
    is_greater: Values
    """1 for >, 0 for <."""
    answer: Values
    """The value that PRINT asks for."""


def chances(values: Values, distribution: Distribution) -> Values:
    """The chance of each choice in one draw, in whole shares; 0 where it is not allowed.

    Values are (num_variables, num_programs), UNSET for a variable that has none. The choices,
    (num_variables * (4 + num_variables), num_programs), are: assign to, increment, decrement,
    print each variable; then an `if` for each pair (left, right), where left with itself
    stands for left with a constant.
    """
    num_variables, num_programs = values.shape
    is_set = values != UNSET
    num_unset = num_variables - is_set.sum(axis=0)
    num_pool = np.maximum(num_variables - num_unset, 1)
    if distribution == "redraw":
        num_pool = np.full_like(num_pool, num_variables)
    # Each of the five kinds gets the same number of shares, divisible in every way needed.
    sizes = range(2, num_variables + 1)
    shares = math.lcm(*sizes, *(2 * size * (size - 1) for size in sizes))
    each = shares // num_pool

    assign = ~is_set * (shares // np.maximum(num_unset, 1))
    increment = (is_set & (values < HIGHEST)) * each
    decrement = (values > LOWEST) * each
    display = is_set * each
    pairs = (is_set[:, None] & is_set[None, :]) * (each // 2 // np.maximum(num_pool - 1, 1))
    diagonal = np.arange(num_variables)
    pairs[diagonal, diagonal] = is_set * (each // 2)
    compare = pairs.reshape(-1, num_programs)
    return np.concatenate([assign, increment, decrement, display, compare])


def choose(generator: np.random.Generator, shares: Values) -> Values:
    """For each column, a row drawn in proportion to its shares."""
    upto = np.cumsum(shares, axis=0)
    chosen: Values = (upto <= generator.integers(upto[-1])).sum(axis=0)
    return chosen


def draw(generator: np.random.Generator, values: Values, distribution: Distribution) -> Statements:
    """The next statement of each program, given the values of its variables."""
    num_variables, num_programs = values.shape
    shares = chances(values, distribution)
    choice = choose(generator, shares)
    guarded = choose(generator, shares[: PRINT * num_variables])
    kind = np.minimum(choice // num_variables, IF)
    body, variable = np.divmod(np.where(kind == IF, guarded, choice), num_variables)
    left, right = np.divmod(np.maximum(choice - IF * num_variables, 0), num_variables)
    constants = generator.integers(LOWEST, HIGHEST + 1, size=(2, num_programs))
    return Statements(
        kind=kind,
        body=body,
        variable=variable,
        constant=constants[0],
        left=left,
        right=right,
        right_constant=constants[1],
        is_greater=generator.integers(2, size=(num_programs,)),
        answer=values[variable, np.arange(num_programs)],
    )


def execute(statements: Statements, values: Values) -> None:
    """Change the values in place; a false condition leaves them alone."""
    programs = np.arange(values.shape[1])
    left = values[statements.left, programs]
    is_constant = statements.left == statements.right
    right = values[statements.right, programs]
    right = np.where(is_constant, statements.right_constant, right)
    holds = np.where(statements.is_greater, left > right, left < right)
    acts = np.where(statements.kind == IF, holds, statements.kind != PRINT)

    old = values[statements.variable, programs]
    counted = old + np.where(statements.body == INCREMENT, 1, -1)
    new = np.where(statements.body == ASSIGN, statements.constant, counted)
    values[statements.variable, programs] = np.where(acts, new, old)


def write_programs(
    generator: np.random.Generator,
    *,
    num_variables: int,
    num_statements: int,
    num_programs: int,
    distribution: Distribution,
) -> Statements:
    """Whole programs: every field is (num_statements, num_programs)."""
    values = np.full((num_variables, num_programs), UNSET)
    drawn = []
    for _ in range(num_statements):
        statements = draw(generator, values, distribution)
        execute(statements, values)
        drawn.append(statements)
    fields = Statements.__dataclass_fields__
    return Statements(
        **{field: np.stack([getattr(one, field) for one in drawn]) for field in fields}
    )
