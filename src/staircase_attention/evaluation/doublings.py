"""Whole numbers in ranges, each twice as wide as the one before it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def doubling(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """The lower bound of the range that each number is in: 0, 1, 2 to 3, 4 to 7, ...

    >>> doubling(np.arange(10)).tolist()
    [0, 1, 2, 2, 4, 4, 4, 4, 8, 8]
    """
    exponents = np.frexp(np.maximum(numbers, 1))[1] - 1
    return np.where(numbers > 0, 2 ** exponents.astype(np.int64), 0)
