"""Algorithm: execute a program line by line and say what it prints."""

from dataclasses import dataclass, replace
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_choice, check_integer
from staircase_attention.tasks.episodes import Episodes
from staircase_attention.tasks.statements import (
    ASSIGN,
    DECREMENT,
    HIGHEST,
    IF,
    INCREMENT,
    LOWEST,
    PRINT,
    Distribution,
    Statements,
    write_programs,
)
from staircase_attention.tasks.task import SplitSizes, Task

VARIABLES = ("x", "y", "z", "p", "r")
CONSTANTS = tuple(str(value) for value in range(LOWEST, HIGHEST + 1))
WORDS = ("PAD", "END", ";", ":", "=", "++", "--", "<", ">", "if", "print")
PAD, END, STOP, THEN, EQUALS, PLUS, MINUS, LESS, GREATER, IF_WORD, PRINT_WORD = range(len(WORDS))
FIRST_CONSTANT = len(WORDS)
FIRST_VARIABLE = FIRST_CONSTANT + len(CONSTANTS)

LONGEST_STATEMENT = 9
"""Tokens of `if x > 3 : y = 4 ;`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm(Task):
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
    num_valid: int = 1_000
    """Validation programs."""
    num_test: int = 1_000
    """Test programs."""

    def __post_init__(self) -> None:
        """Refuse what is no program."""
        most = len(VARIABLES)
        check_integer("num_variables", self.num_variables, minimum=2, maximum=most, example=3)
        check_integer("num_statements", self.num_statements, minimum=1, example=100)
        check_choice("distribution", self.distribution, get_args(Distribution))
        _ = self.split_sizes

    @property
    def split_sizes(self) -> SplitSizes:
        """As the options say."""
        return SplitSizes(train=self.num_train, valid=self.num_valid, test=self.num_test)

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
        """The same language with that many statements."""
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
    """As _tokens: the value printed at the last slot, the `;`, as an output symbol."""
    num_statements, num_programs = programs.kind.shape
    answers = np.full((num_programs, num_statements, LONGEST_STATEMENT), IGNORED, dtype=np.int8)
    answers[:, :, -1] = np.where(programs.kind == PRINT, programs.answer - LOWEST, IGNORED).T
    return answers


def _concatenated(tokens: NDArray[np.int8], answers: NDArray[np.int8]) -> Episodes:
    """Programs without their gaps, each closed by END."""
    num_programs = len(tokens)
    close = ((0, 0), (0, 1))
    tokens = np.pad(tokens.reshape(num_programs, -1), close, constant_values=END)
    answers = np.pad(answers.reshape(num_programs, -1), close, constant_values=IGNORED)
    is_token = tokens != PAD
    lengths = is_token.sum(axis=1)
    return Episodes(
        inputs=tokens[is_token], targets=answers[is_token], starts=np.cumsum(lengths) - lengths
    )
