"""Binary numbers, of the Chomsky-hierarchy study: three context-sensitive tasks."""

import math
import operator
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from staircase_attention.tasks.strings import Drawn, StringTask, ended
from staircase_attention.tasks.task import Integers

SIGN = 2


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
