"""Pieces of the kernels for a single tile of pairs: from distances to keys, and back.

A tile holds `block_q` queries times `block_k` keys, `block_q` <= `block_k`. If its first query
stands `lag` behind its first key, the pair (i, j) of the tile is `lag` + i - j apart. With
o = (i - j) mod `block_k`, that is row o of the distances from `lag` on (the far block) where
i >= j, and row o of the `block_k` distances before `lag` (the near block) elsewhere. So each row of
the tile is a rotation of one row of products with two blocks of the table, and its own inverse.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def rotate(tile: tl.tensor, block_q: tl.constexpr, block_k: tl.constexpr) -> tl.tensor:
    """Move (i, o) to (i, (i - o) mod `block_k`): from distances to keys, or back."""
    rows = tl.arange(0, block_q)[:, None]
    columns = tl.arange(0, block_k)[None, :]
    return tl.gather(tile, (rows - columns) & (block_k - 1), axis=1)


@triton.jit
def is_far(block_q: tl.constexpr, block_k: tl.constexpr) -> tl.tensor:
    """Which (i, o) of a tile by distances belong to the far block."""
    return tl.arange(0, block_k)[None, :] <= tl.arange(0, block_q)[:, None]


@triton.jit
def tile_scores(
    queries: tl.tensor,
    keys: tl.tensor,
    far: tl.tensor,
    near: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    has_near: tl.constexpr,
) -> tl.tensor:
    """Unscaled scores of a tile, by the far and near blocks of the table."""
    by_distance = tl.dot(queries, tl.trans(far), input_precision="ieee")
    if has_near:
        by_near = tl.dot(queries, tl.trans(near), input_precision="ieee")
        by_distance = tl.where(is_far(block_q, block_k), by_distance, by_near)
    content = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    return content + rotate(by_distance, block_q, block_k)
