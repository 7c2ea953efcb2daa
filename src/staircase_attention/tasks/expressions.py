"""Arithmetic with brackets, of the Chomsky-hierarchy study: two deterministic context-free tasks.

An expression of 1 to 4 symbols is d, -d, (d) or (-d) with a digit d. A longer one is (left op
right), where the length of `left` is drawn uniformly. All expressions of one length are drawn at
once: first those at the top, then both their parts, and so on.
"""

import numpy as np

from staircase_attention.tasks.strings import DIGITS, MODULUS, Drawn, StringTask
from staircase_attention.tasks.task import Integers

PLUS, MINUS, TIMES, OPEN, CLOSE, UNKNOWN, EQUALS = range(MODULUS, MODULUS + 7)
LONGEST_LEAF = 4


def draw_expressions(
    generator: np.random.Generator, length: int, count: int, num_signs: int
) -> Drawn:
    """(count, length) expressions with the first signs of + - *, and (count, 1) values mod 5."""
    tokens = generator.integers(MODULUS, size=(count, length))
    # The value of the expression that starts at each column; digits are their own.
    values, levels = tokens.copy(), []
    row, start, size = np.arange(count), np.zeros(count, dtype=int), np.full(count, length)
    while row.size:
        is_leaf = size <= LONGEST_LEAF
        _write_leaves(tokens, values, row[is_leaf], start[is_leaf], size[is_leaf])
        row, start, size = row[~is_leaf], start[~is_leaf], size[~is_leaf]
        left = generator.integers(1, size - 3)
        sign = generator.integers(PLUS, PLUS + num_signs, size=row.size)
        middle = start + 1 + left
        tokens[row, start], tokens[row, middle] = OPEN, sign
        tokens[row, start + size - 1] = CLOSE
        levels.append((row, start, middle, sign))
        # Both parts: their rows, first columns and sizes.
        row, start = np.concatenate([row, row]), np.concatenate([start + 1, middle + 1])
        size = np.concatenate([left, size - 3 - left])
    for row, start, middle, sign in reversed(levels):
        left, right = values[row, start + 1], values[row, middle + 1]
        result = np.choose(sign - PLUS, [left + right, left - right, left * right])
        values[row, start] = result % MODULUS
    return tokens, values[:, :1]


def _write_leaves(
    tokens: Integers, values: Integers, row: Integers, start: Integers, size: Integers
) -> None:
    """Turn the digits of short expressions into d, -d, (d) and (-d), and note their values."""
    has_brackets, is_negative = size > 2, size % 2 == 0  # noqa: PLR2004
    digit = start + has_brackets + is_negative
    value = tokens[row, digit]
    values[row, start] = np.where(is_negative, -value, value) % MODULUS
    tokens[row[is_negative], digit[is_negative] - 1] = MINUS
    row, start, size = row[has_brackets], start[has_brackets], size[has_brackets]
    tokens[row, start], tokens[row, start + size - 1] = OPEN, CLOSE


class ModularArithmetic(StringTask):
    """The value of an expression with brackets, modulo 5.

    START ( ( 3 ) * ( 4 - - 1 ) ) ? [0]
    """

    letters = (*DIGITS, "+", "-", "*", "(", ")")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        return draw_expressions(generator, length, count, num_signs=3)


class SolveEquation(StringTask):
    """The digit z that makes an equation modulo 5 true; without `*`, there is exactly one.

    START ( ( 3 - - 0 ) + z ) = 4 ? [1]
    """

    letters = (*DIGITS, "+", "-", "*", "(", ")", "z", "=")
    answers = DIGITS
    fewest = 3

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        left, value = draw_expressions(generator, length - 2, count, num_signs=2)
        # Of the digits, the one with the highest random number.
        luck = generator.random(left.shape) * (left < MODULUS)
        place = luck.argmax(axis=1)[:, None]
        answers = np.take_along_axis(left, place, axis=1)
        np.put_along_axis(left, place, UNKNOWN, axis=1)
        return np.hstack([left, np.full_like(value, EQUALS), value]), answers
