"""The kernel that computes relative-position attention; see `relative_attention` for its use."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from staircase_attention.kernels.relative_tiles import (
    earliest_key,
    head_base,
    kept_pairs,
    keys_in_sight,
    load_distances,
    load_keys,
    load_rows,
    store_rows,
    tile_scores,
    visible_pairs,
)

SHAPE_ARGUMENTS = [
    "num_heads",
    "num_queries",
    "num_keys",
    "num_past",
    "num_rows",
    "first_query",
    "span",
]
"""Numbers that change from call to call: one kernel serves them all."""


@triton.jit(do_not_specialize=SHAPE_ARGUMENTS)
def forward_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    past_keys: tl.tensor,
    past_values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    logsumexp: tl.tensor,
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
    o_batch: tl.tensor,
    o_head: tl.tensor,
    o_row: tl.tensor,
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
    has_first_visible: tl.constexpr,
    has_dropout: tl.constexpr,
    has_near: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """One block of queries of one head, its keys from far to near, the softmax as they come."""
    num_blocks = tl.cdiv(num_queries, block_q)
    head = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block_q
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    q_base = head_base(queries, head, num_heads, q_batch, q_head)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    pk_base = head_base(past_keys, head, num_heads, pk_batch, pk_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    pv_base = head_base(past_values, head, num_heads, pv_batch, pv_head)
    start, stop = keys_in_sight(
        first, num_queries, num_keys, first_query, span, earliest, block_q, block_k
    )
    in_bits = scale * 1.4426950408889634  # exp(x) = 2 ** (x log2(e))
    query = load_rows(q_base, first, q_row, num_queries, block_q, size)
    far = load_distances(table, first_query + first - start, num_rows, block_k, size)
    by_far = tl.dot(query, tl.trans(far), input_precision="ieee")
    # A finite floor: a row with nothing in sight must not subtract infinities.
    highest = tl.full((block_q,), -1e30, tl.float32)
    total = tl.zeros((block_q,), tl.float32)
    gathered = tl.zeros((block_q, size), tl.float32)
    for place in range(start, stop, block_k):
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
        by_near = by_far
        if has_near:
            near = load_distances(
                table, first_query + first - place - block_k, num_rows, block_k, size
            )
            by_near = tl.dot(query, tl.trans(near), input_precision="ieee")
        scores = tile_scores(query, key, by_far, by_near, block_q, block_k, has_near) * in_bits
        by_far = by_near
        visible = visible_pairs(
            first, place, num_queries, num_keys, first_query, span, earliest, block_q, block_k
        )
        scores = tl.where(visible, scores, -float("inf"))
        raised = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - raised[:, None])
        shrunk = tl.exp2(highest - raised)
        highest = raised
        total = total * shrunk + tl.sum(weights, 1)
        if has_dropout:
            kept = kept_pairs(seed, head, first, place, num_keys, dropout, block_q, block_k)
            weights = tl.where(kept, weights, 0.0)
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
        gathered = tl.dot(
            weights.to(value.dtype), value, gathered * shrunk[:, None], input_precision="ieee"
        )
    sees = total > 0
    divisor = tl.where(sees, total, 1.0)
    gathered = gathered / (divisor * (1 - dropout))[:, None]
    o_base = head_base(out, head, num_heads, o_batch, o_head)
    store_rows(o_base, first, o_row, num_queries, gathered, block_q, size)
    rows = first + tl.arange(0, block_q)
    found = highest * 0.6931471805599453 + tl.log(divisor)
    tl.store(
        logsumexp + head.to(tl.int64) * num_queries + rows,
        tl.where(sees, found, -float("inf")),
        mask=rows < num_queries,
    )
