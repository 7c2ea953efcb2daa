"""Algorithm: execute a program line by line and predict what it prints.

Statements are drawn for many programs at once. A draw that is repeated until it is allowed selects
each allowed choice in proportion to its chance in one draw. So the chances of one draw are written
as integers, those of forbidden choices are set to 0, and one draw from the rest has exactly the
same distribution.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_choice, check_integer
from staircase_attention.tasks.episodes import Episodes
from staircase_attention.tasks.task import SizedTask

Distribution = Literal["authors", "redraw"]
Values = NDArray[np.int64]

LOWEST, HIGHEST = 1, 10
UNSET = 0
ASSIGN, INCREMENT, DECREMENT, PRINT, IF = range(5)

VARIABLES = ("x", "y", "z", "p", "r")
CONSTANTS = tuple(str(value) for value in range(LOWEST, HIGHEST + 1))
WORDS = ("PAD", "END", ";", ":", "=", "++", "--", "<", ">", "if", "print")
PAD, END, STOP, THEN, EQUALS, PLUS, MINUS, LESS, GREATER, IF_WORD, PRINT_WORD = range(len(WORDS))
FIRST_CONSTANT = len(WORDS)
FIRST_VARIABLE = FIRST_CONSTANT + len(CONSTANTS)

LONGEST_STATEMENT = 9
"""Tokens of `if x > 3 : y = 4 ;`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm(SizedTask):
    """Programs over a few variables with values 1 to 10, executed from top to bottom.

    Each statement is one of five kinds:

    - `x = 3 ;` sets a variable that is not set yet;
    - `x ++ ;` if x is set and below 10, and `x -- ;` if x is set and above 1;
    - `print x ;` asks for the value of x, which must be set, at the `;`;
    - `if x > 3 :` or `if x < y :` guards one statement of the first three kinds, which is
      executed only if the comparison holds. The variables are set, and they differ.

    A kind is drawn uniformly, then its variables and constants. If the statement is not allowed,
    the kind and everything else is drawn again. The guarded statement is drawn in the same way.
    `distribution` says from which variables `++`, `--`, `print` and `if` draw.

    `END` closes a program. `PAD` occurs in no program; it pads evaluation lanes. The paper takes
    the task from Fan et al. (2020); docs/tasks.md has the details.

    >>> task = Algorithm(num_statements=6)
    >>> print(task.show(*task.generate(np.random.default_rng(11), 1)[0]))
    x = 8 ; x -- ; x ++ ; z = 10 ; if x < z : y = 2 ; print z ; [10] END
    """

    num_variables: int = 3
    """How many of x, y, z, p and r occur; the paper has 3, Fan et al. also 5."""
    num_statements: int = 100
    """Statements in a program; an `if` and what it guards are one."""
    distribution: Distribution = "authors"
    """'authors': `++`, `--`, `print` and `if` draw only from the variables that are set, as the
    generator of Fan et al. does. 'redraw': they draw from all variables, and a draw that hits an
    unset one is repeated, so that variables are set earlier: of the second statements 48% are
    assignments, not 23.5%. Tables made before this option existed used 'redraw'."""
    num_train: int | None = 10_000
    """Training programs; None for endless fresh ones."""

    def __post_init__(self) -> None:
        """Check the options."""
        most = len(VARIABLES)
        check_integer("num_variables", self.num_variables, minimum=2, maximum=most, example=3)
        check_integer("num_statements", self.num_statements, minimum=1, example=100)
        check_choice("distribution", self.distribution, get_args(Distribution))
        SizedTask.__post_init__(self)

    @property
    def input_symbols(self) -> tuple[str, ...]:
        """The words, the constants, the variables: 24 symbols for 3 variables."""
        return WORDS + CONSTANTS + VARIABLES[: self.num_variables]

    @property
    def output_symbols(self) -> tuple[str, ...]:
        """The values 1 to 10."""
        return CONSTANTS

    @property
    def closing_symbol(self) -> int:
        """END."""
        return END

    def with_length(self, length: int) -> Self:
        """The same language with another number of statements."""
        return replace(self, num_statements=length)

    def generate(self, generator: np.random.Generator, num_episodes: int) -> Episodes:
        """Independent programs."""
        programs = write_programs(
            generator,
            num_variables=self.num_variables,
            num_statements=self.num_statements,
            num_programs=num_episodes,
            distribution=self.distribution,
        )
        return _concatenated(_tokens(programs), _answers(programs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """One statement of each program, or all of them: arrays of one shape.

    A field that a kind does not use holds a draw that is ignored.
    """

    kind: Values
    """ASSIGN, INCREMENT, DECREMENT, PRINT or IF."""
    body: Values
    """What an IF guards, ASSIGN, INCREMENT or DECREMENT; for any other statement, its kind."""
    variable: Values
    """The variable that is assigned, changed or printed; for an IF, by its body."""
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
    """The value that PRINT shows."""


def chances(values: Values, distribution: Distribution) -> Values:
    """The chance of each choice in one draw, as integer shares; 0 where it is not allowed.

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
    """Change the values in place, unless a condition is false."""
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


def _tokens(programs: Statements) -> NDArray[np.int8]:
    """(num_programs, num_statements, LONGEST_STATEMENT), PAD where a statement has no token."""
    is_if = programs.kind == IF
    is_print = programs.kind == PRINT
    is_assign = programs.body == ASSIGN
    variable = FIRST_VARIABLE + programs.variable
    right = np.where(
        programs.left == programs.right,
        FIRST_CONSTANT - LOWEST + programs.right_constant,
        FIRST_VARIABLE + programs.right,
    )
    operator = np.select(
        [is_assign, programs.body == INCREMENT, programs.body == DECREMENT],
        [EQUALS, PLUS, MINUS],
        variable,
    )
    slots = [
        np.where(is_if, IF_WORD, PAD),
        np.where(is_if, FIRST_VARIABLE + programs.left, PAD),
        np.where(is_if, LESS + programs.is_greater, PAD),
        np.where(is_if, right, PAD),
        np.where(is_if, THEN, PAD),
        np.where(is_print, PRINT_WORD, variable),
        operator,
        np.where(is_assign, FIRST_CONSTANT - LOWEST + programs.constant, PAD),
        np.full_like(variable, STOP),
    ]
    return np.stack([slot.T for slot in slots], axis=-1, dtype=np.int8, casting="unsafe")


def _answers(programs: Statements) -> NDArray[np.int8]:
    """The same shape: the printed value, as an output symbol, at the `;`; IGNORED elsewhere."""
    num_statements, num_programs = programs.kind.shape
    answers = np.full((num_programs, num_statements, LONGEST_STATEMENT), IGNORED, dtype=np.int8)
    answers[:, :, -1] = np.where(programs.kind == PRINT, programs.answer - LOWEST, IGNORED).T
    return answers


def _concatenated(tokens: NDArray[np.int8], answers: NDArray[np.int8]) -> Episodes:
    """Remove the padding, and close each program with END."""
    num_programs = len(tokens)
    close = ((0, 0), (0, 1))
    tokens = np.pad(tokens.reshape(num_programs, -1), close, constant_values=END)
    answers = np.pad(answers.reshape(num_programs, -1), close, constant_values=IGNORED)
    is_token = tokens != PAD
    lengths = is_token.sum(axis=1)
    return Episodes(
        inputs=tokens[is_token], targets=answers[is_token], starts=np.cumsum(lengths) - lengths
    )
