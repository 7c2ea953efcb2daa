"""What a call of relative-position attention is about, for all kernels that serve it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_BLOCK = 16
"""No matrix product on a GPU has fewer rows."""
WIDE_HEAD = 128
"""Heads of this size need more room for every row."""
LARGEST_TILE = {
    (torch.bfloat16, False): 64,
    (torch.bfloat16, True): 64,
    (torch.float32, False): 32,
    (torch.float32, True): 16,
}
"""For each kind of numbers, and for heads that are wide or not: the most queries and keys that one
program takes as a single tile."""


@dataclass(frozen=True)
class Call:
    """What the launches of one call share."""

    dtype: torch.dtype
    num_matrices: int
    """Batch rows times heads."""
    num_heads: int
    num_queries: int
    num_keys: int
    """Those of the past included."""
    num_past: int
    num_rows: int
    first_query: int
    span: int
    """At most the number of distances there are."""
    size: int

    @classmethod
    def of(
        cls,
        queries: Tensor,
        keys: Tensor,
        table: Tensor,
        first_query: int,
        span: int | None,
        *,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> "Call":
        """The call with these arguments."""
        batch, heads, num_queries, size = queries.shape
        num_distances = first_query + num_queries
        num_past = 0 if past is None else past[0].shape[2]
        return cls(
            dtype=queries.dtype,
            num_matrices=batch * heads,
            num_heads=heads,
            num_queries=num_queries,
            num_keys=keys.shape[2] + num_past,
            num_past=num_past,
            num_rows=table.shape[0],
            first_query=first_query,
            span=num_distances if span is None else min(span, num_distances),
            size=size,
        )

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.size)

    @property
    def kind(self) -> tuple[torch.dtype, bool]:
        """What the kernels' tuning depends on: the kind of numbers, and whether heads are wide."""
        return self.dtype, self.size >= WIDE_HEAD

    @property
    def is_single_tile(self) -> bool:
        """Whether one tile holds all pairs."""
        return max(self.num_queries, self.num_keys) <= LARGEST_TILE[self.kind]


def block_for(length: int, largest: int) -> int:
    """The smallest power of two that holds `length`, within what tiles may be."""
    return min(max(1 << (length - 1).bit_length(), SMALLEST_BLOCK), largest)


def strides(*tensors: Tensor) -> list[int]:
    """Steps in memory from batch row to batch row, head to head and row to row, for each."""
    return [step for tensor in tensors for step in tensor.stride()[:3]]


def by_rows(tensor: Tensor) -> Tensor:
    """The tensor with each vector in one piece, as the kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def in_one_piece(places: Tensor | None) -> Tensor | None:
    """The places next to each other, as the kernels read them."""
    return None if places is None else places.contiguous()
