"""How one call of relative-position attention is cut into tiles."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

SMALLEST_BLOCK = 16
"""No matrix product on a GPU has fewer rows."""
WIDEST_BLOCK = 64
"""No tile has more rows or columns."""
WIDE_HEAD = 128
"""Heads of this size need more room for every row."""

Kernel = Literal["forward", "single", "keys", "queries", "table"]
TUNED: dict[tuple[torch.dtype, bool], dict[Kernel, tuple[int, int, int]]] = {
    (torch.bfloat16, False): {
        "forward": (64, 4, 3),
        "single": (64, 4, 2),
        "keys": (64, 4, 2),
        "queries": (64, 4, 2),
        "table": (64, 4, 2),
    },
    (torch.bfloat16, True): {
        "forward": (64, 4, 1),
        "single": (64, 8, 2),
        "keys": (32, 4, 3),
        "queries": (64, 4, 1),
        "table": (64, 4, 2),
    },
    (torch.float32, False): dict.fromkeys(get_args(Kernel), (32, 8, 1)),
    (torch.float32, True): dict.fromkeys(get_args(Kernel), (16, 8, 1)),
}
"""For each kind of numbers, for heads that are wide or not, and for each kernel: the largest side
of a tile, warps, and stages of its pipeline. The fastest of those tried on an H200 for windows of
64 and 256 tokens."""


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
    block_q: int = 0
    block_k: int = 0
    num_warps: int = 0
    num_stages: int = 0

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
        """Tiles as small as the queries and keys allow, and no more queries than keys in one."""
        batch, heads, num_queries, size = queries.shape
        num_distances = first_query + num_queries
        num_past = 0 if past is None else past[0].shape[2]
        call = cls(
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
        return call.for_kernel("single")

    def for_kernel(self, kernel: Kernel) -> "Call":
        """The same call with the tiles that suit a kernel."""
        largest, num_warps, num_stages = TUNED[self.dtype, self.size >= WIDE_HEAD][kernel]
        block_q = block_for(self.num_queries, largest)
        return replace(
            self,
            block_q=block_q,
            block_k=max(block_q, block_for(self.num_keys, largest)),
            num_warps=num_warps,
            num_stages=num_stages,
        )

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """The kernels' arguments from `num_heads` to `span`."""
        keys = (self.num_keys, self.num_past)
        counts = (self.num_heads, self.num_queries, *keys, self.num_rows)
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


def by_rows(tensor: Tensor) -> Tensor:
    """The tensor with each vector in one piece, as the kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def in_one_piece(places: Tensor | None) -> Tensor | None:
    """The places next to each other, as the kernels read them."""
    return None if places is None else places.contiguous()
