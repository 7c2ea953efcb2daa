"""Pieces of the relative-position attention kernels: tiles of pairs, and how they are numbered.

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
def load_rows(
    base: tl.tensor,
    first: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """Rows `first`, `first` + 1, ... of a matrix; zeros from row `limit` on."""
    rows = tl.arange(0, num_rows)
    places = base + tl.cast(first, tl.int64) * stride + rows[:, None] * stride
    inside = (first + rows < limit)[:, None]
    return tl.load(places + tl.arange(0, size)[None, :], mask=inside, other=0.0)


@triton.jit
def load_keys(
    past: tl.tensor,
    own: tl.tensor,
    first: tl.tensor,
    past_stride: tl.tensor,
    own_stride: tl.tensor,
    num_past: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
    has_past: tl.constexpr,
) -> tl.tensor:
    """Rows of two matrices, one below the other: `num_past` rows of the past, then the own."""
    rows = first + tl.arange(0, num_rows)
    if has_past:
        inside = (rows < limit)[:, None]
        before = past + rows.to(tl.int64)[:, None] * past_stride
        after = own + (rows - num_past).to(tl.int64)[:, None] * own_stride
        places = tl.where((rows < num_past)[:, None], before, after)
        return tl.load(places + tl.arange(0, size)[None, :], mask=inside, other=0.0)
    else:  # noqa: RET505
        return load_rows(own, first, own_stride, limit, num_rows, size)


@triton.jit
def store_rows(
    base: tl.tensor,
    first: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    rows_of: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Write what `load_rows` would load, in the type of the memory."""
    rows = tl.arange(0, num_rows)
    places = base + tl.cast(first, tl.int64) * stride + rows[:, None] * stride
    inside = (first + rows < limit)[:, None]
    found = rows_of.to(base.dtype.element_ty)
    tl.store(places + tl.arange(0, size)[None, :], found, mask=inside)


@triton.jit
def store_keys(
    past: tl.tensor,
    own: tl.tensor,
    first: tl.tensor,
    past_stride: tl.tensor,
    own_stride: tl.tensor,
    num_past: tl.tensor,
    num_stored: tl.tensor,
    limit: tl.tensor,
    rows_of: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
    has_past: tl.constexpr,
    stores_past: tl.constexpr,
    adds_past: tl.constexpr,
) -> None:
    """Write what `load_keys` would load; of the past only the last `num_stored` rows, if any.

    These alone lie in `past`, and with `adds_past` are added to what is there.
    """
    if has_past:
        rows = first + tl.arange(0, num_rows)
        columns = tl.arange(0, size)[None, :]
        places = own + (rows - num_past).to(tl.int64)[:, None] * own_stride + columns
        inside = ((rows >= num_past) & (rows < limit))[:, None]
        tl.store(places, rows_of.to(own.dtype.element_ty), mask=inside)
        if stores_past:
            first_stored = num_past - num_stored
            places = past + (rows - first_stored).to(tl.int64)[:, None] * past_stride + columns
            inside = ((rows >= first_stored) & (rows < tl.minimum(num_past, limit)))[:, None]
            if adds_past:
                rows_of += tl.load(places, mask=inside, other=0.0).to(tl.float32)
            tl.store(places, rows_of.to(past.dtype.element_ty), mask=inside)
    else:
        store_rows(own, first, own_stride, limit, rows_of, num_rows, size)


