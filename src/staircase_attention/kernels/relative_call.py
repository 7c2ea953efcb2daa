"""How one call of relative-position attention is cut into tiles."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_BLOCK = 16
"""No matrix product on a GPU has fewer rows."""
LARGEST_BLOCKS = {torch.bfloat16: 64, torch.float32: 32}
WIDE_HEAD = 128
"""Heads of this size need smaller tiles in float32, and more threads to hold their sums."""


@dataclass(frozen=True)
class Call:
    """What the launches of one call share."""

    num_matrices: int
    """Batch rows times heads."""
    num_heads: int
    num_queries: int
    num_keys: int
    num_rows: int
    first_query: int
    span: int
    """At most the number of distances there are."""
    size: int
    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(
        cls, queries: Tensor, keys: Tensor, table: Tensor, first_query: int, span: int | None
    ) -> "Call":
        """Tiles as small as the queries and keys allow, and no more queries than keys in one."""
        batch, heads, num_queries, size = queries.shape
        num_distances = first_query + num_queries
        largest, is_exact = LARGEST_BLOCKS[queries.dtype], queries.dtype == torch.float32
        if is_exact and size >= WIDE_HEAD:
            largest //= 2
        block_q = block_for(num_queries, largest)
        return cls(
            num_matrices=batch * heads,
            num_heads=heads,
            num_queries=num_queries,
            num_keys=keys.shape[2],
            num_rows=table.shape[0],
            first_query=first_query,
            span=num_distances if span is None else min(span, num_distances),
            size=size,
            block_q=block_q,
            block_k=max(block_q, block_for(keys.shape[2], largest)),
            num_warps=8 if is_exact or size >= WIDE_HEAD else 4,
            num_stages=1 if is_exact else 2,
        )

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """The kernels' arguments from `num_heads` to `span`."""
        counts = (self.num_heads, self.num_queries, self.num_keys, self.num_rows)
        return *counts, self.first_query, self.span

    @property
    def num_query_blocks(self) -> int:
        """Tiles above one another."""
        return -(-self.num_queries // self.block_q)

    @property
    def num_key_blocks(self) -> int:
        """Tiles beside one another."""
        return -(-self.num_keys // self.block_k)

    @property
    def is_single_tile(self) -> bool:
        """Whether one tile holds all pairs."""
        return self.num_query_blocks == 1 and self.num_key_blocks == 1

    @property
    def has_near(self) -> bool:
        """Whether some pair lies in its tile's near block; not so on one square tile's diagonal."""
        return not self.is_single_tile or self.first_query > 0

    @property
    def blocks(self) -> dict[str, int]:
        """How each program is compiled."""
        return {
            "block_q": self.block_q,
            "block_k": self.block_k,
            "size": self.size,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def block_for(length: int, largest: int) -> int:
    """The smallest power of two that holds `length`, within what tiles may be."""
    return min(max(1 << (length - 1).bit_length(), SMALLEST_BLOCK), largest)
