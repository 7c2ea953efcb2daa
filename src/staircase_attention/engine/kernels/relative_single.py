"""Relative-position attention where a single tile holds all pairs of a matrix.

The tile has `block_q` queries as rows and `block_k` >= `block_q` keys as columns. Query i and key j
are first_query + i - j apart. With o = (i - j) mod block_k, that is row o of the block_k distances
from first_query on (the far block) where i >= j, and row o of the block_k distances before
first_query (the near block) elsewhere. So the scores by position are

    by_distance[i, o] = q[i] · far[o] if o <= i else q[i] · near[o]
    by_key[i, j] = by_distance[i, (i - j) mod block_k]

two products with blocks of the table, and a rotation of each row, which is its own inverse: the
gradients go back the same way.
"""

# mypy: disable-error-code="untyped-decorator"

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.relative_parts import (
    LARGEST_TILE,
    LOG2E,
    Call,
    Gradients,
    Heads,
    Inputs,
    Joined,
    Shape,
    add_tile,
    add_to_last,
    add_to_table,
    block_for,
    drop_again,
    earliest_key,
    end_softmax,
    heads,
    load_distances,
    load_keys,
    load_rows,
    no_softmax,
    store_keys,
    store_rows,
    visible_pairs,
)

Kernel = Literal["forward", "backward"]
# By dtype and by whether heads are wide: warps and pipeline stages of each kernel. The fastest of
# those tried on an H200 for windows of 64 tokens.
TUNED: dict[tuple[torch.dtype, bool], dict[Kernel, tuple[int, int]]] = {
    (torch.bfloat16, False): {"forward": (4, 3), "backward": (4, 2)},
    (torch.bfloat16, True): {"forward": (4, 1), "backward": (8, 2)},
    (torch.float32, False): {"forward": (8, 1), "backward": (8, 1)},
    (torch.float32, True): {"forward": (8, 1), "backward": (8, 1)},
}


# Move (i, o) to (i, (i - o) mod `block_k`): from distances to keys, or back.
@triton.jit
def rotate(tile: tl.tensor) -> tl.tensor:
    block_k: tl.constexpr = tile.shape[1]
    rows = tl.arange(0, tile.shape[0])[:, None]
    columns = tl.arange(0, block_k)[None, :]
    return tl.gather(tile, (rows - columns) & (block_k - 1), axis=1)


# Which (i, o) of a tile by distances belong to the far block.
@triton.jit
def is_far(tile: tl.tensor) -> tl.tensor:
    return tl.arange(0, tile.shape[1])[None, :] <= tl.arange(0, tile.shape[0])[:, None]


