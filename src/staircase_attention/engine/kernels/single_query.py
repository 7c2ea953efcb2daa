"""Relative-position attention with one query for each matrix.

With one query there is no matrix to multiply by, and time goes into reading keys and values once.
A program takes one matrix through its keys in blocks, and block after block adds to the same lanes:
lanes are summed up after the last, so that threads need not synchronise before. The same
weights are dropped as by the kernels for many queries.

Gradients of keys and values are as large as these, that of the query is one vector. So the backward
of a query writes its own gradient only, and leaves notes: weights, gradients of scores, the query
and the gradient of its output. Other kernels make the rest of them, and where queries of several
layers see the same keys and values, they do so once for all: what layers share is written once.
"""

# mypy: disable-error-code="untyped-decorator"

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.relative_parts import (
    LN2,
    LOG2E,
    Call,
    Heads,
    Inputs,
    Shape,
    earliest_key,
    heads,
    kept_weights,
    start_of,
    vectors_at,
    with_rows,
)

# Blocks of keys in use or on their way from memory; shared memory holds one less.
STAGES = tl.constexpr(3)
# Bytes of shared memory for them: two programs fit on a processor.
ROOM = 100 * 1024
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 64
# Elements of a block: two programs' registers fit on a processor.
LARGEST_TILE = 4096
# As many as its threads load at once in bfloat16.
ELEMENTS_PER_WARP = 256
MOST_WARPS = 8
# Elements of a block of keys, and of values, that a warp sums up.
SUMS_PER_WARP = 1024
# Rows of the table that a program sums up.
DISTANCES = 16
MATRICES_AT_ONCE = 32
# Groups of matrices for which the table's gradient is summed up side by side.
MOST_GROUPS = 32


# What the kernels share.


class Noted(NamedTuple):
    """Notes on queries, by [matrix, layer]."""

    queries: Any
    """[size] in the dtype of the queries."""
    d_out: Any
    """[size] in the dtype of the queries."""
    weights: Any
    """[num_keys] in float32: those that values were multiplied by."""
    d_scores: Any
    """[num_keys] in float32: gradients of the scores, times their scale."""


# The only vector of a matrix, in float32: [size].
@triton.jit
def load_vector(tensor: Heads, matrix: tl.tensor, shape: Shape, size: tl.constexpr) -> tl.tensor:
    return tl.load(start_of(tensor, matrix, shape) + tl.arange(0, size)).to(tl.float32)


