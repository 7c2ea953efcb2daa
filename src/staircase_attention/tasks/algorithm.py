"""Algorithm: execute a program line by line and predict what it prints.

Statements are drawn for many programs at once. A draw that is repeated until it is allowed selects
each allowed choice in proportion to its chance in one draw. So the chances of one draw are written
as integers, those of forbidden choices are set to 0, and one draw from the rest has exactly the
same distribution.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np

from staircase_attention.batches import IGNORED
from staircase_attention.tasks.task import Episodes, Integers, SizedTask

Distribution = Literal["authors", "redraw"]

LOWEST, HIGHEST = 1, 10
UNSET = 0
ASSIGN, INCREMENT, DECREMENT, PRINT, IF = range(5)

VARIABLES = ("x", "y", "z", "p", "r")
CONSTANTS = tuple(str(value) for value in range(LOWEST, HIGHEST + 1))
WORDS = ("PAD", "END", ";", ":", "=", "++", "--", "<", ">", "if", "print")
PAD, END, STOP, THEN, EQUALS, PLUS, MINUS, LESS, GREATER, IF_WORD, PRINT_WORD = range(len(WORDS))
FIRST_CONSTANT = len(WORDS)
FIRST_VARIABLE = FIRST_CONSTANT + len(CONSTANTS)

# Tokens of `if x > 3 : y = 4 ;`.
LONGEST_STATEMENT = 9


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
    `distribution` chooses the variables from which `++`, `--`, `print` and `if` draw.

    `END` closes a program. `PAD` occurs in no program; it pads evaluation lanes. The paper takes
    the task from Fan et al. (2020); docs/tasks.md has the details.

    >>> task = Algorithm(num_statements=6)
    >>> print(task.show(*task.generate(np.random.default_rng(11), 1)[0]))
    x = 8 ; x -- ; x ++ ; z = 10 ; if x < z : y = 2 ; print z ; [10] END
    """

    num_variables: int = field(default=3, metadata={"minimum": 2, "maximum": len(VARIABLES)})
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
        """Draw independent programs, all of them statement by statement."""
        # [variables, programs]: one step of all programs is contiguous.
        values = np.full((self.num_variables, num_episodes), UNSET)
        shape = (num_episodes, self.num_statements, LONGEST_STATEMENT)
        tokens, targets = np.empty(shape, dtype=np.int8), np.full(shape, IGNORED, dtype=np.int8)
        for number in range(self.num_statements):
            statement = _next_statement(generator, values, self.distribution)
            tokens[:, number], targets[:, number, -1] = statement
        # Remove the padding, and close each program with END.
        close = ((0, 0), (0, 1))
        tokens = np.pad(tokens.reshape(num_episodes, -1), close, constant_values=END)
        targets = np.pad(targets.reshape(num_episodes, -1), close, constant_values=IGNORED)
        return Episodes.from_grid(tokens, targets, is_token=tokens != PAD)


def _next_statement(
    generator: np.random.Generator, values: Integers, distribution: Distribution
) -> tuple[Integers, Integers]:
    """Draw the next statement of each program, and execute it: `values` change in place.

    Returns:
        (num_programs, LONGEST_STATEMENT) its tokens, PAD where it has none; and (num_programs,)
        the answer at its `;`, IGNORED unless it prints.
    """
    num_variables, num_programs = values.shape
    programs = np.arange(num_programs)
    shares = chances(values, distribution)
    # Everything is drawn for every program, needed or not, so that a seed fixes the programs
    # whatever their statements are.
    choice = _choose(generator, shares)
    guarded = _choose(generator, shares[: PRINT * num_variables])
    constant, compared = generator.integers(LOWEST, HIGHEST + 1, size=(2, num_programs))
    is_greater = generator.integers(2, size=(num_programs,))
    kind = np.minimum(choice // num_variables, IF)
    is_if, is_print = kind == IF, kind == PRINT
    # The body is what an `if` guards; for any other statement, the statement itself.
    body, variable = np.divmod(np.where(is_if, guarded, choice), num_variables)
    left, right = np.divmod(np.maximum(choice - IF * num_variables, 0), num_variables)

    old, left_value = values[variable, programs], values[left, programs]
    is_assign = body == ASSIGN
    # A pair of a variable with itself stands for a comparison with a constant.
    right_value = np.where(left == right, compared, values[right, programs])
    holds = np.where(is_greater, left_value > right_value, left_value < right_value)
    new = np.where(is_assign, constant, old + np.array([0, 1, -1, 0])[body])
    values[variable, programs] = np.where(holds | ~is_if, new, old)

    name, first_value = FIRST_VARIABLE + variable, FIRST_CONSTANT - LOWEST
    right_word = np.where(left == right, first_value + compared, FIRST_VARIABLE + right)
    slots = [
        np.where(is_if, IF_WORD, PAD),
        np.where(is_if, FIRST_VARIABLE + left, PAD),
        np.where(is_if, LESS + is_greater, PAD),
        np.where(is_if, right_word, PAD),
        np.where(is_if, THEN, PAD),
        np.where(is_print, PRINT_WORD, name),
        np.where(is_print, name, np.array([EQUALS, PLUS, MINUS, PAD])[body]),
        np.where(is_assign, first_value + constant, PAD),
        np.full(num_programs, STOP),
    ]
    return np.stack(slots, axis=1), np.where(is_print, old - LOWEST, IGNORED)


def chances(values: Integers, distribution: Distribution) -> Integers:
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


def _choose(generator: np.random.Generator, shares: Integers) -> Integers:
    """Draw a row for each column, in proportion to its shares."""
    # The number of cumulated shares up to a uniform draw is the chosen row.
    upto = np.cumsum(shares, axis=0)
    chosen: Integers = (upto <= generator.integers(upto[-1])).sum(axis=0)
    return chosen
