"""Keys and values that queries attend to, between steps and in states."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class KeysValues(NamedTuple):
    """One layer's keys and values of some tokens, in order of time.

    Keys carry no positions: a stream has no end, so only distances between queries and keys are
    ever used as numbers.
    """

    keys: Float[Tensor, "batch heads time size"]
    values: Float[Tensor, "batch heads time size"]

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.keys.shape[2]

    def part(self, start: int, stop: int) -> "KeysValues":
        """Those of the tokens `start` to `stop` - 1, counted from the first one."""
        return KeysValues(self.keys[:, :, start:stop], self.values[:, :, start:stop])

    def parts(self, places: Sequence[range]) -> "KeysValues":
        """Those of several runs of tokens, as one."""
        return join([self.part(place.start, place.stop) for place in places or [range(0)]])

    def map(self, change: Callable[[Tensor], Tensor]) -> "KeysValues":
        """The same change made to both."""
        return KeysValues(change(self.keys), change(self.values))


def join(pieces: Sequence[KeysValues]) -> KeysValues:
    """Pieces that follow one another, as one."""
    if len(pieces) == 1:
        return pieces[0]
    return KeysValues(
        torch.cat([piece.keys for piece in pieces], dim=2),
        torch.cat([piece.values for piece in pieces], dim=2),
    )


def latest(pieces: Sequence[KeysValues], num_tokens: int) -> KeysValues:
    """The last tokens of pieces that follow one another."""
    taken: list[KeysValues] = []
    for piece in reversed(pieces):
        wanted = min(num_tokens, piece.num_tokens)
        if wanted:
            taken.insert(0, piece.part(piece.num_tokens - wanted, piece.num_tokens))
        num_tokens -= wanted
    return join(taken)


def split_heads(
    vectors: Float[Tensor, "batch time width"], num_heads: int
) -> Float[Tensor, "batch heads time size"]:
    """Split the width among the heads."""
    return torch.unflatten(vectors, -1, (num_heads, -1)).transpose(1, 2)


def merge_heads(
    vectors: Float[Tensor, "batch heads time size"],
) -> Float[Tensor, "batch time width"]:
    """Put the heads side by side again."""
    return vectors.transpose(1, 2).flatten(-2)
