"""How the pairs of a call are cut into several tiles of `block_q` queries times `block_k` keys.

Keys are counted from `num_hidden` places before the first one, so that the past ends, and the own
keys begin, at `boundary`, a whole number of tiles: every tile of keys lies in one tensor. Without a
past, the own keys begin at `num_hidden`, and the first query begins a tile: tiles, and with them
all results, are the same whether or not the past lies elsewhere.

What one kernel leaves for another about pairs lies in rows of `width`. A tile is written as a whole
if one of its pairs may be in sight, and only then is it read.
"""

# mypy: disable-error-code="untyped-decorator"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from staircase_attention.engine.kernels.relative_call import SMALLEST_BLOCK, Call, block_for

LARGEST_SIDE = {torch.bfloat16: 64, torch.float32: 32}
"""The most queries and keys of a tile."""
SHAPE_ARGUMENTS = [
    "num_heads",
    "num_queries",
    "num_keys",
    "num_hidden",
    "boundary",
    "num_rows",
    "first_query",
    "span",
]
"""Numbers that change from call to call: one kernel serves them all."""


@dataclass(frozen=True)
class Tiling:
    """A call and its tiles."""

    call: Call
    block_q: int
    block_k: int

    @classmethod
    def of(cls, call: Call) -> "Tiling":
        """Tiles for a call; in bfloat16 products of 64 rows are the fast ones."""
        largest = LARGEST_SIDE[call.dtype]
        block_q = block_for(call.num_queries, largest)
        if call.dtype == torch.bfloat16 and block_q > SMALLEST_BLOCK:
            block_q = largest
        return cls(call, block_q, block_for(call.num_keys, largest))

    @property
    def num_hidden(self) -> int:
        """Places before the first key."""
        return -(self.call.num_past or self.call.first_query) % self.block_k

    @property
    def num_query_blocks(self) -> int:
        """Tiles above one another."""
        return -(-self.call.num_queries // self.block_q)

    @property
    def num_key_blocks(self) -> int:
        """Tiles beside one another."""
        return -(-(self.call.num_keys + self.num_hidden) // self.block_k)

    @property
    def width(self) -> int:
        """Elements of a query's row of keys; rows begin at multiples of 16 bytes, for any tiles."""
        return -(-(self.call.num_keys + self.num_hidden) // 64) * 64

    @property
    def shape(self) -> tuple[int, ...]:
        """The kernels' arguments from `num_heads` to `span`."""
        call, hidden = self.call, self.num_hidden
        keys = (call.num_keys + hidden, hidden, call.num_past + hidden)
        places = (call.num_rows, call.first_query + hidden, call.span)
        return call.num_heads, call.num_queries, *keys, *places

    @property
    def blocks(self) -> dict[str, int]:
        """How each program is compiled."""
        return {"block_q": self.block_q, "block_k": self.block_k, "size": self.call.size}


@triton.jit
def tiles_in_sight(
    first: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Where the tiles of keys that the queries from `first` on may see start and stop."""
    stop = tl.minimum(num_keys, first_query + tl.minimum(first + block_q, num_queries))
    oldest = tl.maximum(first_query + first - span + 1, num_hidden)
    sees = oldest < stop
    start = tl.where(sees, oldest // block_k * block_k, 0)
    stop = tl.where(sees, tl.cdiv(stop, block_k) * block_k, 0)
    return start, stop


@triton.jit
def queries_in_sight(
    place: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Where the queries start and stop whose `tiles_in_sight` hold the tile of keys at `place`."""
    newest = tl.minimum(place + block_k, num_keys)
    start = tl.maximum(place - first_query, 0) // block_q * block_q
    stop = tl.cdiv(tl.maximum(span + newest - 1 - first_query, 0), block_q) * block_q
    stop = tl.where(place < first_query + num_queries, tl.minimum(num_queries, stop), start)
    return start, stop