@triton.jit
def load_distances(
    table: tl.tensor, first: tl.tensor, num_rows: tl.tensor, block: tl.constexpr, size: tl.constexpr
) -> tl.tensor:
    """Vectors of the distances `first`, `first` + 1, ..., clipped to the table."""
    rows = tl.minimum(tl.maximum(first + tl.arange(0, block), 0), num_rows - 1)
    return tl.load(table + rows[:, None] * size + tl.arange(0, size)[None, :])


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
def visible_pairs(
    first: tl.tensor,
    start: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Which pairs of the tile at query `first`, key `start` are there and in sight.

    Each query's oldest and newest key first: rows and columns take few registers, pairs many.
    """
    queries = first + tl.arange(0, block_q)
    keys = start + tl.arange(0, block_k)[None, :]
    oldest = tl.maximum(first_query + queries - span + 1, earliest)
    newest = tl.minimum(first_query + queries, num_keys - 1)
    newest = tl.where(queries < num_queries, newest, -1)
    return (keys >= oldest[:, None]) & (keys <= newest[:, None])


@triton.jit
def kept_pairs(
    seed: tl.tensor,
    head: tl.tensor,
    first: tl.tensor,
    start: tl.tensor,
    num_keys: tl.tensor,
    dropout: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Which weights of a tile survive dropout: a function of the seed and the pair alone.

    Counters of 32 bits: one word says the pair, another one the batch row and head.
    """
    queries = first + tl.arange(0, block_q)[:, None]
    keys = start + tl.arange(0, block_k)[None, :]
    pairs = queries * num_keys + keys
    zeros = pairs * 0
    noise, _, _, _ = tl.philox(tl.load(seed), pairs, zeros + head, zeros, zeros)
    return tl.uint_to_uniform_float(noise) >= dropout


@triton.jit
def weights_again(
    scores: tl.tensor, visible: tl.tensor, logsumexp: tl.tensor, rows: tl.tensor, limit: tl.tensor
) -> tl.tensor:
    """The softmax of a tile's scores, by what the forward kernel left of its divisors."""
    normaliser = tl.load(logsumexp + rows, mask=rows < limit, other=0.0)
    excess = tl.where(visible, scores - normaliser[:, None], -float("inf"))
    return tl.exp2(excess * 1.4426950408889634)  # exp(x) = 2 ** (x log2(e))


@triton.jit
def dropped_alike(
    weights: tl.tensor,
    d_weights: tl.tensor,
    seed: tl.tensor,
    head: tl.tensor,
    first: tl.tensor,
    start: tl.tensor,
    num_keys: tl.tensor,
    dropout: tl.tensor,
    has_dropout: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """The weights as the forward kernel used them, and the gradients of those it kept."""
    used = weights
    if has_dropout:
        kept = kept_pairs(seed, head, first, start, num_keys, dropout, block_q, block_k)
        used = tl.where(kept, weights / (1 - dropout), 0.0)
        d_weights = tl.where(kept, d_weights / (1 - dropout), 0.0)
    return used, d_weights


@triton.jit
def earliest_key(
    first_visible: tl.tensor, head: tl.tensor, num_heads: tl.tensor, has_first_visible: tl.constexpr
) -> tl.tensor:
    """The first key that belongs to the stream of this batch row."""
    earliest = tl.full((), 0, tl.int32)
    if has_first_visible:
        earliest = tl.maximum(tl.load(first_visible + head // num_heads).to(tl.int32), 0)
    return earliest


@triton.jit
def keys_in_sight(
    first: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Where tiles of keys that the queries from `first` on see start, and the key to stop at."""
    stop = tl.minimum(num_keys, first_query + tl.minimum(first + block_q, num_queries))
    oldest = tl.maximum(tl.maximum(first_query + first - span + 1, 0), earliest)
    start = tl.where(oldest < stop, oldest // block_k * block_k, stop)
    return start, stop


@triton.jit
def head_base(
    base: tl.tensor,
    head: tl.tensor,
    num_heads: tl.tensor,
    batch_stride: tl.tensor,
    head_stride: tl.tensor,
) -> tl.tensor:
    """Where the matrix of one batch row and head starts."""
    row = (head // num_heads).to(tl.int64)
    column = (head % num_heads).to(tl.int64)
    return base + row * batch_stride + column * head_stride


@triton.jit
def tile_scores(
    queries: tl.tensor,
    keys: tl.tensor,
    by_far: tl.tensor,
    by_near: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    has_near: tl.constexpr,
) -> tl.tensor:
    """Unscaled scores of a tile, from products with the far and near blocks of the table."""
    by_distance = by_far
    if has_near:
        by_distance = tl.where(is_far(block_q, block_k), by_far, by_near)
    content = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    return content + rotate(by_distance, block_q, block_k)