# The far and the near block of the table, each [block_k, size].
@triton.jit
def load_blocks(
    table: tl.tensor,
    shape: Shape,
    has_near: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    columns = tl.arange(0, block_k)
    far = load_distances(table, shape.first_query + columns, shape, size)
    near = far
    if has_near:
        near = load_distances(table, shape.first_query - block_k + columns, shape, size)
    return far, near


# Unscaled scores, [block_q, block_k]: by position, rotated, and by content.
@triton.jit
def tile_scores(
    query: tl.tensor, key: tl.tensor, far: tl.tensor, near: tl.tensor, has_near: tl.constexpr
) -> tl.tensor:
    # [block_q, size] · [size, block_k]: columns are offsets o.
    by_distance = tl.dot(query, tl.trans(far), input_precision="ieee")
    if has_near:
        by_near = tl.dot(query, tl.trans(near), input_precision="ieee")
        by_distance = tl.where(is_far(by_distance), by_distance, by_near)
    # Columns are keys here, and after the rotation there too.
    content = tl.dot(query, tl.trans(key), input_precision="ieee")
    return content + rotate(by_distance)


# What dropout counts pairs by, [block_q, block_k].
@triton.jit
def pair_numbers(shape: Shape, block_q: tl.constexpr, block_k: tl.constexpr) -> tl.tensor:
    return tl.arange(0, block_q)[:, None] * shape.num_keys + tl.arange(0, block_k)[None, :]


# Attention of one matrix per program.
# Equation: out[i] = Σ_j softmax_j(s[i, j]) v[j].
# Tiles: queries [block_q, size]; keys, values, far and near block of the table [block_k, size];
# scores [block_q, block_k].
# Reads each of them once; writes `out`, and `logsumexp` [matrices, queries] in float32.
# Precision: factors have the inputs' dtype (weights are rounded to it); sums are float32.
@triton.jit(do_not_specialize=["shape"])
def forward_kernel(
    inputs: Inputs,
    out: Heads,
    logsumexp: tl.tensor,
    shape: Shape,
    has_near: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, noise = tl.program_id(0), inputs.noise
    earliest = earliest_key(inputs.first_visible, matrix, shape)
    # The query is [block_q, size]; key and value are [block_k, size].
    query = load_rows(inputs.queries, matrix, shape, 0, shape.num_queries, block_q, size)
    far, near = load_blocks(inputs.table, shape, has_near, block_k, size)
    key = load_keys(inputs.joined_keys, matrix, shape, 0, block_k, size)
    value = load_keys(inputs.joined_values, matrix, shape, 0, block_k, size)
    scores = tile_scores(query, key, far, near, has_near)
    scores *= inputs.scale * LOG2E
    # What is out of sight, or outside of the matrix, gets a score of -inf and a weight of 0.
    visible = visible_pairs(0, 0, shape, earliest, block_q, block_k)
    scores = tl.where(visible, scores, -float("inf"))
    pairs = pair_numbers(shape, block_q, block_k)
    softmax = add_tile(no_softmax(block_q, size), scores, value, noise, matrix, pairs)
    found = end_softmax(softmax, noise, logsumexp, matrix, shape, 0)
    store_rows(out, matrix, shape, 0, shape.num_queries, found)


# All gradients of some matrices: every tl.num_programs(0)-th one.
# Equation, with P = exp(s - logsumexp), dP = d_out vᵀ and dS = P (dP - Σ_j P dP):
#
#     dv = Pᵀ d_out,  dk = scale dSᵀ q,  dq = scale (dS k + dR B),  dB = scale dRᵀ q
#
# where B is the far and near block of the table, and dR is dS by distance: with rotated rows.
# Tiles: as in `forward_kernel`; dP and dS are [block_q, block_k].
# Reads the inputs, `d_out` and `logsumexp` once; writes gradients of queries, keys and values.
# Those of the table's two blocks stay in registers until the last matrix, and are then added to
# the program's own row of `table_sums` [programs, num_rows, size].
# Precision: factors have the inputs' dtype (P, dS are rounded to it); sums are float32.
@triton.jit(do_not_specialize=["shape", "num_stored"])
def backward_kernel(
    inputs: Inputs,
    d_out: Heads,
    logsumexp: tl.tensor,
    d_queries: Heads,
    d_keys: Joined,
    d_values: Joined,
    table_sums: tl.tensor,
    shape: Shape,
    num_stored: tl.tensor,
    adds_past: tl.constexpr,
    has_near: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    program, noise, scale = tl.program_id(0), inputs.noise, inputs.scale
    d_far = tl.zeros((block_k, size), tl.float32)
    d_near = tl.zeros((block_k, size), tl.float32)
    far, near = load_blocks(inputs.table, shape, has_near, block_k, size)
    for matrix in range(program, shape.num_matrices, tl.num_programs(0)):
        earliest = earliest_key(inputs.first_visible, matrix, shape)
        # The query is [block_q, size]; key and value are [block_k, size].
        query = load_rows(inputs.queries, matrix, shape, 0, shape.num_queries, block_q, size)
        key = load_keys(inputs.joined_keys, matrix, shape, 0, block_k, size)
        value = load_keys(inputs.joined_values, matrix, shape, 0, block_k, size)
        gradient = load_rows(d_out, matrix, shape, 0, shape.num_queries, block_q, size)
        scores = tile_scores(query, key, far, near, has_near) * scale
        # What is out of sight, or outside of the matrix, gets a score of -inf and a weight of 0.
        visible = visible_pairs(0, 0, shape, earliest, block_q, block_k)
        rows = tl.arange(0, block_q)
        # [block_q]: where the logarithms of the softmax's divisors lie.
        divisors = logsumexp + tl.cast(matrix, tl.int64) * shape.num_queries + rows
        normaliser = tl.load(divisors, mask=rows < shape.num_queries, other=0.0)
        excess = tl.where(visible, scores - normaliser[:, None], -float("inf"))
        weights = tl.exp2(excess * LOG2E)
        # d_out · vᵀ: [block_q, size] · [size, block_k]
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        pairs = pair_numbers(shape, block_q, block_k)
        used, d_weights = drop_again(weights, d_weights, noise, matrix, pairs)
        # Pᵀ d_out: [block_k, block_q] · [block_q, size]
        d_value = tl.dot(tl.trans(used.to(gradient.dtype)), gradient, input_precision="ieee")
        store_keys(d_values, matrix, shape, 0, num_stored, d_value, adds_past)
        # [block_q]: Σ_j P dP, which the softmax subtracts from every dP.
        shift = tl.sum(weights * d_weights, 1)
        d_scores = (weights * (d_weights - shift[:, None])).to(query.dtype)
        # dSᵀ q: [block_k, block_q] · [block_q, size]
        d_key = tl.dot(tl.trans(d_scores), query, input_precision="ieee") * scale
        store_keys(d_keys, matrix, shape, 0, num_stored, d_key, adds_past)
        # By distance, [block_q, block_k], and from there to the two blocks [block_k, size].
        by_distance = rotate(d_scores)
        # dq = dS k + dR B: [block_q, block_k] · [block_k, size] each
        d_query = tl.dot(d_scores, key, input_precision="ieee")
        if has_near:
            by_none = tl.zeros_like(by_distance)
            in_far = is_far(by_distance)
            by_near = tl.where(in_far, by_none, by_distance)
            d_query = tl.dot(by_near, near, d_query, input_precision="ieee")
            d_near = tl.dot(tl.trans(by_near), query, d_near, input_precision="ieee")
            by_distance = tl.where(in_far, by_distance, by_none)
        d_query = tl.dot(by_distance, far, d_query, input_precision="ieee")
        # dB += dRᵀ q: [block_k, block_q] · [block_q, size]
        d_far = tl.dot(tl.trans(by_distance), query, d_far, input_precision="ieee")
        store_rows(d_queries, matrix, shape, 0, shape.num_queries, d_query * scale)
    # This program's own part of the table's gradient, (num_rows, size).
    sums = table_sums + program.to(tl.int64) * shape.num_rows * size
    distances = shape.first_query + tl.arange(0, block_k)
    d_last = tl.zeros((size,), tl.float32)
    d_last = add_to_table(sums, distances, d_far * scale, d_last, shape)
    if has_near:
        d_last = add_to_table(sums, distances - block_k, d_near * scale, d_last, shape)
    add_to_last(sums, d_last, shape)


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


def forward(call: Call, out: Tensor, logsumexp: Tensor) -> None:
    """Attention, written to `out` and `logsumexp`, in one launch."""
    options = options_of(call, "forward")
    forward_kernel[(call.num_matrices,)](
        call.inputs, heads(out), logsumexp, call.shape(), **options
    )


def backward(
    call: Call, d_out: Tensor, out: Tensor, logsumexp: Tensor, gradients: Gradients
) -> None:
    """All gradients in one launch."""
    assert gradients.table_sums is not None
    backward_kernel[(min(call.num_matrices, len(gradients.table_sums)),)](
        call.inputs,
        heads(d_out),
        logsumexp,
        heads(gradients.queries),
        *gradients.joined,
        gradients.table_sums,
        call.shape(),
        gradients.num_stored,
        adds_past=gradients.adds_past,
        **options_of(call, "backward"),
    )
