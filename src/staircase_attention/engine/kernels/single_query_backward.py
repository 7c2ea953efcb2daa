"""The backward of relative-position attention with one query for each batch row and head.

Gradients of keys and values are as large as these, that of the query is one vector. So the backward
of a query writes its own gradient only, and leaves notes: weights, gradients of scores, the query
and the gradient of what it found. Other kernels make the rest of them, and where queries of several
layers see the same keys and values, they do so once for all: what layers share is written once.
"""

# mypy: disable-error-code="untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.relative_call import Call, by_rows, in_one_piece
from staircase_attention.engine.kernels.relative_tiles import head_base
from staircase_attention.engine.kernels.single_query import (
    LARGEST_BLOCK,
    LARGEST_TILE,
    PLACE_ARGUMENTS,
    blocks,
    kept_keys,
    keys_in_sight,
    load_placed_keys,
    load_vector,
    place_of,
    rows_at,
)

SUMS_PER_WARP = 1024
"""Elements of a block of keys, and of values, that a warp sums up."""
DISTANCES = 16
"""Rows of the table that a program sums up."""
HEADS_AT_ONCE = 32
MOST_GROUPS = 32
"""Groups of heads for which the table's gradient is summed up side by side."""


@triton.jit(do_not_specialize=[*PLACE_ARGUMENTS, "layer", "num_layers"])
def queries_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    d_out: tl.tensor,
    logsumexp: tl.tensor,
    d_queries: tl.tensor,
    noted_queries: tl.tensor,
    noted_d_out: tl.tensor,
    weights: tl.tensor,
    d_scores: tl.tensor,
    first_visible: tl.tensor,
    seed: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    o_batch: tl.tensor,
    o_head: tl.tensor,
    g_batch: tl.tensor,
    g_head: tl.tensor,
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    k_batch: tl.tensor,
    k_head: tl.tensor,
    k_row: tl.tensor,
    v_batch: tl.tensor,
    v_head: tl.tensor,
    v_row: tl.tensor,
    layer: tl.tensor,
    num_layers: tl.tensor,
    num_heads: tl.tensor,
    num_keys: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_first_visible: tl.constexpr,
    has_dropout: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """The gradient of one head's query, and its notes.

    Weights are those that values were multiplied by, and `d_scores` are those after scaling. Notes
    on keys out of sight are not written.
    """
    head = tl.program_id(0)
    oldest, stop = keys_in_sight(
        first_visible, head, num_heads, num_keys, first_query, span, has_first_visible
    )
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    note = head.to(tl.int64) * num_layers + layer
    columns = tl.arange(0, size)
    query = load_vector(queries, head, num_heads, q_batch, q_head, size)
    gradient = load_vector(d_out, head, num_heads, g_batch, g_head, size)
    found = load_vector(out, head, num_heads, o_batch, o_head, size)
    tl.store(noted_queries + note * size + columns, query.to(noted_queries.dtype.element_ty))
    tl.store(noted_d_out + note * size + columns, gradient.to(noted_d_out.dtype.element_ty))
    query = query * scale
    # Their sum is what the softmax takes off every gradient. It is taken along with other sums in
    # the loop: before it, loads would wait for it.
    shifts = found * gradient
    raised = 1 / (1 - dropout)
    gradient = gradient * raised
    normaliser = tl.load(logsumexp + head)
    if has_dropout:
        drawn_from = tl.load(seed)
    d_query = tl.zeros((block, size), tl.float32)
    for place in tl.range(oldest, stop, block, num_stages=stages):
        rows = place + tl.arange(0, block)
        visible = rows < stop
        placed = load_placed_keys(k_base, table, rows, visible, k_row, num_rows, first_query, size)
        value = tl.load(rows_at(v_base, rows, v_row, size), mask=visible[:, None], other=0.0)
        scores = tl.sum(query[None, :] * placed, 1)
        excess = tl.where(visible, scores - normaliser, -float("inf"))
        weight = tl.exp2(excess * 1.4426950408889634)
        value = value.to(tl.float32)
        used = weight
        if has_dropout:
            kept = kept_keys(drawn_from, head, rows, dropout)
            used = tl.where(kept, weight * raised, 0.0)
            value = tl.where(kept[:, None], value, 0.0)
        d_row = weight * tl.sum(gradient[None, :] * value - shifts[None, :], 1)
        tl.store(weights + note * num_keys + rows, used, mask=visible)
        tl.store(d_scores + note * num_keys + rows, d_row * scale, mask=visible)
        d_query += d_row[:, None] * placed
    dq_base = head_base(d_queries, head, num_heads, dq_batch, dq_head)
    d_found = tl.sum(d_query, 0) * scale
    tl.store(dq_base + columns, d_found.to(d_queries.dtype.element_ty))


