"""The appendix's episodic form: every text alone, in pieces of one length.

Table 9 of the paper: "we keep the text length fixed to 256 BPE tokens. The shorter episodes are
padded, and longer ones are split into two." A text of more than two lengths is split into as many
pieces as it takes; the paper does not say what became of those.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staircase_attention.checks import input_error

EPISODE_LENGTH = 256
"""The paper's."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """A text, or a piece of one, of fixed length."""

    tokens: NDArray[np.int32]
    """(length,) the tokens, then padding."""
    mask: NDArray[np.bool_]
    """(length,) True where there is a token, False where there is padding."""


def episodes_of(
    text: str,
    encode: Callable[[str], Sequence[int]],
    *,
    padding: int,
    length: int = EPISODE_LENGTH,
    end: int | None = None,
) -> Iterator[Episode]:
    """A text as episodes; only the last one is padded.

    Args:
        text: what is learned from.
        encode: the tokeniser.
        padding: the token written where there is none. It may be any: the mask tells.
        length: tokens in an episode.
        end: a token to close the text with, if any.

    >>> for episode in episodes_of("abcde", lambda text: list(text.encode()), padding=0, length=3):
    ...     print(episode.tokens.tolist(), episode.mask.tolist())
    [97, 98, 99] [True, True, True]
    [100, 101, 0] [True, True, False]
    """
    if length < 1:
        raise input_error("length must be a whole number of at least 1", length, "use length=256")
    tokens = np.asarray([*encode(text), *([] if end is None else [end])], dtype=np.int32)
    for first in range(0, tokens.size, length):
        piece = tokens[first : first + length]
        filled = np.full(length, padding, dtype=np.int32)
        filled[: piece.size] = piece
        yield Episode(tokens=filled, mask=np.arange(length) < piece.size)
