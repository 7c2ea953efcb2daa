"""Kernels of relative-position attention where a matrix has several tiles of pairs.

The table is one for all matrices. So kernels that go from distances to keys take tiles of many
matrices at one query: `block_m` rows. The scores by position of query i are the product of those
rows with the vectors of the distances i - j to one key j after the other, so that columns are keys
already, and nothing has to be rotated. Other kernels go over tiles of `block_q` queries times
`block_k` keys of one matrix. What they leave for one another lies in memory:

    scores[matrix, query, place]    by position, in bits, -inf out of sight; float16 for bfloat16,
                                    which rounds them less than their factors were rounded
    d_scores[matrix, query, place]  gradients of the scores before scaling, in the inputs' dtype

A row of them has `width` elements, a multiple of 64. Places are counted from `num_hidden` before
the first key, so that the past ends, and the own keys begin, at `boundary`, a whole number of
tiles: every tile of keys lies in one tensor. A tile is written as a whole if one of its pairs may
be in sight, and only then is it read.

Kernels of pairs read tiles through descriptors of whole tensors, so that a GPU moves a tile by one
instruction. What lies outside of a tensor is read as zero and not written. So a query that is not
there has a weight of 1 for every key, and nothing to multiply it by.
"""

# mypy: disable-error-code="untyped-decorator"

from typing import Any, NamedTuple

import triton
import triton.language as tl

from staircase_attention.engine.kernels.relative_parts import (
    LOG2E,
    Heads,
    Joined,
    Noise,
    Shape,
    add_tile,
    add_to_last,
    add_to_table,
    drop_again,
    earliest_key,
    end_softmax,
    load_distances,
    load_keys,
    no_softmax,
    start_of,
    store_keys,
    visible_pairs,
)

HIGHEST_HALF = tl.constexpr(60000.0)
# Bounds of scores in float16 and in float32: infinite ones are out of sight.
HIGHEST = tl.constexpr(3e38)


class Outputs(NamedTuple):
    """What the backward pass has from the forward pass, and room for two numbers per query."""

    out: Any
    d_out: Any
    logsumexp: Any
    normalisers: Any
    """The logarithm of the softmax's divisor in bits."""
    agreement: Any
    """out · d_out, which the softmax subtracts from every gradient."""


# Which tiles are in sight, and where vectors are.


