"""The kernel for the gradients of relative-position attention, when one tile holds all pairs."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from staircase_attention.kernels.relative_backward import add_to_last, add_to_table
from staircase_attention.kernels.relative_forward import SHAPE_ARGUMENTS
from staircase_attention.kernels.relative_tiles import (
    dropped_alike,
    earliest_key,
    head_base,
    is_far,
    load_distances,
    load_keys,
    load_rows,
    rotate,
    store_keys,
    store_rows,
    tile_scores,
    visible_pairs,
    weights_again,
)


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices", "num_stored"])
def single_tile_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    past_keys: tl.tensor,
    past_values: tl.tensor,
    table: tl.tensor,
    d_out: tl.tensor,
    logsumexp: tl.tensor,
    d_queries: tl.tensor,
    d_keys: tl.tensor,
    d_values: tl.tensor,
    d_past_keys: tl.tensor,
    d_past_values: tl.tensor,
    table_sums: tl.tensor,
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
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    dq_row: tl.tensor,
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
    num_matrices: tl.tensor,
    num_stored: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_past: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_past: tl.constexpr,
    stores_past: tl.constexpr,
    adds_past: tl.constexpr,
    has_first_visible: tl.constexpr,
    has_dropout: tl.constexpr,
    has_near: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """All gradients of some heads; the table's are kept in registers until the last of them."""
    program = tl.program_id(0)
    d_far = tl.zeros((block_k, size), tl.float32)
    d_near = tl.zeros((block_k, size), tl.float32)
    far = load_distances(table, first_query, num_rows, block_k, size)
    if has_near:
        near = load_distances(table, first_query - block_k, num_rows, block_k, size)
    for head in range(program, num_matrices, tl.num_programs(0)):
        earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
        q_base = head_base(queries, head, num_heads, q_batch, q_head)
        k_base = head_base(keys, head, num_heads, k_batch, k_head)
        pk_base = head_base(past_keys, head, num_heads, pk_batch, pk_head)
        v_base = head_base(values, head, num_heads, v_batch, v_head)
        pv_base = head_base(past_values, head, num_heads, pv_batch, pv_head)
        g_base = head_base(d_out, head, num_heads, g_batch, g_head)
        query = load_rows(q_base, 0, q_row, num_queries, block_q, size)
        key = load_keys(
            pk_base,
            k_base,
            0,
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
            0,
            pv_row,
            v_row,
            num_past,
            num_keys,
            block_k,
            size,
            has_past,
        )
        gradient = load_rows(g_base, 0, g_row, num_queries, block_q, size)
        by_far = tl.dot(query, tl.trans(far), input_precision="ieee")
        by_near = by_far
        if has_near:
            by_near = tl.dot(query, tl.trans(near), input_precision="ieee")
        scores = tile_scores(query, key, by_far, by_near, block_q, block_k, has_near) * scale
        visible = visible_pairs(
            0, 0, num_queries, num_keys, first_query, span, earliest, block_q, block_k
        )
        rows = tl.arange(0, block_q)
        rows_base = tl.cast(head, tl.int64) * num_queries
        weights = weights_again(scores, visible, logsumexp + rows_base, rows, num_queries)
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        used, d_weights = dropped_alike(
            weights, d_weights, seed, head, 0, 0, num_keys, dropout, has_dropout, block_q, block_k
        )
        d_value = tl.dot(tl.trans(used.to(gradient.dtype)), gradient, input_precision="ieee")
        dv_base = head_base(d_values, head, num_heads, dv_batch, dv_head)
        dpv_base = head_base(d_past_values, head, num_heads, dpv_batch, dpv_head)
        store_keys(
            dpv_base,
            dv_base,
            0,
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
        shift = tl.sum(weights * d_weights, 1)
        d_tile = (weights * (d_weights - shift[:, None])).to(query.dtype)
        d_key = tl.dot(tl.trans(d_tile), query, input_precision="ieee")
        dk_base = head_base(d_keys, head, num_heads, dk_batch, dk_head)
        dpk_base = head_base(d_past_keys, head, num_heads, dpk_batch, dpk_head)
        store_keys(
            dpk_base,
            dk_base,
            0,
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
        by_distance = rotate(d_tile, block_q, block_k)
        d_query = tl.dot(d_tile, key, input_precision="ieee")
        if has_near:
            by_none = tl.zeros_like(by_distance)
            in_far = is_far(block_q, block_k)
            d_by_near = tl.where(in_far, by_none, by_distance)
            d_query = tl.dot(d_by_near, near, d_query, input_precision="ieee")
            d_near = tl.dot(tl.trans(d_by_near), query, d_near, input_precision="ieee")
            by_distance = tl.where(in_far, by_distance, by_none)
        d_query = tl.dot(by_distance, far, d_query, input_precision="ieee")
        d_far = tl.dot(tl.trans(by_distance), query, d_far, input_precision="ieee")
        dq_base = head_base(d_queries, head, num_heads, dq_batch, dq_head)
        store_rows(dq_base, 0, dq_row, num_queries, d_query * scale, block_q, size)
    base = table_sums + program.to(tl.int64) * num_rows * size
    d_last = tl.zeros((size,), tl.float32)
    d_last = add_to_table(base, first_query, d_far * scale, d_last, num_rows, block_k, size)
    if has_near:
        nearest = first_query - block_k
        d_last = add_to_table(base, nearest, d_near * scale, d_last, num_rows, block_k, size)
    add_to_last(base, d_last, num_rows, size)
