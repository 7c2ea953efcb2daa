"""Pieces that the kernels of relative-position attention share."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
"""exp(x) = 2 ** (x log2(e)): scores times this are in bits."""
LN2 = tl.constexpr(0.6931471805599453)


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
def earliest_key(
    first_visible: tl.tensor, head: tl.tensor, num_heads: tl.tensor, has_first_visible: tl.constexpr
) -> tl.tensor:
    """The first key that belongs to the stream of this batch row."""
    earliest = tl.full((), 0, tl.int32)
    if has_first_visible:
        earliest = tl.maximum(tl.load(first_visible + head // num_heads).to(tl.int32), 0)
    return earliest


@triton.jit
def load_rows(
    base: tl.tensor,
    first: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """Rows `first`, `first` + 1, ... of a matrix; zeros before row 0 and from row `limit` on."""
    rows = tl.arange(0, num_rows)
    places = base + tl.cast(first, tl.int64) * stride + rows[:, None] * stride
    inside = ((first + rows >= 0) & (first + rows < limit))[:, None]
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
    inside = ((first + rows >= 0) & (first + rows < limit))[:, None]
    found = rows_of.to(base.dtype.element_ty)
    tl.store(places + tl.arange(0, size)[None, :], found, mask=inside)


@triton.jit
def store_past(
    past: tl.tensor,
    first: tl.tensor,
    stride: tl.tensor,
    num_past: tl.tensor,
    num_stored: tl.tensor,
    rows_of: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
    adds_past: tl.constexpr,
) -> None:
    """Write rows of the past, `num_past` in all, of which the last `num_stored` lie in `past`.

    With `adds_past` they are added to what is there.
    """
    rows = first + tl.arange(0, num_rows)
    first_stored = num_past - num_stored
    inside = ((rows >= first_stored) & (rows < num_past))[:, None]
    places = past + (rows - first_stored).to(tl.int64)[:, None] * stride
    places += tl.arange(0, size)[None, :]
    if adds_past:
        rows_of += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, rows_of.to(past.dtype.element_ty), mask=inside)


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
    """Write what `load_keys` would load; of the past, if any, as `store_past` does."""
    if has_past:
        rows = first + tl.arange(0, num_rows)
        inside = ((rows >= num_past) & (rows < limit))[:, None]
        places = own + (rows - num_past).to(tl.int64)[:, None] * own_stride
        places += tl.arange(0, size)[None, :]
        tl.store(places, rows_of.to(own.dtype.element_ty), mask=inside)
        if stores_past:
            store_past(
                past,
                first,
                past_stride,
                num_past,
                num_stored,
                rows_of,
                num_rows,
                size,
                adds_past,
            )
    else:
        store_rows(own, first, own_stride, limit, rows_of, num_rows, size)


@triton.jit
def load_distances(
    table: tl.tensor, distances: tl.tensor, num_rows: tl.tensor, size: tl.constexpr
) -> tl.tensor:
    """Vectors of these distances, clipped to the table."""
    rows = tl.minimum(tl.maximum(distances, 0), num_rows - 1)
    return tl.load(table + rows[:, None] * size + tl.arange(0, size)[None, :])


@triton.jit
def add_to_table(
    base: tl.tensor,
    distances: tl.tensor,
    d_vectors: tl.tensor,
    d_last: tl.tensor,
    num_rows: tl.tensor,
    size: tl.constexpr,
) -> tl.tensor:
    """Add gradients to the rows short of the last; what is beyond goes to `d_last`."""
    columns = tl.arange(0, size)
    inside = ((distances >= 0) & (distances < num_rows - 1))[:, None]
    places = base + distances[:, None] * size + columns[None, :]
    tl.store(places, tl.load(places, mask=inside, other=0.0) + d_vectors, mask=inside)
    return d_last + tl.sum(tl.where((distances >= num_rows - 1)[:, None], d_vectors, 0.0), 0)


@triton.jit
def add_to_last(
    base: tl.tensor, d_last: tl.tensor, num_rows: tl.tensor, size: tl.constexpr
) -> None:
    """Add to the table's last row, which stands for all greater distances too."""
    places = base + (num_rows - 1) * size + tl.arange(0, size)
    tl.store(places, tl.load(places) + d_last)


@triton.jit
def kept_pairs(
    seed: tl.tensor,
    head: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    num_keys: tl.tensor,
    dropout: tl.tensor,
) -> tl.tensor:
    """Which weights survive dropout: a function of the seed and the pair alone.

    Queries and keys are numbered along two axes, in either order. Counters of 32 bits: one word
    says the pair, another one the batch row and head.
    """
    pairs = queries * num_keys + keys
    zeros = pairs * 0
    noise, _, _, _ = tl.philox(tl.load(seed), pairs, zeros + head, zeros, zeros)
    return tl.uint_to_uniform_float(noise) >= dropout


@triton.jit
def dropped_alike(
    weights: tl.tensor,
    d_weights: tl.tensor,
    seed: tl.tensor,
    head: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    num_keys: tl.tensor,
    dropout: tl.tensor,
    has_dropout: tl.constexpr,
) -> tl.tensor:
    """The weights as the forward kernel used them, and the gradients of those it kept."""
    used = weights
    if has_dropout:
        kept = kept_pairs(seed, head, queries, keys, num_keys, dropout)
        used = tl.where(kept, weights / (1 - dropout), 0.0)
        d_weights = tl.where(kept, d_weights / (1 - dropout), 0.0)
    return used, d_weights


@triton.jit
def no_softmax(block_q: tl.constexpr, size: tl.constexpr) -> tl.tensor:
    """Highest scores, sums and gathered values before the first tile.

    A finite floor: a row with nothing in sight must not subtract infinities.
    """
    highest = tl.full((block_q,), -1e30, tl.float32)
    total = tl.zeros((block_q,), tl.float32)
    return highest, total, tl.zeros((block_q, size), tl.float32)


@triton.jit
def add_tile(
    highest: tl.tensor,
    total: tl.tensor,
    gathered: tl.tensor,
    scores: tl.tensor,
    value: tl.tensor,
    seed: tl.tensor,
    head: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    num_keys: tl.tensor,
    dropout: tl.tensor,
    has_dropout: tl.constexpr,
) -> tl.tensor:
    """The softmax with a tile of scores more, in bits and -inf out of sight, and its values."""
    raised = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - raised[:, None])
    shrunk = tl.exp2(highest - raised)
    total = total * shrunk + tl.sum(weights, 1)
    if has_dropout:
        kept = kept_pairs(seed, head, queries, keys, num_keys, dropout)
        weights = tl.where(kept, weights, 0.0)
    gathered = tl.dot(
        weights.to(value.dtype), value, gathered * shrunk[:, None], input_precision="ieee"
    )
    return raised, total, gathered


@triton.jit
def divided(
    highest: tl.tensor,
    total: tl.tensor,
    gathered: tl.tensor,
    logsumexp: tl.tensor,
    head: tl.tensor,
    first: tl.tensor,
    num_queries: tl.tensor,
    dropout: tl.tensor,
    block_q: tl.constexpr,
) -> tl.tensor:
    """What is gathered after the last tile, divided; the divisors' logarithms are stored."""
    sees = total > 0
    divisor = tl.where(sees, total, 1.0)
    rows = first + tl.arange(0, block_q)
    tl.store(
        logsumexp + head.to(tl.int64) * num_queries + rows,
        tl.where(sees, highest * LN2 + tl.log(divisor), -float("inf")),
        mask=rows < num_queries,
    )
    return gathered * (1.0 / (divisor * (1 - dropout)))[:, None]