# Where the tiles of keys that the queries from `first` on may see start and stop.
@triton.jit
def tiles_in_sight(
    first: tl.tensor, shape: Shape, block_q: tl.constexpr, block_k: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    last_query = tl.minimum(first + block_q, shape.num_queries)
    stop = tl.minimum(shape.num_keys, shape.first_query + last_query)
    oldest = tl.maximum(shape.first_query + first - shape.span + 1, shape.num_hidden)
    # Rounded outwards to whole tiles; no tiles where nothing is in sight.
    sees = oldest < stop
    start = tl.where(sees, oldest // block_k * block_k, 0)
    stop = tl.where(sees, tl.cdiv(stop, block_k) * block_k, 0)
    return start, stop


# This program's matrix and first query, and where its tiles of keys start and stop.
# The blocks with the most keys come first, so that the last programs to run are short.
@triton.jit
def block_of_queries(
    shape: Shape, block_q: tl.constexpr, block_k: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    num_blocks = tl.cdiv(shape.num_queries, block_q)
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * block_q
    start, stop = tiles_in_sight(first, shape, block_q, block_k)
    return tl.program_id(0) // num_blocks, first, start, stop


# Where the queries start and stop whose `tiles_in_sight` hold the tile of keys at `place`.
@triton.jit
def queries_in_sight(
    place: tl.tensor, shape: Shape, block_q: tl.constexpr, block_k: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    newest = tl.minimum(place + block_k, shape.num_keys)
    start = tl.maximum(place - shape.first_query, 0) // block_q * block_q
    # The first query that has all of these keys behind its span, rounded to whole tiles.
    behind = tl.maximum(shape.span + newest - 1 - shape.first_query, 0)
    stop = tl.minimum(shape.num_queries, tl.cdiv(behind, block_q) * block_q)
    stop = tl.where(place < shape.first_query + shape.num_queries, stop, start)
    return start, stop


# The query of this program, the `block_m` matrices [block_m] it takes it of, and which are there.
@triton.jit
def query_of_matrices(
    shape: Shape, block_m: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    matrices = tl.program_id(1) * block_m + tl.arange(0, block_m)
    return tl.program_id(0), matrices, matrices < shape.num_matrices


# Where the vectors of one query in some matrices lie: [matrices, size].
@triton.jit
def vectors_of_query(
    tensor: Heads, matrices: tl.tensor, query: tl.tensor, shape: Shape, size: tl.constexpr
) -> tl.tensor:
    starts = start_of(tensor, matrices, shape) + tl.cast(query, tl.int64) * tensor.row
    return starts[:, None] + tl.arange(0, size)[None, :]


# Vectors `first`, `first` + 1, ... of a matrix: [rows, size]. Keys and values may be one for each
# `group` of heads.
@triton.jit
def load_vectors(
    tensor: tl.tensor_descriptor,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    group: tl.constexpr = 1,
) -> tl.tensor:
    place = [matrix // shape.num_heads, matrix % shape.num_heads // group, first, 0]
    return tensor.load(place).reshape([tensor.block_shape[2], tensor.block_shape[3]])


# Write what `load_vectors` would load.
@triton.jit
def store_vectors(
    tensor: tl.tensor_descriptor,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    found: tl.tensor,
) -> None:
    place = [matrix // shape.num_heads, matrix % shape.num_heads, first, 0]
    tensor.store(place, found.to(tensor.dtype).reshape(tensor.block_shape))


# Forward: scores by position, then attention. Scores by position are also the first step backward.


# Scores by position of one query of `block_m` matrices.
# Equation: scores[m, i, j] = q[m, i] · table[i - j] scale log2(e), -inf out of sight.
# Tiles: [block_m, size] · [size, block_k]; the table's vectors are gathered, one for each key.
# Reads the queries once and the table; writes `scores`. Backward it also has the `outputs` of the
# forward pass: it reads `out`, `d_out` and `logsumexp`, and writes one float32 for each query, in
# rows of `rows_width`: `normalisers` and `agreement`; without a table nothing else.
# Precision: sums are float32; what is in sight is kept finite in the dtype of `scores`.
@triton.jit(do_not_specialize=["shape", "rows_width"])
def scores_kernel(
    queries: Heads,
    table: tl.tensor,
    scores: tl.tensor,
    first_visible: tl.tensor,
    outputs: Outputs,
    shape: Shape,
    width: tl.tensor,
    rows_width: tl.tensor,
    scale: tl.tensor,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    query, matrices, there = query_of_matrices(shape, block_m)
    places = vectors_of_query(queries, matrices, query, shape, size)
    # Their queries, [block_m, size].
    vectors = tl.load(places, mask=there[:, None], other=0.0)
    start, stop = tiles_in_sight(query // block_q * block_q, shape, block_q, block_k)
    # Keys that this query sees: [oldest, newest].
    newest = tl.minimum(shape.first_query + query, shape.num_keys - 1)
    oldest = tl.maximum(shape.first_query + query - shape.span + 1, shape.num_hidden)
    # [block_m]: rows of `scores` and elements of `logsumexp`.
    rows = matrices.to(tl.int64) * shape.num_queries + query
    base = scores + rows * width
    if first_visible is not None:
        earliest = tl.load(first_visible + matrices // shape.num_heads, mask=there, other=0)
        earliest += shape.num_hidden
    if table is not None:
        highest: tl.constexpr = HIGHEST_HALF if scores.dtype.element_ty == tl.float16 else HIGHEST
        for place in range(start, stop, block_k):
            keys = place + tl.arange(0, block_k)
            # [block_k, size]: the vector of each key's distance.
            by_place = load_distances(table, shape.first_query + query - keys, shape, size)
            found = tl.dot(vectors, tl.trans(by_place), input_precision="ieee") * (scale * LOG2E)
            # An upper bound of -inf hides a key from all matrices at once.
            visible = (keys >= oldest) & (keys <= newest)
            most = tl.where(visible, highest, -float("inf"))
            found = tl.minimum(tl.maximum(found, -highest), most[None, :])
            if first_visible is not None:
                found = tl.where(keys[None, :] >= earliest[:, None], found, -float("inf"))
            found = found.to(scores.dtype.element_ty)
            tl.store(base[:, None] + keys[None, :], found, mask=there[:, None])
    if outputs is not None:
        places = vectors_of_query(outputs.out, matrices, query, shape, size)
        found = tl.load(places, mask=there[:, None], other=0.0).to(tl.float32)
        places = vectors_of_query(outputs.d_out, matrices, query, shape, size)
        gradient = tl.load(places, mask=there[:, None], other=0.0).to(tl.float32)
        places = matrices.to(tl.int64) * rows_width + query
        tl.store(outputs.agreement + places, tl.sum(found * gradient, 1), mask=there)
        divisor = tl.load(outputs.logsumexp + rows, mask=there, other=0.0)
        # Where nothing is in sight, all scores are -inf: any finite number leaves weights of 0.
        divisor = tl.where(divisor == -float("inf"), 0.0, divisor * LOG2E)
        tl.store(outputs.normalisers + places, divisor, mask=there)


# Attention of one block of queries of one matrix per program.
# Equation: out[i] = Σ_j softmax_j(q[i] · k[j] scale log2(e) + scores[i, j]) v[j], in base 2.
# Tiles: [block_q, size] · [size, block_k] for one tile of keys after the other, those of the past
# first.
# Reads each tile of scores, keys and values once; writes `out`, and `logsumexp` [matrices,
# queries] in float32. Without scores it works out by itself what is in sight.
# Precision: factors have the inputs' dtype (weights are rounded to it); sums are float32.
@triton.jit(do_not_specialize=["shape"])
def attend_kernel(
    queries: tl.tensor_descriptor,
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    past_keys: tl.tensor_descriptor,
    past_values: tl.tensor_descriptor,
    scores: tl.tensor_descriptor,
    first_visible: tl.tensor,
    out: tl.tensor_descriptor,
    logsumexp: tl.tensor,
    noise: Noise,
    shape: Shape,
    scale: tl.tensor,
    group: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, first, start, stop = block_of_queries(shape, block_q, block_k)
    query = load_vectors(queries, matrix, shape, first)
    earliest = earliest_key(first_visible, matrix, shape) + shape.num_hidden
    softmax = no_softmax(block_q, size)
    for is_own in tl.static_range(0 if past_keys is not None else 1, 2):
        # Tiles of keys and values that begin at `begin`: those of the past, then the own.
        begin = shape.boundary if is_own else shape.num_hidden
        end = stop if is_own else tl.minimum(stop, shape.boundary)
        for place in range(start, end, block_k):
            key = load_vectors(keys if is_own else past_keys, matrix, shape, place - begin, group)
            if scores is not None:
                by_place = scores.load([matrix, first, place]).reshape([block_q, block_k])
            value = load_vectors(
                values if is_own else past_values, matrix, shape, place - begin, group
            )
            # [block_q, size] · [size, block_k]
            scores_of = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
            if scores is not None:
                scores_of += by_place.to(tl.float32)
            else:
                visible = visible_pairs(first, place, shape, earliest, block_q, block_k)
                scores_of = tl.where(visible, scores_of, -float("inf"))
            queries_at = first + tl.arange(0, block_q)[:, None]
            keys_at = place - shape.num_hidden + tl.arange(0, block_k)[None, :]
            # Pairs are numbered as without hidden places, so that all kernels drop the same ones.
            pairs = queries_at * (shape.num_keys - shape.num_hidden) + keys_at
            softmax = add_tile(softmax, scores_of, value, noise, matrix, pairs)
        start = tl.maximum(start, shape.boundary)
    found = end_softmax(softmax, noise, logsumexp, matrix, shape, first)
    store_vectors(out, matrix, shape, first, found)


# Backward, after `scores_kernel`: keys and values, and with them d_scores; then queries and table.


# Gradients of one block of keys and values per program, and of the scores of the `group` of heads
# that sees them, one head after the other; `key_shape` counts the heads of keys and values.
# Equation, with P = softmax(s) and dP = d_out vᵀ:
#
#     dv = Pᵀ d_out,  dS = P (dP - agreement),  dk = scale dSᵀ q
#
# Tiles: keys are rows, [block_k, rows_q], for one tile of queries after the other; so P and dS go
# from one product into the next as they are.
# Reads keys and values once, queries, `d_out` and scores tile by tile; writes `d_scores`, which
# may lie where the scores do (a tile is read before the same program writes it), and at the end
# the block's gradients.
# Precision: factors have the inputs' dtype (P, dS are rounded to it); sums are float32.
@triton.jit(do_not_specialize=["shape", "key_shape", "num_stored"])
def keys_kernel(
    queries: tl.tensor_descriptor,
    keys: Joined,
    values: Joined,
    scores: tl.tensor_descriptor,
    d_scores: tl.tensor_descriptor,
    d_out: tl.tensor_descriptor,
    normalisers: tl.tensor_descriptor,
    agreement: tl.tensor_descriptor,
    d_keys: Joined,
    d_values: Joined,
    noise: Noise,
    shape: Shape,
    key_shape: Shape,
    first_visible: tl.tensor,
    num_stored: tl.tensor,
    scale: tl.tensor,
    group: tl.constexpr,
    adds_past: tl.constexpr,
    rows_q: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    num_blocks = tl.cdiv(shape.num_keys, block_k)
    owner = tl.program_id(0) // num_blocks
    place = tl.program_id(0) % num_blocks * block_k
    start, stop = queries_in_sight(place, shape, block_q, block_k)
    key = load_keys(keys, owner, key_shape, place, block_k, size)
    value = load_keys(values, owner, key_shape, place, block_k, size)
    keys_at = place - shape.num_hidden + tl.arange(0, block_k)[:, None]
    d_key = tl.zeros((block_k, size), tl.float32)
    d_value = tl.zeros((block_k, size), tl.float32)
    for member in tl.static_range(group):
        matrix = owner * group + member
        earliest = earliest_key(first_visible, matrix, shape) + shape.num_hidden
        for first in range(start, stop, rows_q):
            query = load_vectors(queries, matrix, shape, first)
            if scores is not None:
                by_place = tl.trans(scores.load([matrix, first, place]).reshape([rows_q, block_k]))
            gradient = load_vectors(d_out, matrix, shape, first)
            # Both [1, rows_q]: one number for each column.
            normaliser = normalisers.load([matrix, first])
            shift = agreement.load([matrix, first])
            content = tl.dot(key, tl.trans(query), input_precision="ieee") * (scale * LOG2E)
            # P: [block_k, rows_q]; -inf in `by_place` is a weight of 0.
            if scores is not None:
                weights = tl.exp2(content + (by_place.to(tl.float32) - normaliser))
            else:
                visible = visible_pairs(first, place, shape, earliest, rows_q, block_k)
                excess = tl.where(tl.trans(visible), content - normaliser, -float("inf"))
                weights = tl.exp2(excess)
            d_weights = tl.dot(value, tl.trans(gradient), input_precision="ieee")
            queries_at = first + tl.arange(0, rows_q)[None, :]
            # Pairs are numbered as without hidden places, so that all kernels drop the same ones.
            pairs = queries_at * (shape.num_keys - shape.num_hidden) + keys_at
            used, d_weights = drop_again(weights, d_weights, noise, matrix, pairs)
            # [block_k, rows_q] · [rows_q, size], both times
            d_value = tl.dot(used.to(gradient.dtype), gradient, d_value, input_precision="ieee")
            # dS, of shape [block_k, rows_q].
            d_tile = (weights * (d_weights - shift)).to(query.dtype)
            d_key = tl.dot(d_tile, query, d_key, input_precision="ieee")
            d_scores.store([matrix, first, place], tl.trans(d_tile).reshape([1, rows_q, block_k]))
    store_keys(d_keys, owner, key_shape, place, num_stored, d_key * scale, adds_past)
    store_keys(d_values, owner, key_shape, place, num_stored, d_value, adds_past)


# The table's part of the gradient of one query of `block_m` matrices.
# Equation: dq[m, i] = scale Σ_j dS[m, i, j] table[i - j].
# Tiles: [block_m, block_k] · [block_k, size]; the table's vectors are gathered, one for each key.
# Reads `d_scores` once and the table; writes `d_queries`, to which `queries_by_key_kernel` adds.
# Precision: sums are float32, rounded to the dtype of `d_queries`.
@triton.jit(do_not_specialize=["shape"])
def queries_by_table_kernel(
    table: tl.tensor,
    d_scores: tl.tensor,
    d_queries: Heads,
    shape: Shape,
    width: tl.tensor,
    scale: tl.tensor,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    query, matrices, there = query_of_matrices(shape, block_m)
    start, stop = tiles_in_sight(query // block_q * block_q, shape, block_q, block_k)
    base = d_scores + (matrices.to(tl.int64) * shape.num_queries + query) * width
    d_query = tl.zeros((block_m, size), tl.float32)
    for place in range(start, stop, block_k):
        # The hint lets rows be read in wide steps.
        keys = tl.multiple_of(place, block_k) + tl.arange(0, block_k)
        d_tile = tl.load(base[:, None] + keys[None, :], mask=there[:, None], other=0.0)
        # [block_k, size]: the vector of each key's distance.
        by_place = load_distances(table, shape.first_query + query - keys, shape, size)
        d_query = tl.dot(d_tile, by_place, d_query, input_precision="ieee")
    places = vectors_of_query(d_queries, matrices, query, shape, size)
    tl.store(places, (d_query * scale).to(d_queries.data.dtype.element_ty), mask=there[:, None])


# The keys' part of the gradients of one block of queries of one matrix per program.
# Equation: dq[i] += scale Σ_j dS[i, j] k[j].
# Tiles: [block_q, block_k] · [block_k, size] for one tile of keys after the other.
# Reads `d_scores`, keys and, where it `adds`, `d_queries` once; writes `d_queries`.
# Precision: sums are float32, added to what `d_queries` holds in its dtype.
@triton.jit(do_not_specialize=["shape"])
def queries_by_key_kernel(
    keys: tl.tensor_descriptor,
    past_keys: tl.tensor_descriptor,
    d_scores: tl.tensor_descriptor,
    d_queries: tl.tensor_descriptor,
    shape: Shape,
    scale: tl.tensor,
    adds: tl.constexpr,
    group: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    matrix, first, start, stop = block_of_queries(shape, block_q, block_k)
    d_query = tl.zeros((block_q, size), tl.float32)
    by_table = d_query
    if adds:
        # What `queries_by_table_kernel` left: [block_q, size].
        by_table = load_vectors(d_queries, matrix, shape, first).to(tl.float32)
    if past_keys is not None:
        for place in range(start, tl.minimum(stop, shape.boundary), block_k):
            key = load_vectors(past_keys, matrix, shape, place - shape.num_hidden, group)
            d_tile = d_scores.load([matrix, first, place]).reshape([block_q, block_k])
            d_query = tl.dot(d_tile, key, d_query, input_precision="ieee")
        start = tl.maximum(start, shape.boundary)
    for place in range(start, stop, block_k):
        key = load_vectors(keys, matrix, shape, place - shape.boundary, group)
        d_tile = d_scores.load([matrix, first, place]).reshape([block_q, block_k])
        d_query = tl.dot(d_tile, key, d_query, input_precision="ieee")
    store_vectors(d_queries, matrix, shape, first, d_query * scale + by_table)


# Gradients of blocks of `block_k` distances of the table.
# Equation: d_table[d] = scale Σ_m Σ_i dS[m, i, i - d] q[m, i].
# Tiles: [block_k, block_m] · [block_m, size] at one query after the other.
# Reads `d_scores` along the skew, and the queries; adds to the program's own row of `table_sums`
# [programs, num_rows, size].
# Precision: sums are float32.
#
# A program takes queries whose positions are alike modulo `num_classes`. Among these, the keys
# of one block of distances begin at multiples of `num_classes`, so that rows of `d_scores` are
# read in wide steps. It owns some of the blocks, and shares them with the programs that take
# other groups of matrices, or other parts of the queries: program = ((owner * groups + group) *
# parts + part) * classes + class.
@triton.jit(do_not_specialize=["shape", "num_blocks", "num_groups", "num_parts"])
def table_kernel(
    queries: Heads,
    d_scores: tl.tensor,
    table_sums: tl.tensor,
    shape: Shape,
    num_blocks: tl.tensor,
    num_groups: tl.tensor,
    num_parts: tl.tensor,
    width: tl.tensor,
    scale: tl.tensor,
    num_classes: tl.constexpr,
    block_m: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    size: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    sums = table_sums + program.to(tl.int64) * shape.num_rows * size
    d_last = tl.zeros((size,), tl.float32)
    kind = program % num_classes
    rest = program // num_classes
    owner = rest // num_groups
    num_owners = tl.num_programs(0) // num_classes // num_groups
    part = rest % num_groups % num_parts
    group = rest % num_groups // num_parts
    # The first query of this class.
    begin = (kind - shape.first_query % num_classes + num_classes) % num_classes
    columns = tl.arange(0, block_k)
    # Near distances have more queries than far ones: there and back again over the owners.
    for turn in range(tl.cdiv(num_blocks, num_owners)):
        block = turn * num_owners + tl.where(turn % 2 == 0, owner, num_owners - 1 - owner)
        # Distances of the block: farthest, farthest - 1, ..., one for each of `block_k` keys.
        farthest = block * block_k + block_k - num_classes + kind
        # No query at a place before the block's nearest distance has such a key.
        nearest = farthest - block_k + 1
        skipped = tl.maximum(nearest - shape.first_query - begin, 0) // num_classes * num_classes
        stop = tl.where(block < num_blocks, shape.num_queries, 0)
        d_vectors = tl.zeros((block_k, size), tl.float32)
        step = num_groups // num_parts * block_m
        for first_matrix in range(group * block_m, shape.num_matrices, step):
            matrices = first_matrix + tl.arange(0, block_m)
            there = (matrices < shape.num_matrices)[:, None]
            d_places = d_scores + matrices.to(tl.int64) * shape.num_queries * width
            # Rows of d_scores and vectors of query 0: [block_m] and [block_m, size].
            q_places = vectors_of_query(queries, matrices, 0, shape, size)
            for query in range(begin + skipped + part * num_classes, stop, num_parts * num_classes):
                first = query // block_q * block_q
                first_key, last_key = tiles_in_sight(first, shape, block_q, block_k)
                # The key at distance `farthest`: a multiple of num_classes already.
                place = (shape.first_query + query - farthest) // num_classes * num_classes
                keys = tl.multiple_of(place, num_classes) + columns
                inside = (keys >= first_key) & (keys < last_key)
                row = tl.cast(query, tl.int64)
                d_tile = tl.load(
                    d_places[:, None] + row * width + keys[None, :],
                    mask=there & inside[None, :],
                    other=0.0,
                )
                vectors = tl.load(q_places + row * queries.row, mask=there, other=0.0)
                # [block_k, block_m] · [block_m, size]
                d_vectors = tl.dot(tl.trans(d_tile), vectors, d_vectors, input_precision="ieee")
        if block < num_blocks:
            d_last = add_to_table(sums, farthest - columns, d_vectors * scale, d_last, shape)
    add_to_last(sums, d_last, shape)