@triton.jit
def put(
    places: tl.tensor,
    found: tl.tensor,
    visible: tl.tensor,
    inside: tl.tensor,
    adds: tl.constexpr,
) -> None:
    """Write rows that are inside, or add to those in sight."""
    if adds:
        found += tl.load(places, mask=visible[:, None], other=0.0).to(tl.float32)
        tl.store(places, found.to(places.dtype.element_ty), mask=visible[:, None])
    else:
        tl.store(places, found.to(places.dtype.element_ty), mask=inside[:, None])


KEYS_ARGUMENTS = ["first_layer", "num_layers", "first_key", "num_stored", "num_blocks"]


@triton.jit(do_not_specialize=[*PLACE_ARGUMENTS, *KEYS_ARGUMENTS])
def keys_kernel(
    noted_queries: tl.tensor,
    noted_d_out: tl.tensor,
    weights: tl.tensor,
    d_scores: tl.tensor,
    d_keys: tl.tensor,
    d_values: tl.tensor,
    first_visible: tl.tensor,
    dk_batch: tl.tensor,
    dk_head: tl.tensor,
    dk_row: tl.tensor,
    dv_batch: tl.tensor,
    dv_head: tl.tensor,
    dv_row: tl.tensor,
    first_layer: tl.tensor,
    num_layers: tl.tensor,
    first_key: tl.tensor,
    num_stored: tl.tensor,
    num_blocks: tl.tensor,
    num_heads: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    num_summed: tl.constexpr,
    adds: tl.constexpr,
    has_first_visible: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of a block of one head's keys and values: sums over `num_summed` layers' notes.

    Room is given for `num_stored` keys from `first_key` on.
    """
    head = tl.program_id(0) // num_blocks
    places = tl.program_id(0) % num_blocks * block + tl.arange(0, block)
    rows = first_key + places
    oldest, stop = keys_in_sight(
        first_visible, head, num_heads, num_keys, first_query, span, has_first_visible
    )
    inside = places < num_stored
    visible = inside & (rows >= oldest) & (rows < stop)
    # A row for every key, all the same: so each thread loads what it multiplies.
    same = tl.zeros((block, 1), tl.int32) + tl.arange(0, size)[None, :]
    d_key = tl.zeros((block, size), tl.float32)
    d_value = tl.zeros((block, size), tl.float32)
    first = head.to(tl.int64) * num_layers + first_layer
    for layer in tl.static_range(num_summed):
        note = first + layer
        d_row = tl.load(d_scores + note * num_keys + rows, mask=visible, other=0.0)
        used = tl.load(weights + note * num_keys + rows, mask=visible, other=0.0)
        d_key += d_row[:, None] * tl.load(noted_queries + note * size + same).to(tl.float32)
        d_value += used[:, None] * tl.load(noted_d_out + note * size + same).to(tl.float32)
    dk_base = head_base(d_keys, head, num_heads, dk_batch, dk_head)
    dv_base = head_base(d_values, head, num_heads, dv_batch, dv_head)
    put(rows_at(dk_base, places, dk_row, size), d_key, visible, inside, adds)
    put(rows_at(dv_base, places, dv_row, size), d_value, visible, inside, adds)


@triton.jit
def load_scores(
    d_scores: tl.tensor,
    keys: tl.tensor,
    oldest: tl.tensor,
    heads: tl.tensor,
    earliest: tl.tensor,
    num_matrices: tl.tensor,
    num_keys: tl.tensor,
) -> tl.tensor:
    """The scores' gradients, keys times heads; zeros before key `oldest` and out of sight."""
    inside = ((keys >= oldest) & (keys < num_keys))[:, None] & (heads < num_matrices)[None, :]
    visible = inside & (keys[:, None] >= earliest[None, :])
    places = d_scores + heads.to(tl.int64)[None, :] * num_keys + keys[:, None]
    return tl.load(places, mask=visible, other=0.0)


@triton.jit(do_not_specialize=[*PLACE_ARGUMENTS, "num_matrices", "num_groups", "nearest"])
def table_kernel(
    queries: tl.tensor,
    d_scores: tl.tensor,
    table_sums: tl.tensor,
    first_visible: tl.tensor,
    num_matrices: tl.tensor,
    num_groups: tl.tensor,
    nearest: tl.tensor,
    num_heads: tl.tensor,
    num_keys: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    has_first_visible: tl.constexpr,
    block: tl.constexpr,
    block_heads: tl.constexpr,
    size: tl.constexpr,
) -> None:
    """Gradients of a block of the table's rows over a group of heads, in the sums of the group.

    `nearest` is the least distance of a key. The last row stands for greater distances too.
    """
    group = tl.program_id(0) % num_groups
    last = num_rows - 1
    first = tl.minimum(nearest, last) + tl.program_id(0) // num_groups * block
    # From the greatest distance to the least, as keys lie in memory.
    lanes = tl.arange(0, block)
    vectors = first + block - 1 - lanes
    keys = first_query - first - block + 1 + lanes
    is_last = (vectors == last)[:, None]
    oldest = first_query - span + 1
    oldest_short = tl.maximum(oldest, first_query - last + 1)
    # Distances from which on all belong to this block's last row.
    beyond = tl.where(first + block > last, tl.maximum(last, nearest), span)
    columns = tl.arange(0, size)[None, :]
    places = table_sums + group.to(tl.int64) * num_rows * size
    places = places + vectors.to(tl.int64)[:, None] * size + columns
    inside = (vectors < tl.minimum(num_rows, span))[:, None] | is_last
    before = tl.load(places, mask=inside, other=0.0)
    d_vectors = tl.zeros((block, size), tl.float32)
    for start in range(group * block_heads, num_matrices, num_groups * block_heads):
        heads = start + tl.arange(0, block_heads)
        there = heads < num_matrices
        batch_rows = (heads // num_heads).to(tl.int64)
        earliest = tl.zeros((block_heads,), tl.int32)
        if has_first_visible:
            found = tl.load(first_visible + batch_rows, mask=there, other=0)
            earliest = tl.maximum(found.to(tl.int32), 0)
        starts = queries + heads.to(tl.int64) * size
        query = tl.load(starts[:, None] + columns, mask=there[:, None], other=0.0)
        tile = load_scores(d_scores, keys, oldest_short, heads, earliest, num_matrices, num_keys)
        d_last = tl.zeros((block_heads,), tl.float32)
        for distance in range(beyond, span, block):
            far = first_query - distance - block + 1 + lanes
            d_far = load_scores(d_scores, far, oldest, heads, earliest, num_matrices, num_keys)
            d_last += tl.sum(d_far, 0)
        tile += tl.where(is_last, d_last[None, :], 0.0)
        d_vectors = tl.dot(tile.to(query.dtype), query, d_vectors, input_precision="ieee")
    tl.store(places, before + d_vectors, mask=inside)


class Notes:
    """Notes on single queries of some layers, which see as many keys each from the same place."""

    def __init__(
        self,
        keys: Tensor,
        table: Tensor,
        *,
        num_layers: int,
        first_query: int,
        span: int | None,
        first_visible: Tensor | None,
    ) -> None:
        # A query has the form of a key.
        self._call = Call.of(keys[:, :, :1], keys, table, first_query, span)
        self._table = table.contiguous()
        self._num_layers = num_layers
        self._first_visible = in_one_piece(first_visible)
        shape = (self._call.num_matrices, num_layers)

        def room(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty((*shape, width), dtype=dtype, device=keys.device)

        self._queries, self._d_out = (room(self._call.size, keys.dtype) for _ in range(2))
        self._weights, self._d_scores = (room(self._call.num_keys, torch.float32) for _ in range(2))

    def add_query(
        self,
        layer: int,
        d_out: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        *,
        d_queries: Tensor,
        dropout: float,
        seed: Tensor | None,
    ) -> None:
        """Write the gradient of a layer's query, and note what others are made of."""
        if queries.shape[2] != 1:
            raise ValueError("notes are kept of one query only")
        call = self._call
        d_out, queries, keys, values, out = map(by_rows, (d_out, queries, keys, values, out))
        queries_kernel[(call.num_matrices,)](
            queries,
            keys,
            values,
            self._table,
            out,
            d_out,
            logsumexp,
            d_queries,
            self._queries,
            self._d_out,
            self._weights,
            self._d_scores,
            self._first_visible,
            seed,
            *queries.stride()[:2],
            *out.stride()[:2],
            *d_out.stride()[:2],
            *d_queries.stride()[:2],
            *keys.stride()[:3],
            *values.stride()[:3],
            layer,
            self._num_layers,
            *place_of(call),
            call.scale,
            dropout,
            has_first_visible=self._first_visible is not None,
            has_dropout=dropout > 0,
            **blocks(call.size, 3 * keys.element_size()),
        )

    def sum_keys(
        self,
        layers: range,
        d_keys: Tensor,
        d_values: Tensor,
        *,
        first_key: int,
        adds: bool,
    ) -> None:
        """Write gradients that some layers give to keys and values together, or add them.

        They are those of as many tokens as there is room for, from `first_key` on.
        """
        assert d_keys.stride(-1) == d_values.stride(-1) == 1
        call, num_stored = self._call, d_keys.shape[2]
        block = min(LARGEST_TILE // call.size, LARGEST_BLOCK)
        num_blocks = -(-num_stored // block)
        keys_kernel[(call.num_matrices * num_blocks,)](
            self._queries,
            self._d_out,
            self._weights,
            self._d_scores,
            d_keys,
            d_values,
            self._first_visible,
            *d_keys.stride()[:3],
            *d_values.stride()[:3],
            layers.start,
            self._num_layers,
            first_key,
            num_stored,
            num_blocks,
            call.num_heads,
            call.num_keys,
            call.first_query,
            call.span,
            num_summed=len(layers),
            adds=adds,
            has_first_visible=self._first_visible is not None,
            block=block,
            size=call.size,
            num_warps=max(block * call.size // SUMS_PER_WARP, 1),
        )

    def sum_table(self, table_sums: Tensor) -> None:
        """Add what all layers give to the table, as if each were some more heads of a batch row."""
        call = self._call
        nearest = max(call.first_query - call.num_keys + 1, 0)
        if nearest >= call.span:
            return  # no key is in sight
        last = call.num_rows - 1
        num_blocks = -(-(min(call.span - 1, last) - min(nearest, last) + 1) // DISTANCES)
        num_matrices = call.num_matrices * self._num_layers
        most = min(MOST_GROUPS, table_sums.shape[0])
        num_groups = min(-(-num_matrices // HEADS_AT_ONCE), most)
        num_heads, *others = place_of(call)
        table_kernel[(num_blocks * num_groups,)](
            self._queries,
            self._d_scores,
            table_sums,
            self._first_visible,
            num_matrices,
            num_groups,
            nearest,
            num_heads * self._num_layers,
            *others,
            has_first_visible=self._first_visible is not None,
            block=DISTANCES,
            block_heads=HEADS_AT_ONCE,
            size=call.size,
        )


def backward(
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, Tensor, Tensor],
    table_sums: Tensor,
    *,
    first_query: int,
    span: int | None,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    past: tuple[Tensor, Tensor] | None,
    d_past: tuple[Tensor, Tensor] | None,
    adds_past: bool,
) -> None:
    """Write all gradients of one layer; the past is put before the keys and values."""
    d_out, queries, keys, values, table, out, logsumexp = inputs
    d_queries, d_keys, d_values = gradients
    num_past = 0
    if past is not None:
        num_past = past[0].shape[2]
        keys, values = (torch.cat(pair, dim=2) for pair in zip(past, (keys, values), strict=True))
    notes = Notes(
        keys,
        table,
        num_layers=1,
        first_query=first_query,
        span=span,
        first_visible=first_visible,
    )
    notes.add_query(
        0,
        d_out,
        queries,
        keys,
        values,
        out,
        logsumexp,
        d_queries=d_queries,
        dropout=dropout,
        seed=seed,
    )
    one = range(1)
    notes.sum_keys(one, d_keys, d_values, first_key=num_past, adds=False)
    if d_past is not None:
        first = num_past - d_past[0].shape[2]
        notes.sum_keys(one, *d_past, first_key=first, adds=adds_past)
    notes.sum_table(table_sums)
