"""Attention without a table of distances, where a group of heads may share keys and values.

Rotary positions are turned into queries and keys before, by `rotate`, and out of their gradients
after. Nothing of the size of all pairs is written: the backward pass computes scores again, once
for the queries and once for keys and values, whose gradients sum over their group in a fixed order.
"""

# mypy: disable-error-code="untyped-decorator"

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from staircase_attention.engine.kernels.relative_parts import (
    LOG2E,
    Call,
    Gradients,
    Heads,
    Inputs,
    Joined,
    Shape,
    add_tile,
    block_for,
    drop_again,
    earliest_key,
    end_softmax,
    heads,
    load_keys,
    load_rows,
    no_softmax,
    store_keys,
    store_rows,
    visible_pairs,
)
from staircase_attention.engine.kernels.relative_several_kernels import (
    block_of_queries,
    queries_in_sight,
)

# The most rows of a tile, by dtype and by whether heads are wide: queries forward, other sides.
LARGEST = {
    (torch.bfloat16, False): (128, 64),
    (torch.bfloat16, True): (128, 64),
    (torch.float32, False): (32, 32),
    (torch.float32, True): (16, 16),
}
# Vectors that a program rotates.
ROTATED = 64


# Attention of one block of queries of one matrix per program.
# Equation: out[i] = Σ_j softmax_j(q[i] · k[j] scale) v[j], in base 2.
# Tiles: [block_q, size] · [size, block_k] for one tile of keys after the other. Matrix m of queries
# sees matrix m // group of keys and values, whose heads `key_shape` counts.
# Reads queries once, keys and values tile by tile; writes `out`, and in float32 `logsumexp`
# [matrices, queries].
# Precision: factors have the inputs' dtype (weights are rounded to it); sums are float32.
@triton.jit(do_not_specialize=["shape", "key_shape", "group"])
def forward_kernel(
    inputs: Inputs,
    out: Heads,
    logsumexp: tl.tensor,
    shape: Shape,
    key_shape: Shape,
    group: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, first, start, stop = block_of_queries(shape, block_q, block_k)
    noise, owner = inputs.noise, matrix // group
    earliest = earliest_key(inputs.first_visible, matrix, shape)
    query = load_rows(inputs.queries, matrix, shape, first, shape.num_queries, block_q, size)
    softmax = no_softmax(block_q, size)
    for place in range(start, stop, block_k):
        key = load_keys(inputs.joined_keys, owner, key_shape, place, block_k, size)
        value = load_keys(inputs.joined_values, owner, key_shape, place, block_k, size)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (inputs.scale * LOG2E)
        visible = visible_pairs(first, place, shape, earliest, block_q, block_k)
        scores = tl.where(visible, scores, -float("inf"))
        pairs = (first + tl.arange(0, block_q))[:, None] * shape.num_keys
        pairs += place + tl.arange(0, block_k)[None, :]
        softmax = add_tile(softmax, scores, value, noise, matrix, pairs)
    found = end_softmax(softmax, noise, logsumexp, matrix, shape, first)
    store_rows(out, matrix, shape, first, shape.num_queries, found)


# Gradients of one tile of pairs, [block_q, block_k]: the weights as they were used, and
# dS = P (dP - shift), P = 2^(s - normaliser), dP = d_out vᵀ.
@triton.jit
def tile_gradients(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    gradient: tl.tensor,
    normaliser: tl.tensor,
    shift: tl.tensor,
    inputs: Inputs,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    place: tl.tensor,
    earliest: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    block_q: tl.constexpr = query.shape[0]
    block_k: tl.constexpr = key.shape[0]
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (inputs.scale * LOG2E)
    visible = visible_pairs(first, place, shape, earliest, block_q, block_k)
    weights = tl.exp2(tl.where(visible, scores - normaliser[:, None], -float("inf")))
    d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
    pairs = (first + tl.arange(0, block_q))[:, None] * shape.num_keys
    pairs += place + tl.arange(0, block_k)[None, :]
    used, d_weights = drop_again(weights, d_weights, inputs.noise, matrix, pairs)
    d_scores = weights * (d_weights - shift[:, None])
    return used.to(gradient.dtype), d_scores.to(query.dtype)


# The logarithm of every query's divisor in bits, [block_q]; finite where it sees nothing, too.
@triton.jit
def load_normaliser(
    logsumexp: tl.tensor, matrix: tl.tensor, shape: Shape, rows: tl.tensor
) -> tl.tensor:
    places = logsumexp + tl.cast(matrix, tl.int64) * shape.num_queries + rows
    found = tl.load(places, mask=rows < shape.num_queries, other=0.0)
    return tl.where(found == -float("inf"), 0.0, found * LOG2E)


# Gradients of one block of queries of one matrix per program.
# Equation: dq[i] = scale Σ_j dS[i, j] k[j], see `tile_gradients`; shift[i] = out[i] · d_out[i].
# Reads queries, `out` and `d_out` once, keys and values tile by tile; writes `d_queries`, and the
# shifts as `agreement` [matrices, queries] in float32.
# Precision: factors have the inputs' dtype; sums are float32.
@triton.jit(do_not_specialize=["shape", "key_shape", "group"])
def queries_kernel(
    inputs: Inputs,
    out: Heads,
    d_out: Heads,
    logsumexp: tl.tensor,
    agreement: tl.tensor,
    d_queries: Heads,
    shape: Shape,
    key_shape: Shape,
    group: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, first, start, stop = block_of_queries(shape, block_q, block_k)
    earliest = earliest_key(inputs.first_visible, matrix, shape)
    query = load_rows(inputs.queries, matrix, shape, first, shape.num_queries, block_q, size)
    gradient = load_rows(d_out, matrix, shape, first, shape.num_queries, block_q, size)
    found = load_rows(out, matrix, shape, first, shape.num_queries, block_q, size)
    shift = tl.sum(found.to(tl.float32) * gradient.to(tl.float32), 1)
    rows = first + tl.arange(0, block_q)
    places = agreement + tl.cast(matrix, tl.int64) * shape.num_queries + rows
    tl.store(places, shift, mask=rows < shape.num_queries)
    normaliser = load_normaliser(logsumexp, matrix, shape, rows)
    d_query = tl.zeros((block_q, size), tl.float32)
    for place in range(start, stop, block_k):
        key = load_keys(inputs.joined_keys, matrix // group, key_shape, place, block_k, size)
        value = load_keys(inputs.joined_values, matrix // group, key_shape, place, block_k, size)
        _, d_scores = tile_gradients(
            query, key, value, gradient, normaliser, shift, inputs, matrix, shape, first, place,
            earliest,
        )  # fmt: skip
        d_query = tl.dot(d_scores, key, d_query, input_precision="ieee")
    store_rows(d_queries, matrix, shape, first, shape.num_queries, d_query * inputs.scale)


# Gradients of one block of keys and values per program, summed over the heads of its group.
# Equation: dk[j] = scale Σ_i dS[i, j] q[i], dv[j] = Σ_i P[i, j] d_out[i], see `tile_gradients`.
# Reads keys and values once, queries and `d_out` tile by tile, with what `queries_kernel` left.
# Precision: factors have the inputs' dtype; sums are float32.
@triton.jit(do_not_specialize=["shape", "key_shape", "group", "num_stored"])
def keys_kernel(
    inputs: Inputs,
    d_out: Heads,
    logsumexp: tl.tensor,
    agreement: tl.tensor,
    d_keys: Joined,
    d_values: Joined,
    shape: Shape,
    key_shape: Shape,
    group: tl.tensor,
    num_stored: tl.tensor,
    adds_past: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    num_blocks = tl.cdiv(shape.num_keys, block_k)
    owner = tl.program_id(0) // num_blocks
    place = tl.program_id(0) % num_blocks * block_k
    start, stop = queries_in_sight(place, shape, block_q, block_k)
    # Nobody asks for gradients of the oldest keys.
    stop = tl.where(place + block_k <= shape.boundary - num_stored, start, stop)
    key = load_keys(inputs.joined_keys, owner, key_shape, place, block_k, size)
    value = load_keys(inputs.joined_values, owner, key_shape, place, block_k, size)
    d_key = tl.zeros((block_k, size), tl.float32)
    d_value = tl.zeros((block_k, size), tl.float32)
    for matrix in range(owner * group, owner * group + group):
        earliest = earliest_key(inputs.first_visible, matrix, shape)
        for first in range(start, stop, block_q):
            query = load_rows(
                inputs.queries, matrix, shape, first, shape.num_queries, block_q, size
            )
            gradient = load_rows(d_out, matrix, shape, first, shape.num_queries, block_q, size)
            rows = first + tl.arange(0, block_q)
            places = agreement + tl.cast(matrix, tl.int64) * shape.num_queries + rows
            shift = tl.load(places, mask=rows < shape.num_queries, other=0.0)
            normaliser = load_normaliser(logsumexp, matrix, shape, rows)
            used, d_scores = tile_gradients(
                query, key, value, gradient, normaliser, shift, inputs, matrix, shape, first,
                place, earliest,
            )  # fmt: skip
            # [block_k, block_q] · [block_q, size], both times
            d_value = tl.dot(tl.trans(used), gradient, d_value, input_precision="ieee")
            d_key = tl.dot(tl.trans(d_scores), query, d_key, input_precision="ieee")
    d_key *= inputs.scale
    store_keys(d_keys, owner, key_shape, place, num_stored, d_key, adds_past)
    store_keys(d_values, owner, key_shape, place, num_stored, d_value, adds_past)


def shapes_of(call: Call) -> tuple[Shape, Shape, int]:
    """Sizes and positions with the heads of queries, with those of keys, and queries' per key's."""
    num_heads, num_groups = call.queries.shape[1], call.keys.shape[1]
    shape = call.shape()
    return shape, shape._replace(num_heads=num_groups), num_heads // num_groups


def tiles_of(call: Call, *, is_forward: bool) -> dict[str, int]:
    """How a kernel is compiled: tiles no larger than what there is."""
    most_queries, most = LARGEST[call.kind]
    return {
        "block_q": block_for(call.num_queries, most_queries if is_forward else most),
        "block_k": block_for(call.num_keys, most),
        "size": call.size,
        "num_warps": 8 if is_forward and call.kind[1] else 4,
        "num_stages": 2,
    }


def forward(call: Call, out: Tensor, logsumexp: Tensor) -> None:
    """Attention, written to `out` and `logsumexp`."""
    tiles = tiles_of(call, is_forward=True)
    num_blocks = triton.cdiv(call.num_queries, tiles["block_q"])
    forward_kernel[(call.num_matrices * num_blocks,)](
        call.inputs, heads(out), logsumexp, *shapes_of(call), **tiles
    )


def backward(
    call: Call, d_out: Tensor, out: Tensor, logsumexp: Tensor, gradients: Gradients
) -> None:
    """Gradients of the queries, then of keys and values."""
    tiles, shapes = tiles_of(call, is_forward=False), shapes_of(call)
    agreement = torch.empty_like(logsumexp)
    num_blocks = triton.cdiv(call.num_queries, tiles["block_q"])
    queries_kernel[(call.num_matrices * num_blocks,)](
        *(call.inputs, heads(out), heads(d_out), logsumexp, agreement),
        heads(gradients.queries),
        *shapes,
        **tiles,
    )
    num_blocks = triton.cdiv(call.num_keys, tiles["block_k"])
    keys_kernel[(call.num_matrices // shapes[2] * num_blocks,)](
        *(call.inputs, heads(d_out), logsumexp, agreement, *gradients.joined),
        *shapes,
        gradients.num_stored,
        adds_past=gradients.adds_past,
        **tiles,
    )


# Equation: (a, b) -> (a c - b s, a s + b c) for elements j and j + half of the vector at place p,
# with c and s = cosine and sine[p, j]; or back, by -s.
# Tiles: `block` vectors of one matrix per program, in halves. Writes `out`, or adds to it.
# Precision: float32, rounded to the dtype of `out`.
@triton.jit(do_not_specialize=["first", "num_places", "time", "num_heads"])
def rotate_kernel(
    source: Heads,
    out: Heads,
    turns: tl.tensor,
    first: tl.tensor,
    num_places: tl.tensor,
    time: tl.tensor,
    num_heads: tl.tensor,
    backwards: tl.constexpr,
    adds: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    times = tl.program_id(0) * block + tl.arange(0, block)
    unit = tl.arange(0, half)[None, :]
    inside = (times < time)[:, None]
    angle = turns + (first + times)[:, None] * half + unit
    cosine = tl.load(angle, mask=inside, other=0.0)
    sine = tl.load(angle + num_places * half, mask=inside, other=0.0)
    if backwards:
        sine = -sine
    base = tl.cast(row, tl.int64) * source.batch + tl.cast(head, tl.int64) * source.head
    place = source.data + base + times.to(tl.int64)[:, None] * source.row + unit
    one = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    base = tl.cast(row, tl.int64) * out.batch + tl.cast(head, tl.int64) * out.head
    place = out.data + base + times.to(tl.int64)[:, None] * out.row + unit
    turned, other = one * cosine - two * sine, one * sine + two * cosine
    if adds:
        turned += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        other += tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, turned.to(out.data.dtype.element_ty), mask=inside)
    tl.store(place + half, other.to(out.data.dtype.element_ty), mask=inside)


def rotate(
    source: Float[Tensor, "batch heads time size"],
    turns: Float[Tensor, "2 places half"],
    *,
    first: int,
    out: Float[Tensor, "batch heads time size"],
    backwards: bool = False,
    adds: bool = False,
) -> Float[Tensor, "batch heads time size"]:
    """Vectors turned by the angles of their places, from `first` on; written or added to `out`."""
    batch, num_heads, time, size = source.shape
    rotate_kernel[(triton.cdiv(time, ROTATED), batch * num_heads)](
        *(heads(source), heads(out), turns, first, turns.shape[1], time, num_heads),
        backwards=backwards,
        adds=adds,
        half=size // 2,
        block=ROTATED,
        num_warps=4,
    )
    return out
