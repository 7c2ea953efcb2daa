"""The fifteen tasks of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., 2023)."""

import math
import operator
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from staircase_attention.tasks.strings import BITS, DIGITS, Drawn, StringTask, ended, from_top
from staircase_attention.tasks.task import Integers

MODULUS = len(DIGITS)
# Letters of arithmetic, after the digits.
PLUS, MINUS, TIMES, OPEN, CLOSE, UNKNOWN, EQUALS = range(MODULUS, MODULUS + 7)
LONGEST_LEAF = 4
# Letters after `a` and `b`, and after `0` and `1`.
POP = 2
SIGN = 2

# Regular: a finite automaton solves each of them.


class EvenPairs(StringTask):
    """Whether `ab` and `ba` together occur an even number of times: first and last letter agree.

    START b b b ? [even]
    """

    answers = ("odd", "even")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, 1 * (strings[:, :1] == strings[:, -1:])


class ModularArithmeticSimple(StringTask):
    """The value of digits joined by `+`, `-` and `*`, modulo 5; `*` binds tighter.

    The length is odd: that of an even length is one less.

    START 2 + 3 * 0 ? [2]
    """

    letters = (*DIGITS, "+", "-", "*")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(MODULUS, size=(count, length - (length + 1) % 2))
        strings[:, 1::2] = generator.integers(PLUS, TIMES + 1, size=strings[:, 1::2].shape)
        # The terms so far, and the term that further factors may extend.
        total, term = np.zeros(count, dtype=np.int64), strings[:, 0]
        for sign, digit in zip(strings.T[1::2], strings.T[2::2], strict=True):
            total = np.where(sign == TIMES, total, total + term) % MODULUS
            factor = np.where(sign == TIMES, term, np.where(sign == PLUS, 1, -1))
            term = factor * digit % MODULUS
        return strings, (total + term)[:, None] % MODULUS


class ParityCheck(StringTask):
    """Whether the number of `b` is even.

    START b b b ? [odd]
    """

    answers = ("even", "odd")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, strings.sum(axis=1, keepdims=True) % 2


class CycleNavigation(StringTask):
    """Where a walk on a circle of five places ends, which starts at place 0.

    START on back back ? [4]
    """

    letters = ("stay", "on", "back")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(3, size=(count, length))
        steps = np.array([0, 1, -1])[strings]
        return strings, steps.sum(axis=1, keepdims=True) % MODULUS


# Deterministic context-free.


class StackManipulation(StringTask):
    """A stack from bottom to top, then commands; the answer is the stack from top to bottom, END.

    The stack has one letter or more and leaves room for a command. `pop` of an empty stack does
    nothing.

    START b b pop pop push-b ? [b] ? [END]
    """

    letters = (*BITS, "pop", "push-a", "push-b")
    answers = (*BITS, "END")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        height = generator.integers(1, max(length, 2), size=(count, 1))
        stack, commands = (
            generator.integers(low, high, size=(count, length)) for low, high in ((0, 2), (2, 5))
        )
        strings = np.where(np.arange(length) < height, stack, commands)
        # A letter of the stack is pushed, too. What lies above the top is of no account.
        contents, top = np.zeros_like(strings), np.zeros(count, dtype=np.int64)
        for symbol in strings.T:
            is_pushed = np.flatnonzero(symbol != POP)
            contents[is_pushed, top[is_pushed]] = symbol[is_pushed] % (POP + 1)
            top = np.maximum(top + np.where(symbol == POP, -1, 1), 0)
        return strings, from_top(contents, top, len(BITS))


class ReverseString(StringTask):
    """The string backwards.

    START b b ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, strings[:, ::-1]


def draw_expressions(
    generator: np.random.Generator, length: int, count: int, num_signs: int
) -> Drawn:
    """(count, length) expressions with the first signs of + - *, and (count, 1) values mod 5.

    An expression of 1 to 4 symbols is d, -d, (d) or (-d) with a digit d. A longer one is (left op
    right), where the length of `left` is drawn uniformly. All expressions of one length are drawn
    at once: first those at the top, then both their parts, and so on.
    """
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


# Context-sensitive.


class DuplicateString(StringTask):
    """The string twice.

    START b b ? [b] ? [b] ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings, strings])


