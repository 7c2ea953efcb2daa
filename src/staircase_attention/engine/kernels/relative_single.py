"""Kernels for relative-position attention when a single tile holds all pairs of a head."""

# mypy: disable-error-code="untyped-decorator"

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.relative_call import LARGEST_TILE, Call, block_for, strides
from staircase_attention.engine.kernels.relative_rotation import is_far, rotate, tile_scores
from staircase_attention.engine.kernels.relative_tiles import (
    LOG2E,
    add_tile,
    add_to_last,
    add_to_table,
    divided,
    dropped_alike,
    earliest_key,
    head_base,
    load_distances,
    load_keys,
    load_rows,
    no_softmax,
    store_keys,
    store_rows,
)

Kernel = Literal["forward", "backward"]
TUNED: dict[tuple[torch.dtype, bool], dict[Kernel, tuple[int, int]]] = {
    (torch.bfloat16, False): {"forward": (4, 3), "backward": (4, 2)},
    (torch.bfloat16, True): {"forward": (4, 1), "backward": (8, 2)},
    (torch.float32, False): {"forward": (8, 1), "backward": (8, 1)},
    (torch.float32, True): {"forward": (8, 1), "backward": (8, 1)},
}
"""For each kind of numbers, for heads that are wide or not, and for each kernel: warps, and stages
of its pipeline. The fastest of those tried on an H200 for windows of 64 tokens."""
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


@triton.jit
def visible_pairs(
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    """Which pairs are there and in sight.

    Each query's oldest and newest key first: rows and columns take few registers, pairs many.
    """
    queries = tl.arange(0, block_q)
    keys = tl.arange(0, block_k)[None, :]
    oldest = tl.maximum(first_query + queries - span + 1, earliest)
    newest = tl.minimum(first_query + queries, num_keys - 1)
    newest = tl.where(queries < num_queries, newest, -1)
    return (keys >= oldest[:, None]) & (keys <= newest[:, None])


@triton.jit
def weights_again(
    scores: tl.tensor, visible: tl.tensor, logsumexp: tl.tensor, rows: tl.tensor, limit: tl.tensor
) -> tl.tensor:
    """The softmax of the scores, by what the forward kernel left of its divisors."""
    normaliser = tl.load(logsumexp + rows, mask=rows < limit, other=0.0)
    excess = tl.where(visible, scores - normaliser[:, None], -float("inf"))
    return tl.exp2(excess * LOG2E)


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
    """Attention of one head."""
    head = tl.program_id(0)
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    q_base = head_base(queries, head, num_heads, q_batch, q_head)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    pk_base = head_base(past_keys, head, num_heads, pk_batch, pk_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    pv_base = head_base(past_values, head, num_heads, pv_batch, pv_head)
    query = load_rows(q_base, 0, q_row, num_queries, block_q, size)
    columns = tl.arange(0, block_k)
    far = load_distances(table, first_query + columns, num_rows, size)
    near = far
    if has_near:
        near = load_distances(table, first_query - block_k + columns, num_rows, size)
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
    scores = tile_scores(query, key, far, near, block_q, block_k, has_near) * (scale * LOG2E)
    visible = visible_pairs(num_queries, num_keys, first_query, span, earliest, block_q, block_k)
    highest, total, gathered = no_softmax(block_q, size)
    highest, total, gathered = add_tile(
        highest,
        total,
        gathered,
        tl.where(visible, scores, -float("inf")),
        value,
        seed,
        head,
        tl.arange(0, block_q)[:, None],
        columns[None, :],
        num_keys,
        dropout,
        has_dropout,
    )
    found = divided(highest, total, gathered, logsumexp, head, 0, num_queries, dropout, block_q)
    o_base = head_base(out, head, num_heads, o_batch, o_head)
    store_rows(o_base, 0, o_row, num_queries, found, block_q, size)


@triton.jit(do_not_specialize=[*SHAPE_ARGUMENTS, "num_matrices", "num_stored"])
def backward_kernel(
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
    columns = tl.arange(0, block_k)
    far = load_distances(table, first_query + columns, num_rows, size)
    near = far
    if has_near:
        near = load_distances(table, first_query - block_k + columns, num_rows, size)
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
        scores = tile_scores(query, key, far, near, block_q, block_k, has_near) * scale
        visible = visible_pairs(
            num_queries, num_keys, first_query, span, earliest, block_q, block_k
        )
        rows = tl.arange(0, block_q)
        rows_base = tl.cast(head, tl.int64) * num_queries
        weights = weights_again(scores, visible, logsumexp + rows_base, rows, num_queries)
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        used, d_weights = dropped_alike(
            weights,
            d_weights,
            seed,
            head,
            rows[:, None],
            columns[None, :],
            num_keys,
            dropout,
            has_dropout,
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
    d_last = add_to_table(base, first_query + columns, d_far * scale, d_last, num_rows, size)
    if has_near:
        distances = first_query - block_k + columns
        d_last = add_to_table(base, distances, d_near * scale, d_last, num_rows, size)
    add_to_last(base, d_last, num_rows, size)


def shape_of(call: Call) -> tuple[int, ...]:
    """The kernels' arguments from `num_heads` to `span`."""
    keys = (call.num_keys, call.num_past)
    return call.num_heads, call.num_queries, *keys, call.num_rows, call.first_query, call.span


def options_of(call: Call, kernel: Kernel) -> dict[str, Any]:
    """How a kernel is compiled: a tile as small as possible, with no more queries than keys."""
    largest = LARGEST_TILE[call.kind]
    block_q = block_for(call.num_queries, largest)
    num_warps, num_stages = TUNED[call.kind][kernel]
    return {
        # Nothing lies in the near block where queries begin with the keys.
        "has_near": call.first_query > 0,
        "block_q": block_q,
        "block_k": max(block_q, block_for(call.num_keys, largest)),
        "size": call.size,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def forward(
    call: Call,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    logsumexp: Tensor,
    *,
    before: tuple[Tensor, Tensor],
    has_past: bool,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Attention, written to `out` and `logsumexp`."""
    queries, keys, values, table = inputs
    forward_kernel[(call.num_matrices,)](
        queries,
        keys,
        values,
        *before,
        table,
        out,
        logsumexp,
        first_visible,
        seed,
        *strides(queries, keys, values, *before, out),
        *shape_of(call),
        call.scale,
        dropout,
        has_past=has_past,
        has_first_visible=first_visible is not None,
        has_dropout=dropout > 0,
        **options_of(call, "forward"),
    )


def backward(
    call: Call,
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, Tensor, Tensor],
    table_sums: Tensor,
    *,
    before: tuple[Tensor, Tensor],
    d_before: tuple[Tensor, Tensor],
    has_past: bool,
    stores_past: bool,
    adds_past: bool,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """All gradients in one launch."""
    d_out, queries, keys, values, table, _, logsumexp = inputs
    backward_kernel[(min(call.num_matrices, len(table_sums)),)](
        queries,
        keys,
        values,
        *before,
        table,
        d_out,
        logsumexp,
        *gradients,
        *d_before,
        table_sums,
        first_visible,
        seed,
        *strides(queries, keys, values, *before, d_out, *gradients, *d_before),
        call.num_matrices,
        d_before[0].shape[2],
        *shape_of(call),
        call.scale,
        dropout,
        has_past=has_past,
        stores_past=stores_past,
        adds_past=adds_past,
        has_first_visible=first_visible is not None,
        has_dropout=dropout > 0,
        **options_of(call, "backward"),
    )