# Keys with the vectors of their distances added, and values, in float32: [rows, size] each.
# Zeros where nothing is in sight.
@triton.jit
def load_block(
    inputs: Inputs,
    matrix: tl.tensor,
    shape: Shape,
    rows: tl.tensor,
    visible: tl.tensor,
    size: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    seen, keys, values = visible[:, None], inputs.joined_keys.own, inputs.joined_values.own
    k_places = vectors_at(start_of(keys, matrix, shape), rows, keys.row, size)
    key = tl.load(k_places, mask=seen, other=0.0)
    distances = tl.minimum(shape.first_query - rows, shape.num_rows - 1)
    vector = tl.load(vectors_at(inputs.table, distances, size, size), mask=seen, other=0.0)
    v_places = vectors_at(start_of(values, matrix, shape), rows, values.row, size)
    value = tl.load(v_places, mask=seen, other=0.0)
    return key.to(tl.float32) + vector.to(tl.float32), value.to(tl.float32)


# The first key that a matrix's query sees, and the one after the last.
@triton.jit
def keys_in_sight(
    first_visible: tl.tensor, matrix: tl.tensor, shape: Shape
) -> tuple[tl.tensor, tl.tensor]:
    earliest = earliest_key(first_visible, matrix, shape)
    oldest = tl.maximum(shape.first_query - shape.span + 1, earliest)
    return oldest, tl.minimum(shape.num_keys, shape.first_query + 1)


# Attention of one query, that of one matrix per program.
# Equation: out = Σ_j softmax_j(q · (k[j] + table[first_query - j]) scale) v[j].
# Tiles: keys as rows, [block, size], for one block of keys after the other. Each row of a block
# has a softmax of its own until the last block is done.
# Reads keys, values and the table's vectors once; writes `out`, and `logsumexp` [matrices] in
# float32.
# Precision: everything is multiplied and summed in float32.
@triton.jit(do_not_specialize=["shape"])
def forward_kernel(
    inputs: Inputs,
    out: Heads,
    logsumexp: tl.tensor,
    shape: Shape,
    block: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, noise = tl.program_id(0), inputs.noise
    oldest, stop = keys_in_sight(inputs.first_visible, matrix, shape)
    # [size]; scores are in bits.
    query = load_vector(inputs.queries, matrix, shape, size) * (inputs.scale * LOG2E)
    # A finite floor: a lane with nothing in sight must not subtract infinities.
    highest = tl.full((block,), -1e30, tl.float32)
    total = tl.zeros((block,), tl.float32)
    gathered = tl.zeros((block, size), tl.float32)
    for place in tl.range(oldest, stop, block, num_stages=STAGES):
        rows = place + tl.arange(0, block)
        visible = rows < stop
        # [block, size] each; the key includes the vector of its distance.
        key, value = load_block(inputs, matrix, shape, rows, visible, size)
        scores = tl.where(visible, tl.sum(query[None, :] * key, 1), -float("inf"))
        # [block]: every lane has its own maximum and sum.
        raised = tl.maximum(highest, scores)
        weights = tl.exp2(scores - raised)
        shrunk = tl.exp2(highest - raised)
        highest = raised
        total = total * shrunk + weights
        if noise.seed is not None:
            weights = tl.where(kept_weights(noise, matrix, rows), weights, 0.0)
        # [block, size]: no sum over the keys of a block yet.
        gathered = gathered * shrunk[:, None] + weights[:, None] * value
    # The lanes' softmaxes [block] become one.
    top = tl.max(highest, 0)
    shrunk = tl.exp2(highest - top)
    divisor = tl.sum(total * shrunk, 0)
    sees = divisor > 0
    divisor = tl.where(sees, divisor, 1.0)
    # [size]: weights that were not dropped are divided by 1 - rate.
    found = tl.sum(gathered * shrunk[:, None], 0) / (divisor * (1 - noise.rate))
    o_start = start_of(out, matrix, shape)
    tl.store(o_start + tl.arange(0, size), found.to(out.data.dtype.element_ty))
    normaliser = top * LN2 + tl.log(divisor)
    tl.store(logsumexp + matrix, tl.where(sees, normaliser, -float("inf")))


# The gradient of one query, that of one matrix per program, and its notes.
# Equation: dS[j] = scale P[j] (d_out · v[j] - d_out · out), with P = softmax(s), and
# dq = Σ_j dS[j] (k[j] + table[first_query - j]).
# Tiles: as in `forward_kernel`.
# Reads keys, values and the table's vectors once; writes the gradient, and notes by [matrix,
# layer]: `noted_queries` and `noted_d_out` [size] in their dtype, `weights`, those that values
# were multiplied by, and `d_scores` = dS [num_keys] in float32. Notes on keys out of sight are
# not written.
# Precision: everything is multiplied and summed in float32.
@triton.jit(do_not_specialize=["shape", "layer", "num_layers"])
def queries_kernel(
    inputs: Inputs,
    out: Heads,
    d_out: Heads,
    logsumexp: tl.tensor,
    d_queries: Heads,
    notes: Noted,
    shape: Shape,
    layer: tl.tensor,
    num_layers: tl.tensor,
    block: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, noise, scale = tl.program_id(0), inputs.noise, inputs.scale
    oldest, stop = keys_in_sight(inputs.first_visible, matrix, shape)
    # Notes lie by matrix, then by layer.
    note = matrix.to(tl.int64) * num_layers + layer
    columns = tl.arange(0, size)
    query = load_vector(inputs.queries, matrix, shape, size)
    gradient = load_vector(d_out, matrix, shape, size)
    found = load_vector(out, matrix, shape, size)
    tl.store(notes.queries + note * size + columns, query.to(notes.queries.dtype.element_ty))
    tl.store(notes.d_out + note * size + columns, gradient.to(notes.d_out.dtype.element_ty))
    query = query * scale
    # Their sum is what the softmax takes off every gradient. It is taken along with other sums in
    # the loop: before it, loads would wait for it.
    shifts = found * gradient
    raised = 1 / (1 - noise.rate)
    gradient = gradient * raised
    normaliser = tl.load(logsumexp + matrix)
    d_query = tl.zeros((block, size), tl.float32)
    for place in tl.range(oldest, stop, block, num_stages=STAGES):
        rows = place + tl.arange(0, block)
        visible = rows < stop
        # [block, size] each; the key includes the vector of its distance.
        key, value = load_block(inputs, matrix, shape, rows, visible, size)
        scores = tl.sum(query[None, :] * key, 1)
        # P[j] = exp(s[j] - logsumexp), [block]; 0 out of sight
        excess = tl.where(visible, scores - normaliser, -float("inf"))
        weight = tl.exp2(excess * LOG2E)
        used = weight
        if noise.seed is not None:
            kept = kept_weights(noise, matrix, rows)
            used = tl.where(kept, weight * raised, 0.0)
            value = tl.where(kept[:, None], value, 0.0)
        # [block]: P (d_out · v - d_out · out)
        d_row = weight * tl.sum(gradient[None, :] * value - shifts[None, :], 1)
        tl.store(notes.weights + note * shape.num_keys + rows, used, mask=visible)
        tl.store(notes.d_scores + note * shape.num_keys + rows, d_row * scale, mask=visible)
        # [block, size]: summed over keys after the last block.
        d_query += d_row[:, None] * key
    d_found = tl.sum(d_query, 0) * scale
    dq_start = start_of(d_queries, matrix, shape)
    tl.store(dq_start + columns, d_found.to(d_queries.data.dtype.element_ty))


# Write rows that are inside, or add to those in sight.
@triton.jit
def put(
    places: tl.tensor, found: tl.tensor, visible: tl.tensor, inside: tl.tensor, adds: tl.constexpr
) -> None:
    if adds:
        found += tl.load(places, mask=visible[:, None], other=0.0).to(tl.float32)
        tl.store(places, found.to(places.dtype.element_ty), mask=visible[:, None])
    else:
        tl.store(places, found.to(places.dtype.element_ty), mask=inside[:, None])


# Gradients of one block of keys and values of one matrix per program, over several layers.
# Equation: dk[j] = Σ_l dS[l, j] q[l] and dv[j] = Σ_l P[l, j] d_out[l] over `num_summed` layers l.
# Tiles: keys as rows, [block, size].
# Reads the notes once; writes `d_keys` and `d_values`, which have room for `num_stored` keys from
# `first_key` on, or adds to what they hold.
# Precision: sums over layers are float32, and are rounded once.
@triton.jit(
    do_not_specialize=[
        "shape",
        "first_layer",
        "num_layers",
        "first_key",
        "num_stored",
        "num_blocks",
    ]
)
def keys_kernel(
    notes: Noted,
    d_keys: Heads,
    d_values: Heads,
    first_visible: tl.tensor,
    shape: Shape,
    first_layer: tl.tensor,
    num_layers: tl.tensor,
    first_key: tl.tensor,
    num_stored: tl.tensor,
    num_blocks: tl.tensor,
    num_summed: tl.constexpr,
    adds: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix = tl.program_id(0) // num_blocks
    # [block]: places in `d_keys`, and the keys there.
    places = tl.program_id(0) % num_blocks * block + tl.arange(0, block)
    rows = first_key + places
    oldest, stop = keys_in_sight(first_visible, matrix, shape)
    inside = places < num_stored
    visible = inside & (rows >= oldest) & (rows < stop)
    # A row for every key, all the same: so each thread loads what it multiplies.
    same = tl.zeros((block, 1), tl.int32) + tl.arange(0, size)[None, :]
    d_key = tl.zeros((block, size), tl.float32)
    d_value = tl.zeros((block, size), tl.float32)
    # Notes lie by matrix, then by layer.
    first = matrix.to(tl.int64) * num_layers + first_layer
    for layer in tl.static_range(num_summed):
        # [block] scores and weights of one layer, times its query and output gradient [size]
        note = first + layer
        d_row = tl.load(notes.d_scores + note * shape.num_keys + rows, mask=visible, other=0.0)
        used = tl.load(notes.weights + note * shape.num_keys + rows, mask=visible, other=0.0)
        d_key += d_row[:, None] * tl.load(notes.queries + note * size + same).to(tl.float32)
        d_value += used[:, None] * tl.load(notes.d_out + note * size + same).to(tl.float32)
    k_places = vectors_at(start_of(d_keys, matrix, shape), places, d_keys.row, size)
    v_places = vectors_at(start_of(d_values, matrix, shape), places, d_values.row, size)
    put(k_places, d_key, visible, inside, adds)
    put(v_places, d_value, visible, inside, adds)


# The scores' gradients, [keys, matrices]; zeros before key `oldest` and out of sight.
@triton.jit
def load_scores(
    d_scores: tl.tensor,
    keys: tl.tensor,
    oldest: tl.tensor,
    matrices: tl.tensor,
    earliest: tl.tensor,
    shape: Shape,
) -> tl.tensor:
    inside = ((keys >= oldest) & (keys < shape.num_keys))[:, None]
    inside = inside & (matrices < shape.num_matrices)[None, :]
    visible = inside & (keys[:, None] >= earliest[None, :])
    places = d_scores + matrices.to(tl.int64)[None, :] * shape.num_keys + keys[:, None]
    return tl.load(places, mask=visible, other=0.0)


# Gradients of one block of the table's rows over one group of matrices per program.
# Equation: d_table[d] = Σ_m dS[m, first_query - d] q[m]; each layer counts as some more heads of
# a batch row, and the table's last row stands for greater distances too.
# Tiles: [block, block_m] · [block_m, size]. `nearest` is the least distance of a key.
# Reads the notes; adds to the group's own row of `table_sums` [groups, num_rows, size].
# Precision: dS is rounded to the queries' dtype; sums are float32.
@triton.jit(do_not_specialize=["shape", "num_groups", "nearest"])
def table_kernel(
    queries: tl.tensor,
    d_scores: tl.tensor,
    table_sums: tl.tensor,
    first_visible: tl.tensor,
    shape: Shape,
    num_groups: tl.tensor,
    nearest: tl.tensor,
    block: tl.constexpr,
    block_m: tl.constexpr,
    size: tl.constexpr,
) -> None:
    group = tl.program_id(0) % num_groups
    last = shape.num_rows - 1
    first = tl.minimum(nearest, last) + tl.program_id(0) // num_groups * block
    # From the greatest distance to the least, as keys lie in memory.
    lanes = tl.arange(0, block)
    vectors = first + block - 1 - lanes
    keys = shape.first_query - first - block + 1 + lanes
    is_last = (vectors == last)[:, None]
    oldest = shape.first_query - shape.span + 1
    oldest_short = tl.maximum(oldest, shape.first_query - last + 1)
    # Distances from which on all belong to this block's last row.
    beyond = tl.where(first + block > last, tl.maximum(last, nearest), shape.span)
    # The group's own part of the sums: no other program writes these rows of it.
    sums = table_sums + group.to(tl.int64) * shape.num_rows * size
    places = vectors_at(sums, vectors, size, size)
    inside = (vectors < tl.minimum(shape.num_rows, shape.span))[:, None] | is_last
    before = tl.load(places, mask=inside, other=0.0)
    d_vectors = tl.zeros((block, size), tl.float32)
    for start in range(group * block_m, shape.num_matrices, num_groups * block_m):
        matrices = start + tl.arange(0, block_m)
        there = matrices < shape.num_matrices
        earliest = tl.zeros((block_m,), tl.int32)
        if first_visible is not None:
            batch_rows = (matrices // shape.num_heads).to(tl.int64)
            found = tl.load(first_visible + batch_rows, mask=there, other=0)
            earliest = tl.maximum(found.to(tl.int32), 0)
        # Shapes [block_m, size] and [block, block_m].
        query = tl.load(vectors_at(queries, matrices, size, size), mask=there[:, None], other=0.0)
        tile = load_scores(d_scores, keys, oldest_short, matrices, earliest, shape)
        # What lies beyond the table, summed for each matrix, belongs to its last row.
        d_last = tl.zeros((block_m,), tl.float32)
        for distance in range(beyond, shape.span, block):
            far = shape.first_query - distance - block + 1 + lanes
            d_last += tl.sum(load_scores(d_scores, far, oldest, matrices, earliest, shape), 0)
        tile += tl.where(is_last, d_last[None, :], 0.0)
        # [block, block_m] · [block_m, size]
        d_vectors = tl.dot(tile.to(query.dtype), query, d_vectors, input_precision="ieee")
    tl.store(places, before + d_vectors, mask=inside)


def blocks(size: int, bytes_per_element: int) -> dict[str, int]:
    """How a program is compiled that reads this many bytes for each element of a block."""
    # Elements of a block that shared memory and registers hold, as rows of `size`.
    fitting = min(ROOM // ((STAGES.value - 1) * bytes_per_element), LARGEST_TILE) // size
    block = min(max(1 << (fitting.bit_length() - 1), SMALLEST_BLOCK), LARGEST_BLOCK)
    num_warps = min(max(block * size // ELEMENTS_PER_WARP, 1), MOST_WARPS)
    return {"block": block, "size": size, "num_warps": num_warps}


def forward(call: Call, out: Tensor, logsumexp: Tensor) -> None:
    """Attention to the own keys, written to `out` and `logsumexp`, in one launch."""
    assert call.past is None
    options = blocks(call.size, 3 * call.keys.element_size())
    forward_kernel[(call.num_matrices,)](
        call.inputs, heads(out), logsumexp, call.shape(), **options
    )


class Notes:
    """Notes on single queries of some layers, which see as many keys each from the same place."""

    def __init__(self, call: Call, *, num_layers: int) -> None:
        """Notes on calls that differ from this one in tensors and dropout only."""
        self._num_layers, self._call = num_layers, call
        shape, keys = (2, call.num_matrices, num_layers), call.keys
        vectors = torch.empty((*shape, call.size), dtype=keys.dtype, device=keys.device)
        rows = torch.empty((*shape, call.num_keys), dtype=torch.float32, device=keys.device)
        self._noted = Noted(*vectors, *rows)

    def add_query(
        self,
        layer: int,
        call: Call,
        d_out: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        d_queries: Tensor,
    ) -> None:
        """Write the gradient of a layer's query, and note what others are made of."""
        assert call.num_queries == 1
        assert call.past is None
        queries_kernel[(call.num_matrices,)](
            call.inputs,
            heads(with_rows(out)),
            heads(with_rows(d_out)),
            logsumexp,
            heads(d_queries),
            self._noted,
            call.shape(),
            layer,
            self._num_layers,
            **blocks(call.size, 3 * call.keys.element_size()),
        )

    def sum_keys(
        self, layers: range, d_keys: Tensor, d_values: Tensor, *, first_key: int, adds: bool
    ) -> None:
        """Write gradients that some layers give to keys and values together, or add them.

        They are those of as many tokens as there is room for, from `first_key` on.
        """
        call, num_stored = self._call, d_keys.shape[2]
        block = min(LARGEST_TILE // call.size, LARGEST_BLOCK)
        num_blocks = -(-num_stored // block)
        keys_kernel[(call.num_matrices * num_blocks,)](
            self._noted,
            heads(d_keys),
            heads(d_values),
            call.first_visible,
            call.shape(),
            layers.start,
            self._num_layers,
            first_key,
            num_stored,
            num_blocks,
            num_summed=len(layers),
            adds=adds,
            block=block,
            size=call.size,
            num_warps=max(block * call.size // SUMS_PER_WARP, 1),
        )

    def sum_table(self, table_sums: Tensor) -> None:
        """Add what all layers give to the table, as if each were some more heads of a batch row."""
        call, shape = self._call, self._call.shape()
        nearest = max(call.first_query - call.num_keys + 1, 0)
        if nearest >= call.num_distances:
            return  # no key is in sight
        last = shape.num_rows - 1
        farthest = min(call.num_distances - 1, last)
        num_blocks = -(-(farthest - min(nearest, last) + 1) // DISTANCES)
        num_matrices = shape.num_matrices * self._num_layers
        num_groups = min(-(-num_matrices // MATRICES_AT_ONCE), MOST_GROUPS, len(table_sums))
        table_kernel[(num_blocks * num_groups,)](
            self._noted.queries,
            self._noted.d_scores,
            table_sums,
            call.first_visible,
            shape._replace(num_matrices=num_matrices, num_heads=shape.num_heads * self._num_layers),
            num_groups,
            nearest,
            block=DISTANCES,
            block_m=MATRICES_AT_ONCE,
            size=call.size,
        )