class MissingDuplicate(StringTask):
    """A string twice, in which one letter is hidden as `_`; the answer is that letter.

    The length is even: that of an odd length is one less.

    START a b b a b _ ? [b]
    """

    letters = (*BITS, "_")
    fewest = 2

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        half = generator.integers(2, size=(count, length // 2))
        strings = np.hstack([half, half])
        hidden = generator.integers(strings.shape[1], size=(count, 1))
        answers = np.take_along_axis(strings, hidden, axis=1)
        np.put_along_axis(strings, hidden, len(BITS), axis=1)
        return strings, answers


class OddsFirst(StringTask):
    """The first, third, fifth, ... letter, then the second, fourth, ...

    START a b b ? [a] ? [b] ? [b]
    """

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(2, size=(count, length))
        return strings, np.hstack([strings[:, ::2], strings[:, 1::2]])


def to_numbers(bits: Integers) -> list[int]:
    """The numbers of rows of bits, the lowest first, of any size."""
    packed = np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def to_bits(numbers: list[int], num_bits: int) -> Integers:
    """(numbers, num_bits) rows of bits, the lowest first."""
    size = -(-num_bits // 8)
    packed = b"".join(number.to_bytes(size, "little") for number in numbers)
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(numbers), size)
    return np.unpackbits(rows, axis=1, count=num_bits, bitorder="little").astype(np.int64)


class BinaryOperation(StringTask):
    """Two positive numbers joined by a sign, their lowest bits first; then the result, and END."""

    answers = ("0", "1", "END")
    fewest = 3
    operation: ClassVar[Callable[[int, int], int]]

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        middle = generator.integers(1, length - 1, size=(count, 1))
        bits, place = generator.integers(2, size=(count, length)), np.arange(length)
        parts = []
        for is_part, top in ((place < middle, middle - 1), (place > middle, [[length - 1]])):
            is_zero = ~(bits & is_part).any(axis=1, keepdims=True)
            bits |= is_zero & (place == top)
            parts.append(bits & is_part)
        left, right = map(to_numbers, parts)
        # Shifted left by its place in the string: the second number starts after the sign.
        pairs = zip(left, right, middle[:, 0].tolist(), strict=True)
        results = [type(self).operation(one, other >> (sign + 1)) for one, other, sign in pairs]
        sizes = np.array([number.bit_length() for number in results])
        return np.where(place == middle, SIGN, bits), ended(to_bits(results, length), sizes, 2)


class BinaryAddition(BinaryOperation):
    """The sum of two binary numbers.

    START 1 1 1 + 0 1 1 0 ? [1] ? [0] ? [1] ? [1] ? [END]
    """

    letters = ("0", "1", "+")
    operation = operator.add


class BinaryMultiplication(BinaryOperation):
    """The product of two binary numbers.

    START 1 1 1 * 0 1 1 0 ? [0] ? [1] ? [0] ? [1] ? [0] ? [1] ? [END]
    """

    letters = ("0", "1", "*")
    operation = operator.mul


class ComputeSqrt(StringTask):
    """The integer part of the square root of a positive number of n bits: half as many, rounded up.

    The highest bits come first, as in the study's code.

    START 0 1 1 1 0 0 ? [1] ? [0] ? [1]
    """

    letters = ("0", "1")
    answers = ("0", "1")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        bits = generator.integers(2, size=(count, length))
        bits[:, -1] |= ~bits.any(axis=1)
        roots = [math.isqrt(number) for number in to_numbers(bits[:, ::-1])]
        return bits, to_bits(roots, (length + 1) // 2)[:, ::-1]


class BucketSort(StringTask):
    """The five digits in increasing order.

    START 2 2 3 ? [2] ? [2] ? [3]
    """

    letters = DIGITS
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        strings = generator.integers(MODULUS, size=(count, length))
        return strings, np.sort(strings, axis=1)
