"""Kernels for relative-position attention with one query for each batch row and head.

With one query there is no matrix to multiply by, and time goes into reading keys and values once.
A program takes one head through its keys in blocks, and block after block adds to the same lanes:
lanes are summed up after the last, so that the threads of a program need not meet before. The
kernels drop the same weights as those for many queries.
"""

# mypy: disable-error-code="untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.kernels.relative_call import Call
from staircase_attention.kernels.relative_tiles import earliest_key, head_base

PLACE_ARGUMENTS = ["num_heads", "num_keys", "num_rows", "first_query", "span"]
"""Numbers that change from call to call: one kernel serves them all."""
STAGES = 3
"""Blocks of keys at hand or on their way from memory; shared memory holds one less."""
ROOM = 100 * 1024
"""Bytes of shared memory for them: two programs fit on a processor."""
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 64
LARGEST_TILE = 4096
"""Elements of a block: two programs' registers fit on a processor."""
ELEMENTS_PER_WARP = 256
"""As many as its threads load at once in bfloat16."""
MOST_WARPS = 8
DISTANCES = 16
"""Rows of the table that a program sums up."""
HEADS_AT_ONCE = 32
MOST_GROUPS = 8
"""Groups of heads for which the table's gradient is summed up side by side."""


@triton.jit
def rows_at(base: tl.tensor, rows: tl.tensor, stride: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """Where the elements of these rows lie."""
    return base + (rows.to(tl.int64) * stride)[:, None] + tl.arange(0, size)[None, :]


@triton.jit
def load_vector(
    base: tl.tensor,
    head: tl.tensor,
    num_heads: tl.tensor,
    batch_stride: tl.tensor,
    head_stride: tl.tensor,
    size: tl.constexpr,
) -> tl.tensor:
    """The only row of one head, in float32."""
    start = head_base(base, head, num_heads, batch_stride, head_stride)
    return tl.load(start + tl.arange(0, size)).to(tl.float32)


@triton.jit
def load_placed_keys(
    keys: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    visible: tl.tensor,
    stride: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    size: tl.constexpr,
) -> tl.tensor:
    """Keys, each with the vector of its distance added; zeros where nothing is in sight."""
    key = tl.load(rows_at(keys, rows, stride, size), mask=visible[:, None], other=0.0)
    distances = tl.minimum(first_query - rows, num_rows - 1)
    vector = tl.load(rows_at(table, distances, size, size), mask=visible[:, None], other=0.0)
    return key.to(tl.float32) + vector.to(tl.float32)


@triton.jit
def kept_keys(seed: tl.tensor, head: tl.tensor, rows: tl.tensor, dropout: tl.tensor) -> tl.tensor:
    """Which weights survive dropout, as `relative_tiles.kept_pairs` says it for query 0."""
    zeros = rows * 0
    noise, _, _, _ = tl.philox(seed, rows, zeros + head, zeros, zeros)
    return tl.uint_to_uniform_float(noise) >= dropout


@triton.jit(do_not_specialize=PLACE_ARGUMENTS)
def forward_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    logsumexp: tl.tensor,
    first_visible: tl.tensor,
    seed: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    o_batch: tl.tensor,
    o_head: tl.tensor,
    k_batch: tl.tensor,
    k_head: tl.tensor,
    k_row: tl.tensor,
    v_batch: tl.tensor,
    v_head: tl.tensor,
    v_row: tl.tensor,
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
    """One head. Each lane of a block has a softmax of its own until the last block is done."""
    head = tl.program_id(0)
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    oldest = tl.maximum(first_query - span + 1, earliest)
    stop = tl.minimum(num_keys, first_query + 1)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    query = load_vector(queries, head, num_heads, q_batch, q_head, size)
    query = query * (scale * 1.4426950408889634)  # exp(x) = 2 ** (x log2(e))
    if has_dropout:
        drawn_from = tl.load(seed)
    # A finite floor: a lane with nothing in sight must not subtract infinities.
    highest = tl.full((block,), -1e30, tl.float32)
    total = tl.zeros((block,), tl.float32)
    gathered = tl.zeros((block, size), tl.float32)
    for place in tl.range(oldest, stop, block, num_stages=stages):
        rows = place + tl.arange(0, block)
        visible = rows < stop
        placed = load_placed_keys(k_base, table, rows, visible, k_row, num_rows, first_query, size)
        value = tl.load(rows_at(v_base, rows, v_row, size), mask=visible[:, None], other=0.0)
        scores = tl.where(visible, tl.sum(query[None, :] * placed, 1), -float("inf"))
        raised = tl.maximum(highest, scores)
        weights = tl.exp2(scores - raised)
        shrunk = tl.exp2(highest - raised)
        highest = raised
        total = total * shrunk + weights
        if has_dropout:
            weights = tl.where(kept_keys(drawn_from, head, rows, dropout), weights, 0.0)
        gathered = gathered * shrunk[:, None] + weights[:, None] * value.to(tl.float32)
    top = tl.max(highest, 0)
    shrunk = tl.exp2(highest - top)
    divisor = tl.sum(total * shrunk, 0)
    sees = divisor > 0
    divisor = tl.where(sees, divisor, 1.0)
    found = tl.sum(gathered * shrunk[:, None], 0) / (divisor * (1 - dropout))
    o_base = head_base(out, head, num_heads, o_batch, o_head)
    tl.store(o_base + tl.arange(0, size), found.to(out.dtype.element_ty))
    normaliser = top * 0.6931471805599453 + tl.log(divisor)
    tl.store(logsumexp + head, tl.where(sees, normaliser, -float("inf")))


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


@triton.jit(do_not_specialize=[*PLACE_ARGUMENTS, "num_stored"])
def backward_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    d_out: tl.tensor,
    logsumexp: tl.tensor,
    d_queries: tl.tensor,
    d_keys: tl.tensor,
    d_values: tl.tensor,
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
    dk_batch: tl.tensor,
    dk_head: tl.tensor,
    dk_row: tl.tensor,
    dv_batch: tl.tensor,
    dv_head: tl.tensor,
    dv_row: tl.tensor,
    num_stored: tl.tensor,
    num_heads: tl.tensor,
    num_keys: tl.tensor,
    num_rows: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    dropout: tl.tensor,
    has_first_visible: tl.constexpr,
    has_dropout: tl.constexpr,
    adds: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Gradients of one head's query, keys, values and scores.

    `d_scores` are those after scaling, and those of keys out of sight may be anything. Gradients of
    keys and values are those of the last `num_stored`; all, unless they are added to others.
    """
    head = tl.program_id(0)
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    oldest = tl.maximum(first_query - span + 1, earliest)
    stop = tl.minimum(num_keys, first_query + 1)
    k_base = head_base(keys, head, num_heads, k_batch, k_head)
    v_base = head_base(values, head, num_heads, v_batch, v_head)
    dk_base = head_base(d_keys, head, num_heads, dk_batch, dk_head)
    dv_base = head_base(d_values, head, num_heads, dv_batch, dv_head)
    d_base = d_scores + head.to(tl.int64) * num_keys
    query = load_vector(queries, head, num_heads, q_batch, q_head, size) * scale
    gradient = load_vector(d_out, head, num_heads, g_batch, g_head, size)
    found = load_vector(out, head, num_heads, o_batch, o_head, size)
    # Their sum is what the softmax takes off every gradient. It is taken along with other sums in
    # the loop: before it, loads would wait for it.
    shifts = found * gradient
    gradient = gradient / (1 - dropout)
    normaliser = tl.load(logsumexp + head)
    if has_dropout:
        drawn_from = tl.load(seed)
    d_query = tl.zeros((block, size), tl.float32)
    # Keys out of sight get zeros, unless there is nothing to be written but sums.
    begin = oldest if adds else oldest * 0
    end = stop if adds else num_keys
    first_stored = num_keys - num_stored
    for place in tl.range(begin, end, block, num_stages=stages):
        rows = place + tl.arange(0, block)
        visible = (rows >= oldest) & (rows < stop)
        inside = rows < num_keys
        placed = load_placed_keys(k_base, table, rows, visible, k_row, num_rows, first_query, size)
        value = tl.load(rows_at(v_base, rows, v_row, size), mask=visible[:, None], other=0.0)
        scores = tl.sum(query[None, :] * placed, 1)
        excess = tl.where(visible, scores - normaliser, -float("inf"))
        weights = tl.exp2(excess * 1.4426950408889634)
        value = value.to(tl.float32)
        used = weights
        if has_dropout:
            kept = kept_keys(drawn_from, head, rows, dropout)
            used = tl.where(kept, weights, 0.0)
            value = tl.where(kept[:, None], value, 0.0)
        d_row = weights * tl.sum(gradient[None, :] * value - shifts[None, :], 1)
        d_value = used[:, None] * gradient[None, :]
        stored = visible & (rows >= first_stored)
        own_rows = rows - first_stored
        put(rows_at(dv_base, own_rows, dv_row, size), d_value, stored, inside, adds)
        d_key = d_row[:, None] * query[None, :]
        put(rows_at(dk_base, own_rows, dk_row, size), d_key, stored, inside, adds)
        tl.store(d_base + rows, d_row * scale, mask=visible)
        d_query += d_row[:, None] * placed
    dq_base = head_base(d_queries, head, num_heads, dq_batch, dq_head)
    d_found = tl.sum(d_query, 0) * scale
    tl.store(dq_base + tl.arange(0, size), d_found.to(d_queries.dtype.element_ty))


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
    q_batch: tl.tensor,
    q_head: tl.tensor,
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
        starts = queries + batch_rows * q_batch + (heads % num_heads).to(tl.int64) * q_head
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


def blocks(size: int, bytes_per_element: int) -> dict[str, int]:
    """How a program is compiled that reads this many bytes for each element of a block."""
    fitting = min(ROOM // ((STAGES - 1) * bytes_per_element), LARGEST_TILE) // size
    block = min(max(1 << (fitting.bit_length() - 1), SMALLEST_BLOCK), LARGEST_BLOCK)
    num_warps = min(max(block * size // ELEMENTS_PER_WARP, 1), MOST_WARPS)
    return {"block": block, "size": size, "stages": STAGES, "num_warps": num_warps}


def place_of(call: Call) -> tuple[int, ...]:
    """The kernels' arguments from `num_heads` to `span`."""
    return call.num_heads, call.num_keys, call.num_rows, call.first_query, call.span


def forward(
    call: Call,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    out: Tensor,
    logsumexp: Tensor,
    *,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Write the output and the logarithms of the divisors, in one launch."""
    queries, keys, values, table = inputs
    forward_kernel[(call.num_matrices,)](
        queries,
        keys,
        values,
        table,
        out,
        logsumexp,
        first_visible,
        seed,
        *queries.stride()[:2],
        *out.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        *place_of(call),
        call.scale,
        dropout,
        has_first_visible=first_visible is not None,
        has_dropout=dropout > 0,
        **blocks(call.size, 3 * keys.element_size()),
    )


def backward(
    call: Call,
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, Tensor, Tensor],
    table_sums: Tensor,
    *,
    adds: bool,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Write all gradients, in two launches; `adds` adds to those of keys and values instead."""
    d_out, queries, keys, values, table, out, logsumexp = inputs
    d_queries, d_keys, d_values = gradients
    shape = (call.num_matrices, call.num_keys)
    d_scores = torch.empty(shape, dtype=torch.float32, device=queries.device)
    added = d_keys.element_size() + d_values.element_size() if adds else 0
    backward_kernel[(call.num_matrices,)](
        queries,
        keys,
        values,
        table,
        out,
        d_out,
        logsumexp,
        *gradients,
        d_scores,
        first_visible,
        seed,
        *queries.stride()[:2],
        *out.stride()[:2],
        *d_out.stride()[:2],
        *d_queries.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        *d_keys.stride()[:3],
        *d_values.stride()[:3],
        d_keys.shape[2],
        *place_of(call),
        call.scale,
        dropout,
        has_first_visible=first_visible is not None,
        has_dropout=dropout > 0,
        adds=adds,
        **blocks(call.size, 3 * keys.element_size() + added),
    )
    nearest = max(call.first_query - call.num_keys + 1, 0)
    if nearest >= call.span:
        return  # no key is in sight
    last = call.num_rows - 1
    num_blocks = -(-(min(call.span - 1, last) - min(nearest, last) + 1) // DISTANCES)
    most = min(MOST_GROUPS, table_sums.shape[0])
    num_groups = min(-(-call.num_matrices // HEADS_AT_ONCE), most)
    table_kernel[(num_blocks * num_groups,)](
        queries,
        d_scores,
        table_sums,
        first_visible,
        *queries.stride()[:2],
        call.num_matrices,
        num_groups,
        nearest,
        *place_of(call),
        has_first_visible=first_visible is not None,
        block=DISTANCES,
        block_heads=HEADS_AT_ONCE,
        size=call.size,
    )
