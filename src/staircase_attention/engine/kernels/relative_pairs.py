"""Kernels that go over tiles of queries and keys of one head, when there are several.

What depends on positions, and what is in sight, they have from `relative_positions`. They read and
write tiles through descriptors of whole tensors, (batch, heads, time, size), or (matrix, query,
`width`) for what is known of pairs, so that a GPU moves a tile by one instruction. What lies
outside of a tensor is read as zero and not written. So a query that is not there has a weight of 1
for every key, and nothing to multiply it by.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from staircase_attention.engine.kernels.relative_tiles import (
    LOG2E,
    add_tile,
    divided,
    dropped_alike,
    head_base,
    load_rows,
    no_softmax,
    store_past,
    store_rows,
)
from staircase_attention.engine.kernels.relative_tiling import (
    SHAPE_ARGUMENTS,
    queries_in_sight,
    tiles_in_sight,
)


@triton.jit
def load_vectors(
    tensor: tl.tensor_descriptor,
    head: tl.tensor,
    num_heads: tl.tensor,
    first: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """Rows of one head's matrix."""
    return tensor.load([head // num_heads, head % num_heads, first, 0]).reshape([num_rows, size])


@triton.jit
def store_vectors(
    tensor: tl.tensor_descriptor,
    head: tl.tensor,
    num_heads: tl.tensor,
    first: tl.tensor,
    rows_of: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Write what `load_vectors` would load."""
    found = rows_of.to(tensor.dtype).reshape([1, 1, num_rows, size])
    tensor.store([head // num_heads, head % num_heads, first, 0], found)


@triton.jit
def attend_tile(
    highest: tl.tensor,
    total: tl.tensor,
    gathered: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    scores: tl.tensor_descriptor,
    seed: tl.tensor,
    head: tl.tensor,
    num_heads: tl.tensor,
    first: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_dropout: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """The softmax with the tile at `place` more, of keys that begin at `begin`."""
    key = load_vectors(keys, head, num_heads, place - begin, block_k, size)
    by_place = scores.load([head, first, place]).reshape([block_q, block_k])
    value = load_vectors(values, head, num_heads, place - begin, block_k, size)
    content = tl.dot(query, tl.trans(key), input_precision="ieee")
    return add_tile(
        highest,
        total,
        gathered,
        content * (scale * LOG2E) + by_place.to(tl.float32),
        value,
        seed,
        head,
        first + tl.arange(0, block_q)[:, None],
        place - num_hidden + tl.arange(0, block_k)[None, :],
        num_keys - num_hidden,
        dropout,
        has_dropout,
    )


@triton.jit(do_not_specialize=SHAPE_ARGUMENTS)
def attend_kernel(
    queries: tl.tensor_descriptor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    past_keys: tl.tensor_descriptor,
    past_values: tl.tensor_descriptor,
    scores: tl.tensor_descriptor,
    out: tl.tensor_descriptor,
    logsumexp: tl.tensor,
    seed: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_past: tl.constexpr,
    has_dropout: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """One block of queries of one head, the keys of the past first, then the own.

    The blocks with the most keys come first, so that the last programs to run are short.
    """
    num_blocks = tl.cdiv(num_queries, block_q)
    head = tl.program_id(0) // num_blocks
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * block_q
    start, stop = tiles_in_sight(
        first, num_queries, num_keys, num_hidden, first_query, span, block_q, block_k
    )
    query = load_vectors(queries, head, num_heads, first, block_q, size)
    highest, total, gathered = no_softmax(block_q, size)
    if has_past:
        for place in range(start, tl.minimum(stop, boundary), block_k):
            highest, total, gathered = attend_tile(
                highest,
                total,
                gathered,
                query,
                past_keys,
                past_values,
                scores,
                seed,
                head,
                num_heads,
                first,
                place,
                num_hidden,
                num_keys,
                num_hidden,
                scale,
                dropout,
                has_dropout,
                block_q,
                block_k,
                size,
            )
        start = tl.maximum(start, boundary)
    for place in range(start, stop, block_k):
        highest, total, gathered = attend_tile(
            highest,
            total,
            gathered,
            query,
            keys,
            values,
            scores,
            seed,
            head,
            num_heads,
            first,
            place,
            boundary,
            num_keys,
            num_hidden,
            scale,
            dropout,
            has_dropout,
            block_q,
            block_k,
            size,
        )
    found = divided(highest, total, gathered, logsumexp, head, first, num_queries, dropout, block_q)
    store_vectors(out, head, num_heads, first, found, block_q, size)


@triton.jit
def load_keys_at(
    place: tl.tensor,
    past: tl.tensor,
    own: tl.tensor,
    past_stride: tl.tensor,
    own_stride: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    block_k: tl.constexpr,
    size: tl.constexpr,
    has_past: tl.constexpr,
) -> tl.tensor:
    """The tile of keys or values at `place`: all of it from the past, or all of it from the own."""
    base = own
    stride = own_stride
    begin = boundary
    end = num_keys
    if has_past:
        is_past = place < boundary
        base = tl.where(is_past, past, own)
        stride = tl.where(is_past, past_stride, own_stride)
        begin = tl.where(is_past, num_hidden, boundary)
        end = tl.where(is_past, boundary, num_keys)
    return load_rows(base, place - begin, stride, end - begin, block_k, size)


@triton.jit
def store_keys_at(
    place: tl.tensor,
    past: tl.tensor,
    own: tl.tensor,
    past_stride: tl.tensor,
    own_stride: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_stored: tl.tensor,
    rows_of: tl.tensor,
    block_k: tl.constexpr,
    size: tl.constexpr,
    has_past: tl.constexpr,
    stores_past: tl.constexpr,
    adds_past: tl.constexpr,
) -> None:
    """Write what `load_keys_at` would load; of the past, if any, as `store_past` does."""
    if has_past and place < boundary:
        if stores_past:
            store_past(
                past,
                place - num_hidden,
                past_stride,
                boundary - num_hidden,
                num_stored,
                rows_of,
                block_k,
                size,
                adds_past,
            )
    else:
        own_first = place - boundary
        store_rows(own, own_first, own_stride, num_keys - boundary, rows_of, block_k, size)


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_stored"])
def keys_kernel(
    queries: tl.tensor_descriptor,
    keys: tl.tensor,
    values: tl.tensor,
    past_keys: tl.tensor,
    past_values: tl.tensor,
    scores: tl.tensor_descriptor,
    d_scores: tl.tensor_descriptor,
    d_out: tl.tensor_descriptor,
    normalisers: tl.tensor_descriptor,
    agreement: tl.tensor_descriptor,
    d_keys: tl.tensor,
    d_values: tl.tensor,
    d_past_keys: tl.tensor,
    d_past_values: tl.tensor,
    seed: tl.tensor,
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
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_past: tl.constexpr,
    stores_past: tl.constexpr,
    adds_past: tl.constexpr,
    has_dropout: tl.constexpr,
    rows_q: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of one block of keys and values of one head, and of the scores with it.

    `d_scores` are those before scaling, and may lie where the scores do. Tiles of `rows_q` queries
    have keys as rows here: weights and gradients go from one product into the next as they are.
    """
    num_blocks = tl.cdiv(num_keys, block_k)
    head = tl.program_id(0) // num_blocks
    place = tl.program_id(0) % num_blocks * block_k
    start, stop = queries_in_sight(
        place, num_queries, num_keys, first_query, span, block_q, block_k
    )
    key = load_keys_at(
        place,
        head_base(past_keys, head, num_heads, pk_batch, pk_head),
        head_base(keys, head, num_heads, k_batch, k_head),
        pk_row,
        k_row,
        num_keys,
        num_hidden,
        boundary,
        block_k,
        size,
        has_past,
    )
    value = load_keys_at(
        place,
        head_base(past_values, head, num_heads, pv_batch, pv_head),
        head_base(values, head, num_heads, v_batch, v_head),
        pv_row,
        v_row,
        num_keys,
        num_hidden,
        boundary,
        block_k,
        size,
        has_past,
    )
    rows = place - num_hidden + tl.arange(0, block_k)[:, None]
    d_key = tl.zeros((block_k, size), tl.float32)
    d_value = tl.zeros((block_k, size), tl.float32)
    for first in range(start, stop, rows_q):
        query = load_vectors(queries, head, num_heads, first, rows_q, size)
        by_place = tl.trans(scores.load([head, first, place]).reshape([rows_q, block_k]))
        gradient = load_vectors(d_out, head, num_heads, first, rows_q, size)
        normaliser = normalisers.load([head, first])
        shift = agreement.load([head, first])
        content = tl.dot(key, tl.trans(query), input_precision="ieee")
        weights = tl.exp2(content * (scale * LOG2E) + (by_place.to(tl.float32) - normaliser))
        d_weights = tl.dot(value, tl.trans(gradient), input_precision="ieee")
        used, d_weights = dropped_alike(
            weights,
            d_weights,
            seed,
            head,
            first + tl.arange(0, rows_q)[None, :],
            rows,
            num_keys - num_hidden,
            dropout,
            has_dropout,
        )
        d_value = tl.dot(used.to(gradient.dtype), gradient, d_value, input_precision="ieee")
        d_tile = (weights * (d_weights - shift)).to(query.dtype)
        d_key = tl.dot(d_tile, query, d_key, input_precision="ieee")
        d_scores.store([head, first, place], tl.trans(d_tile).reshape([1, rows_q, block_k]))
    store_keys_at(
        place,
        head_base(d_past_keys, head, num_heads, dpk_batch, dpk_head),
        head_base(d_keys, head, num_heads, dk_batch, dk_head),
        dpk_row,
        dk_row,
        num_keys,
        num_hidden,
        boundary,
        num_stored,
        d_key * scale,
        block_k,
        size,
        has_past,
        stores_past,
        adds_past,
    )
    store_keys_at(
        place,
        head_base(d_past_values, head, num_heads, dpv_batch, dpv_head),
        head_base(d_values, head, num_heads, dv_batch, dv_head),
        dpv_row,
        dv_row,
        num_keys,
        num_hidden,
        boundary,
        num_stored,
        d_value,
        block_k,
        size,
        has_past,
        stores_past,
        adds_past,
    )


@triton.jit(do_not_specialize=SHAPE_ARGUMENTS)
def queries_by_key_kernel(
    keys: tl.tensor_descriptor,
    past_keys: tl.tensor_descriptor,
    d_scores: tl.tensor_descriptor,
    d_queries: tl.tensor_descriptor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_hidden: tl.tensor,
    boundary: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    has_past: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """What the keys add to the gradients of one block of queries of one head; added there."""
    num_blocks = tl.cdiv(num_queries, block_q)
    head = tl.program_id(0) // num_blocks
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * block_q
    start, stop = tiles_in_sight(
        first, num_queries, num_keys, num_hidden, first_query, span, block_q, block_k
    )
    by_table = load_vectors(d_queries, head, num_heads, first, block_q, size).to(tl.float32)
    d_query = tl.zeros((block_q, size), tl.float32)
    if has_past:
        for place in range(start, tl.minimum(stop, boundary), block_k):
            key = load_vectors(past_keys, head, num_heads, place - num_hidden, block_k, size)
            d_tile = d_scores.load([head, first, place]).reshape([block_q, block_k])
            d_query = tl.dot(d_tile, key, d_query, input_precision="ieee")
        start = tl.maximum(start, boundary)
    for place in range(start, stop, block_k):
        key = load_vectors(keys, head, num_heads, place - boundary, block_k, size)
        d_tile = d_scores.load([head, first, place]).reshape([block_q, block_k])
        d_query = tl.dot(d_tile, key, d_query, input_precision="ieee")
    store_vectors(d_queries, head, num_heads, first, d_query * scale + by_table, block_q, size)
