"""The kernels for the gradients of relative-position attention, when there are several tiles.

Three passes over the scores' gradients: the first makes them and is done with keys and values, the
other two read them along rows of keys and along rows of distances.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from staircase_attention.kernels.relative_forward import SHAPE_ARGUMENTS
from staircase_attention.kernels.relative_tiles import (
    dropped_alike,
    earliest_key,
    head_base,
    keys_in_sight,
    load_distances,
    load_keys,
    load_rows,
    store_keys,
    store_rows,
    tile_scores,
    visible_pairs,
    weights_again,
)


@triton.jit(do_not_specialize=SHAPE_ARGUMENTS)
def agreement_kernel(
    out: tl.tensor,
    d_out: tl.tensor,
    agreement: tl.tensor,
    o_batch: tl.tensor,
    o_head: tl.tensor,
    o_row: tl.tensor,
    g_batch: tl.tensor,
    g_head: tl.tensor,
    g_row: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    block_q: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Each output's product with its gradient: what the softmax takes off every gradient."""
    num_blocks = tl.cdiv(num_queries, block_q)
    head = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block_q
    o_base = head_base(out, head, num_heads, o_batch, o_head)
    g_base = head_base(d_out, head, num_heads, g_batch, g_head)
    found = load_rows(o_base, first, o_row, num_queries, block_q, size).to(tl.float32)
    gradient = load_rows(g_base, first, g_row, num_queries, block_q, size).to(tl.float32)
    rows = first + tl.arange(0, block_q)
    tl.store(
        agreement + head.to(tl.int64) * num_queries + rows,
        tl.sum(found * gradient, 1),
        mask=rows < num_queries,
    )


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_stored"])
def keys_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    past_keys: tl.tensor,
    past_values: tl.tensor,
    table: tl.tensor,
    d_out: tl.tensor,
    logsumexp: tl.tensor,
    agreement: tl.tensor,
    d_keys: tl.tensor,
    d_values: tl.tensor,
    d_past_keys: tl.tensor,
    d_past_values: tl.tensor,
    d_scores: tl.tensor,
    first_visible: tl.tensor,
    seed: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    q_row: tl.tensor,
    k_batch: tl.tensor,
    k_head: tl.tensor,
    k_row: tl.tensor,
    v_batch: tl.tensor,
    v_head: tl.tensor,
    v_row: tl.tensor,
    pk_batch: tl.tensor,
    pk_head: tl.tensor,
    pk_row: tl.tensor,
    pv_batch: tl.tensor,
    pv_head: tl.tensor,
    pv_row: tl.tensor,
    g_batch: tl.tensor,
    g_head: tl.tensor,
    g_row: tl.tensor,
    dk_batch: tl.tensor,
    dk_head: tl.tensor,
    dk_row: tl.tensor,
    dv_batch: tl.tensor,
    dv_head: tl.tensor,
    dv_row: tl.tensor,
    dpk_batch: tl.tensor,
    dpk_head: tl.tensor,
    dpk_row: tl.tensor,
    dpv_batch: tl.tensor,
    dpv_head: tl.tensor,
    dpv_row: tl.tensor,
    num_stored: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_past: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_past: tl.constexpr,
    stores_past: tl.constexpr,
    adds_past: tl.constexpr,
    has_first_visible: tl.constexpr,
    has_dropout: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of one block of keys and values of one head, and of the scores with it.

    `d_scores` are those before scaling, in rows of `width`; only what is in sight is sure to be
    written.
    """
    num_blocks = tl.cdiv(num_keys, block_k)
    head = tl.program_id(0) // num_blocks
    place = tl.program_id(0) % num_blocks * block_k
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    q_base = head_base(queries, head, num_heads, q_batch, q_head)
    g_base = head_base(d_out, head, num_heads, g_batch, g_head)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    pk_base = head_base(past_keys, head, num_heads, pk_batch, pk_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    pv_base = head_base(past_values, head, num_heads, pv_batch, pv_head)
    rows_base = head.to(tl.int64) * num_queries
    newest = tl.minimum(place + block_k, num_keys)
    start = tl.maximum(place - first_query, 0) // block_q * block_q
    stop = tl.minimum(num_queries, span + newest - 1 - first_query)
    stop = tl.where(newest > earliest, stop, start)
    key = load_keys(
        pk_base,
        k_base,
        place,
        pk_row,
        k_row,
        num_past,
        num_keys,
        block_k,
        size,
        has_past,
    )
    value = load_keys(
        pv_base,
        v_base,
        place,
        pv_row,
        v_row,
        num_past,
        num_keys,
        block_k,
        size,
        has_past,
    )
    d_key = tl.zeros((block_k, size), tl.float32)
    d_value = tl.zeros((block_k, size), tl.float32)
    for first in range(start, stop, block_q):
        query = load_rows(q_base, first, q_row, num_queries, block_q, size)
        lag = first_query + first - place
        far = load_distances(table, lag, num_rows, block_k, size)
        near = load_distances(table, lag - block_k, num_rows, block_k, size)
        by_far = tl.dot(query, tl.trans(far), input_precision="ieee")
        by_near = tl.dot(query, tl.trans(near), input_precision="ieee")
        scores = tile_scores(query, key, by_far, by_near, block_q, block_k, True) * scale
        visible = visible_pairs(
            first, place, num_queries, num_keys, first_query, span, earliest, block_q, block_k
        )
        rows = first + tl.arange(0, block_q)
        weights = weights_again(scores, visible, logsumexp + rows_base, rows, num_queries)
        shift = tl.load(agreement + rows_base + rows, mask=rows < num_queries, other=0.0)
        gradient = load_rows(g_base, first, g_row, num_queries, block_q, size)
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        used, d_weights = dropped_alike(
            weights,
            d_weights,
            seed,
            head,
            first,
            place,
            num_keys,
            dropout,
            has_dropout,
            block_q,
            block_k,
        )
        d_value = tl.dot(
            tl.trans(used.to(gradient.dtype)), gradient, d_value, input_precision="ieee"
        )
        d_tile = (weights * (d_weights - shift[:, None])).to(query.dtype)
        d_key = tl.dot(tl.trans(d_tile), query, d_key, input_precision="ieee")
        d_base = d_scores + rows_base * width + place
        store_rows(d_base, first, width, num_queries, d_tile, block_q, block_k)
    dk_base = head_base(d_keys, head, num_heads, dk_batch, dk_head)
    dpk_base = head_base(d_past_keys, head, num_heads, dpk_batch, dpk_head)
    dv_base = head_base(d_values, head, num_heads, dv_batch, dv_head)
    dpv_base = head_base(d_past_values, head, num_heads, dpv_batch, dpv_head)
    store_keys(
        dpk_base,
        dk_base,
        place,
        dpk_row,
        dk_row,
        num_past,
        num_stored,
        num_keys,
        d_key * scale,
        block_k,
        size,
        has_past,
        stores_past,
        adds_past,
    )
    store_keys(
        dpv_base,
        dv_base,
        place,
        dpv_row,
        dv_row,
        num_past,
        num_stored,
        num_keys,
        d_value,
        block_k,
        size,
        has_past,
        stores_past,
        adds_past,
    )


@triton.jit
def load_tile(
    base: tl.tensor,
    first: tl.tensor,
    place: tl.tensor,
    width: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """One head's score gradients of the tile at query `first`, key `place`; zeros out of sight.

    `place` is a multiple of 16. Whole rows of the tile are read, which is fast, and what is out of
    sight, where anything may lie, is dropped.
    """
    place = tl.multiple_of(place, 16)
    rows = tl.arange(0, block_q)
    there = (first + rows < num_queries) & (place >= 0) & (place + block_k <= width)
    places = base + tl.cast(first, tl.int64) * width + place + rows[:, None] * width
    tile = tl.load(places + tl.arange(0, block_k)[None, :], mask=there[:, None], other=0.0)
    visible = visible_pairs(
        first, place, num_queries, num_keys, first_query, span, earliest, block_q, block_k
    )
    return tl.where(visible, tile, tl.zeros_like(tile))


@triton.jit
def load_by_distance(
    base: tl.tensor,
    first: tl.tensor,
    nearest: tl.tensor,
    width: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """One head's score gradients for queries `first`, ... times distances `nearest`, ...

    Read along the skew, and only where they are in sight: elsewhere nothing may be written. To
    rotate tiles that are read straight takes twice as long.
    """
    rows = tl.arange(0, block_q)[:, None]
    columns = tl.arange(0, block_k)[None, :]
    keys = first_query + first - nearest + rows - columns
    inside = (first + rows < num_queries) & (nearest + columns < span)
    inside = inside & (keys >= earliest) & (keys < num_keys)
    places = base + tl.cast(first, tl.int64) * width + rows * width + keys
    return tl.load(places, mask=inside, other=0.0)


@triton.jit(do_not_specialize=SHAPE_ARGUMENTS)
def queries_kernel(
    keys: tl.tensor,
    past_keys: tl.tensor,
    table: tl.tensor,
    d_scores: tl.tensor,
    d_queries: tl.tensor,
    first_visible: tl.tensor,
    k_batch: tl.tensor,
    k_head: tl.tensor,
    k_row: tl.tensor,
    pk_batch: tl.tensor,
    pk_head: tl.tensor,
    pk_row: tl.tensor,
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    dq_row: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_past: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    has_past: tl.constexpr,
    has_first_visible: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of one block of queries of one head."""
    num_blocks = tl.cdiv(num_queries, block_q)
    head = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block_q
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    pk_base = head_base(past_keys, head, num_heads, pk_batch, pk_head)
    d_base = d_scores + head.to(tl.int64) * num_queries * width
    start, stop = keys_in_sight(
        first, num_queries, num_keys, first_query, span, earliest, block_q, block_k
    )
    d_query = tl.zeros((block_q, size), tl.float32)
    for place in range(start, stop, block_k):
        d_tile = load_tile(
            d_base,
            first,
            place,
            width,
            num_queries,
            num_keys,
            first_query,
            span,
            earliest,
            block_q,
            block_k,
        )
        key = load_keys(
            pk_base,
            k_base,
            place,
            pk_row,
            k_row,
            num_past,
            num_keys,
            block_k,
            size,
            has_past,
        )
        d_query = tl.dot(d_tile, key, d_query, input_precision="ieee")
    last = first_query + tl.minimum(first + block_q, num_queries) - 1
    nearest = tl.maximum(first_query + first - num_keys + 1, 0) // block_k * block_k
    reach = tl.minimum(last + 1 - earliest, span)
    for distance in range(nearest, reach, block_k):
        d_tile = load_by_distance(
            d_base,
            first,
            distance,
            width,
            num_queries,
            num_keys,
            first_query,
            span,
            earliest,
            block_q,
            block_k,
        )
        vectors = load_distances(table, distance, num_rows, block_k, size)
        d_query = tl.dot(d_tile, vectors, d_query, input_precision="ieee")
    dq_base = head_base(d_queries, head, num_heads, dq_batch, dq_head)
    store_rows(dq_base, first, dq_row, num_queries, d_query * scale, block_q, size)


