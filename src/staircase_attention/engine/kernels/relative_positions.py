"""Kernels that go from distances to keys and back, when there are several tiles of pairs.

The table is one for all batch rows and heads. So the tiles here have matrices, one for each batch
row and head, as rows, all at one query. Its scores by position are the product of the matrices'
queries with the vectors of the distances to one key after the other: columns are keys already. So
it is with the gradients: of the queries by the table, and of the table.

`scores` are in bits, -inf out of sight. For bfloat16 they are kept in float16, which rounds them
less than their factors were rounded.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from staircase_attention.engine.kernels.relative_tiles import (
    LOG2E,
    add_to_last,
    add_to_table,
    load_distances,
)
from staircase_attention.engine.kernels.relative_tiling import SHAPE_ARGUMENTS, tiles_in_sight

HIGHEST_HALF = tl.constexpr(60000.0)
HIGHEST = tl.constexpr(3e38)
"""Scores in float16 and in float32 are not beyond: infinite ones are out of sight."""


@triton.jit
def matrices_at(
    base: tl.tensor,
    query: tl.tensor,
    matrices: tl.tensor,
    num_heads: tl.tensor,
    batch_stride: tl.tensor,
    head_stride: tl.tensor,
    row_stride: tl.tensor,
    size: tl.constexpr,
) -> tl.tensor:
    """Where the vectors of one query in some matrices lie."""
    rows = (matrices // num_heads).to(tl.int64) * batch_stride
    rows += (matrices % num_heads).to(tl.int64) * head_stride
    rows += tl.cast(query, tl.int64) * row_stride
    return base + rows[:, None] + tl.arange(0, size)[None, :]


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices", "rows_width"])
def scores_kernel(
    queries: tl.tensor,
    table: tl.tensor,
    scores: tl.tensor,
    first_visible: tl.tensor,
    out: tl.tensor,
    d_out: tl.tensor,
    logsumexp: tl.tensor,
    normalisers: tl.tensor,
    agreement: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    q_row: tl.tensor,
    o_batch: tl.tensor,
    o_head: tl.tensor,
    o_row: tl.tensor,
    g_batch: tl.tensor,
    g_head: tl.tensor,
    g_row: tl.tensor,
    num_matrices: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    rows_width: tl.tensor,
    scale: tl.tensor,
    has_first_visible: tl.constexpr,
    has_gradients: tl.constexpr,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Scores by position of one query of some matrices.

    On the way back also what else is one number a query, in rows of `rows_width`: the softmax's
    divisor, in bits, and `agreement`, the output's product with its gradient, which the softmax
    takes off every gradient.
    """
    query = tl.program_id(0)
    matrices = tl.program_id(1) * block_m + tl.arange(0, block_m)
    there = matrices < num_matrices
    places = matrices_at(queries, query, matrices, num_heads, q_batch, q_head, q_row, size)
    vectors = tl.load(places, mask=there[:, None], other=0.0)
    first = query // block_q * block_q
    start, stop = tiles_in_sight(
        first, num_queries, num_keys, num_hidden, first_query, span, block_q, block_k
    )
    newest = tl.minimum(first_query + query, num_keys - 1)
    oldest = tl.maximum(first_query + query - span + 1, num_hidden)
    rows = matrices.to(tl.int64) * num_queries + query
    base = scores + rows * width
    if has_first_visible:
        earliest = tl.load(first_visible + matrices // num_heads, mask=there, other=0) + num_hidden
    highest: tl.constexpr = HIGHEST_HALF if scores.dtype.element_ty == tl.float16 else HIGHEST
    for place in range(start, stop, block_k):
        keys = place + tl.arange(0, block_k)
        by_place = load_distances(table, first_query + query - keys, num_rows, size)
        found = tl.dot(vectors, tl.trans(by_place), input_precision="ieee") * (scale * LOG2E)
        visible = (keys >= oldest) & (keys <= newest)
        most = tl.where(visible, highest, -float("inf"))
        found = tl.minimum(tl.maximum(found, -highest), most[None, :])
        if has_first_visible:
            found = tl.where(keys[None, :] >= earliest[:, None], found, -float("inf"))
        found = found.to(scores.dtype.element_ty)
        tl.store(base[:, None] + keys[None, :], found, mask=there[:, None])
    if has_gradients:
        places = matrices_at(out, query, matrices, num_heads, o_batch, o_head, o_row, size)
        found = tl.load(places, mask=there[:, None], other=0.0).to(tl.float32)
        places = matrices_at(d_out, query, matrices, num_heads, g_batch, g_head, g_row, size)
        gradient = tl.load(places, mask=there[:, None], other=0.0).to(tl.float32)
        places = matrices.to(tl.int64) * rows_width + query
        tl.store(agreement + places, tl.sum(found * gradient, 1), mask=there)
        divisor = tl.load(logsumexp + rows, mask=there, other=0.0)
        # Where nothing is in sight, all scores are -inf: any finite number leaves weights of 0.
        divisor = tl.where(divisor == -float("inf"), 0.0, divisor * LOG2E)
        tl.store(normalisers + places, divisor, mask=there)


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices"])
def queries_by_table_kernel(
    table: tl.tensor,
    d_scores: tl.tensor,
    d_queries: tl.tensor,
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    dq_row: tl.tensor,
    num_matrices: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """What the table adds to the gradient of one query of some matrices; written."""
    query = tl.program_id(0)
    matrices = tl.program_id(1) * block_m + tl.arange(0, block_m)
    there = (matrices < num_matrices)[:, None]
    first = query // block_q * block_q
    start, stop = tiles_in_sight(
        first, num_queries, num_keys, num_hidden, first_query, span, block_q, block_k
    )
    base = d_scores + (matrices.to(tl.int64) * num_queries + query) * width
    d_query = tl.zeros((block_m, size), tl.float32)
    for place in range(start, stop, block_k):
        keys = tl.multiple_of(place, block_k) + tl.arange(0, block_k)
        d_tile = tl.load(base[:, None] + keys[None, :], mask=there, other=0.0)
        by_place = load_distances(table, first_query + query - keys, num_rows, size)
        d_query = tl.dot(d_tile, by_place, d_query, input_precision="ieee")
    places = matrices_at(d_queries, query, matrices, num_heads, dq_batch, dq_head, dq_row, size)
    tl.store(places, (d_query * scale).to(d_queries.dtype.element_ty), mask=there)


@triton.jit(
    do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices", "num_blocks", "num_groups", "num_parts"]
)
def table_kernel(
    queries: tl.tensor,
    d_scores: tl.tensor,
    table_sums: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    q_row: tl.tensor,
    num_matrices: tl.tensor,
    num_blocks: tl.tensor,
    num_groups: tl.tensor,
    num_parts: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    num_classes: tl.constexpr,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of blocks of distances, each program in sums of its own.

    A program takes queries that stand at places alike modulo `num_classes`. Among these, the keys
    of one block of distances begin at multiples of `num_classes`, so that rows of `d_scores` are
    read in wide steps. It owns some of the blocks, and shares them with the programs that take
    other groups of matrices, or other parts of the queries.
    """
    program = tl.program_id(0)
    base = table_sums + program.to(tl.int64) * num_rows * size
    d_last = tl.zeros((size,), tl.float32)
    kind = program % num_classes
    rest = program // num_classes
    owner = rest // num_groups
    num_owners = tl.num_programs(0) // num_classes // num_groups
    part = rest % num_groups % num_parts
    group = rest % num_groups // num_parts
    begin = (kind - first_query % num_classes + num_classes) % num_classes
    columns = tl.arange(0, block_k)
    # Near distances have more queries than far ones: there and back again over the owners.
    for turn in range(tl.cdiv(num_blocks, num_owners)):
        block = turn * num_owners + tl.where(turn % 2 == 0, owner, num_owners - 1 - owner)
        farthest = block * block_k + block_k - num_classes + kind
        # No query at a place before the block's nearest distance has such a key.
        nearest = farthest - block_k + 1
        skipped = tl.maximum(nearest - first_query - begin, 0) // num_classes * num_classes
        stop = tl.where(block < num_blocks, num_queries, 0)
        d_vectors = tl.zeros((block_k, size), tl.float32)
        for first_matrix in range(group * block_m, num_matrices, num_groups // num_parts * block_m):
            matrices = first_matrix + tl.arange(0, block_m)
            there = (matrices < num_matrices)[:, None]
            d_places = d_scores + matrices.to(tl.int64) * num_queries * width
            q_places = matrices_at(queries, 0, matrices, num_heads, q_batch, q_head, q_row, size)
            for query in range(begin + skipped + part * num_classes, stop, num_parts * num_classes):
                first = query // block_q * block_q
                first_key, last_key = tiles_in_sight(
                    first, num_queries, num_keys, num_hidden, first_query, span, block_q, block_k
                )
                place = (first_query + query - farthest) // num_classes * num_classes
                keys = tl.multiple_of(place, num_classes) + columns
                inside = (keys >= first_key) & (keys < last_key)
                row = tl.cast(query, tl.int64)
                d_tile = tl.load(
                    d_places[:, None] + row * width + keys[None, :],
                    mask=there & inside[None, :],
                    other=0.0,
                )
                vectors = tl.load(q_places + row * q_row, mask=there, other=0.0)
                d_vectors = tl.dot(tl.trans(d_tile), vectors, d_vectors, input_precision="ieee")
        if block < num_blocks:
            d_last = add_to_table(
                base, farthest - columns, d_vectors * scale, d_last, num_rows, size
            )
    add_to_last(base, d_last, num_rows, size)