@triton.jit
def add_to_table(
    base: tl.tensor,
    nearest: tl.tensor,
    d_vectors: tl.tensor,
    d_last: tl.tensor,
    num_rows: tl.tensor,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """Add one block's gradients to the rows short of the last; what is beyond goes to `d_last`."""
    rows = nearest + tl.arange(0, block_k)
    columns = tl.arange(0, size)
    inside = ((rows >= 0) & (rows < num_rows - 1))[:, None]
    places = base + rows[:, None] * size + columns[None, :]
    tl.store(places, tl.load(places, mask=inside, other=0.0) + d_vectors, mask=inside)
    return d_last + tl.sum(tl.where((rows >= num_rows - 1)[:, None], d_vectors, 0.0), 0)


@triton.jit
def add_to_last(
    base: tl.tensor, d_last: tl.tensor, num_rows: tl.tensor, size: tl.constexpr
) -> None:
    """Add to the table's last row, which stands for all greater distances too."""
    places = base + (num_rows - 1) * size + tl.arange(0, size)
    tl.store(places, tl.load(places) + d_last)


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices", "num_blocks", "num_groups"])
def table_kernel(
    queries: tl.tensor,
    d_scores: tl.tensor,
    table_sums: tl.tensor,
    first_visible: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    q_row: tl.tensor,
    num_matrices: tl.tensor,
    num_blocks: tl.tensor,
    num_groups: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_past: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    has_first_visible: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of blocks of distances over a group of heads, each program in sums of its own."""
    program = tl.program_id(0)
    base = table_sums + program.to(tl.int64) * num_rows * size
    d_last = tl.zeros((size,), tl.float32)
    for block in range(program // num_groups, num_blocks, tl.num_programs(0) // num_groups):
        distance = block * block_k
        start = tl.maximum(distance - first_query, 0) // block_q * block_q
        stop = tl.minimum(num_queries, num_keys - first_query + distance + block_k - 1)
        d_vectors = tl.zeros((block_k, size), tl.float32)
        for head in range(program % num_groups, num_matrices, num_groups):
            earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
            q_base = head_base(queries, head, num_heads, q_batch, q_head)
            d_base = d_scores + tl.cast(head, tl.int64) * num_queries * width
            for first in range(start, stop, block_q):
                d_tile = load_by_distance(
                    d_base,
                    first,
                    distance,
                    width,
                    num_queries,
                    num_keys,
                    first_query,
                    span,
                    earliest,
                    block_q,
                    block_k,
                )
                query = load_rows(q_base, first, q_row, num_queries, block_q, size)
                d_vectors = tl.dot(tl.trans(d_tile), query, d_vectors, input_precision="ieee")
        d_last = add_to_table(base, distance, d_vectors * scale, d_last, num_rows, block_k, size)
    add_to_last(base, d_last, num_rows, size)
