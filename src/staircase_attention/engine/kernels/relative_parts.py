"""What all kernels of relative-position attention share: a call, its arguments, parts of tiles.

Query i of a head, key j and the table's vector of their distance give the score

    s[i, j] = q[i] · (k[j] + table[min(i + first_query - j, num_rows - 1)]) / sqrt(size)

A matrix is what belongs to one batch row and one head: (time, size). Kernels count the matrices
from 0 to batch * heads - 1. Factors of products have the inputs' dtype; sums, the softmax and all
accumulators are float32. Scores are in bits (multiplied by log2(e)) wherever exp2 is taken of them.
"""

# mypy: disable-error-code="untyped-decorator"

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

# exp(x) = 2 ** (x log2(e))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Tensor cores multiply tiles of at least this many rows.
SMALLEST_BLOCK = 16
# Heads of this size need other tiles: every row takes more registers.
WIDE_HEAD = 128
# By dtype and by whether heads are wide: the most queries and keys that a single tile holds.
LARGEST_TILE = {
    (torch.bfloat16, False): 64,
    (torch.bfloat16, True): 64,
    (torch.float32, False): 32,
    (torch.float32, True): 16,
}

# Keys and values, or their gradients, each (batch, heads, time, size).
Pair = tuple[Tensor, Tensor]


# Arguments of the kernels. Triton takes a named tuple apart, and specialises the pointers and
# strides inside it as it does plain arguments (divisible by 16, equal to 1, None).


class Heads(NamedTuple):
    """A (batch, heads, time, size) tensor with contiguous vectors: its address and its strides."""

    data: Any
    batch: Any
    head: Any
    row: Any


class Joined(NamedTuple):
    """Keys or values, or their gradients: those of the past, where there are any, and the own."""

    past: Any
    own: Any


class Noise(NamedTuple):
    """Dropout of weights; without a seed nothing is dropped, and the rate is 0."""

    seed: Any
    rate: Any


class Inputs(NamedTuple):
    """What attention reads. Scores are multiplied by `scale`, 1 / sqrt(size)."""

    queries: Any
    # Triton's own tuples have an attribute `values`.
    joined_keys: Any
    joined_values: Any
    table: Any
    first_visible: Any
    noise: Any
    scale: Any


class Shape(NamedTuple):
    """Numbers that change from call to call.

    They are not specialised (except that Triton takes 1 for a constant): one kernel serves them
    all. Keys are counted from `num_hidden` places before the first one, and so are the queries'
    positions. The past ends, and the own keys begin, at `boundary`.
    """

    num_matrices: Any
    num_heads: Any
    num_queries: Any
    num_keys: Any
    num_hidden: Any
    boundary: Any
    num_rows: Any
    first_query: Any
    span: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of attention, with relative positions or without."""

    queries: Float[Tensor, "batch heads queries size"]
    keys: Float[Tensor, "batch groups keys size"]
    values: Float[Tensor, "batch groups keys size"]
    """Without a table there may be fewer heads of keys and values, each for a group of queries'."""
    table: Float[Tensor, "distances size"] | None
    """None: positions are in the queries and keys already."""
    past: Pair | None = None
    """Keys and values before these, at least one, which may lie elsewhere."""
    first_query: int
    """Counted from the first key, that of the past where there is one; so are distances."""
    span: int | None = None
    first_visible: Int[Tensor, " batch"] | None = None
    dropout: float = 0.0
    seed: Int[Tensor, " 1"] | None = None
    """An int64 on the device, if something is dropped; the same seed drops the same weights."""

    @property
    def num_matrices(self) -> int:
        """Batch rows times heads."""
        return self.queries.shape[0] * self.queries.shape[1]

    @property
    def num_queries(self) -> int:
        """Queries of a matrix."""
        return self.queries.shape[2]

    @property
    def num_past(self) -> int:
        """Keys of the past."""
        return 0 if self.past is None else self.past[0].shape[2]

    @property
    def num_keys(self) -> int:
        """Keys of a matrix, those of the past included."""
        return self.num_past + self.keys.shape[2]

    @property
    def num_distances(self) -> int:
        """Distances that queries see: at most those that there are."""
        there = self.first_query + self.num_queries
        return there if self.span is None else min(self.span, there)

    @property
    def size(self) -> int:
        """Elements of a vector."""
        return self.queries.shape[3]

    @property
    def kind(self) -> tuple[torch.dtype, bool]:
        """What tuning depends on: the dtype, and whether heads are wide."""
        return self.queries.dtype, self.size >= WIDE_HEAD

    @property
    def is_single_tile(self) -> bool:
        """Whether one tile holds all pairs, and there are kernels for that."""
        fits = max(self.num_queries, self.num_keys) <= LARGEST_TILE[self.kind]
        return fits and self.table is not None

    @property
    def group(self) -> int:
        """Heads of queries that share a head of keys and values."""
        return self.queries.shape[1] // self.keys.shape[1]

    @property
    def inputs(self) -> Inputs:
        """Tensors and dropout, for a kernel."""
        past_keys, past_values = map(with_rows, self.past) if self.past else (None, None)
        return Inputs(
            queries=heads(with_rows(self.queries)),
            joined_keys=join(past_keys, with_rows(self.keys)),
            joined_values=join(past_values, with_rows(self.values)),
            table=None if self.table is None else self.table.contiguous(),
            first_visible=self.first_visible,
            noise=Noise(self.seed if self.dropout > 0 else None, float(self.dropout)),
            scale=1 / math.sqrt(self.size),
        )

    def shape(self, num_hidden: int = 0) -> Shape:
        """Sizes and positions, for a kernel that counts keys from `num_hidden` before the first."""
        return Shape(
            num_matrices=self.num_matrices,
            num_heads=self.queries.shape[1],
            num_queries=self.num_queries,
            num_keys=self.num_keys + num_hidden,
            num_hidden=num_hidden,
            boundary=self.num_past + num_hidden,
            num_rows=0 if self.table is None else len(self.table),
            first_query=self.first_query + num_hidden,
            span=self.num_distances,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Where a backward pass writes what it finds; the table's parts are added to `table_sums`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    past: Pair | None
    """For the last keys and values of the past, as many as there is room for, if they are asked."""
    adds_past: bool
    """Whether the gradients of the past are added to what is there."""
    table_sums: Float[Tensor, "sums distances size"] | None
    """None without a table."""

    @property
    def num_stored(self) -> int:
        """Keys of the past whose gradients are asked for."""
        return 0 if self.past is None else self.past[0].shape[2]

    @property
    def joined(self) -> tuple[Joined, Joined]:
        """Gradients of keys and values, for a kernel."""
        past_keys, past_values = self.past or (None, None)
        return join(past_keys, self.keys), join(past_values, self.values)


def heads(tensor: Tensor) -> Heads:
    """A tensor with contiguous vectors, for a kernel."""
    assert tensor.stride(-1) == 1
    return Heads(tensor, *tensor.stride()[:3])


def join(past: Tensor | None, own: Tensor) -> Joined:
    """Two tensors one after the other, for a kernel."""
    return Joined(None if past is None else heads(past), heads(own))


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor with contiguous vectors, as the kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def block_for(length: int, largest: int) -> int:
    """The smallest power of two that holds `length`, within what tiles may be."""
    return min(max(1 << (length - 1).bit_length(), SMALLEST_BLOCK), largest)


# Where things lie.


# Where the first vector of a matrix lies, or of each of several matrices.
@triton.jit
def start_of(tensor: Heads, matrix: tl.tensor, shape: Shape) -> tl.tensor:
    # 64 bits: tensors may have more than 2^31 elements.
    row = (matrix // shape.num_heads).to(tl.int64)
    head = (matrix % shape.num_heads).to(tl.int64)
    return tensor.data + row * tensor.batch + head * tensor.head


# Where the elements of these vectors of a matrix lie: [rows, size].
@triton.jit
def vectors_at(
    start: tl.tensor, rows: tl.tensor, stride: tl.tensor, size: tl.constexpr
) -> tl.tensor:
    return start + (rows.to(tl.int64) * stride)[:, None] + tl.arange(0, size)[None, :]


# The first key that belongs to the stream of this batch row.
@triton.jit
def earliest_key(first_visible: tl.tensor, matrix: tl.tensor, shape: Shape) -> tl.tensor:
    earliest = tl.full((), 0, tl.int32)
    if first_visible is not None:
        earliest = tl.maximum(tl.load(first_visible + matrix // shape.num_heads).to(tl.int32), 0)
    return earliest


# Which pairs are there and in sight, [block_q, block_k], from query `first` and key `place` on.
# Each query's oldest and newest key first: rows and columns take few registers, pairs many.
@triton.jit
def visible_pairs(
    first: tl.tensor,
    place: tl.tensor,
    shape: Shape,
    earliest: tl.tensor,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
) -> tl.tensor:
    queries = first + tl.arange(0, block_q)
    keys = place + tl.arange(0, block_k)[None, :]
    oldest = tl.maximum(shape.first_query + queries - shape.span + 1, earliest)
    newest = tl.minimum(shape.first_query + queries, shape.num_keys - 1)
    newest = tl.where(queries < shape.num_queries, newest, -1)
    return (keys >= oldest[:, None]) & (keys <= newest[:, None])


# Where vectors `first`, `first` + 1, ... of a matrix lie, and which are there: 0 to `limit` - 1.
@triton.jit
def rows_at(
    tensor: Heads,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    rows = tl.arange(0, num_rows)
    # The first one in 64 bits, the others relative to it in 32.
    places = start_of(tensor, matrix, shape) + tl.cast(first, tl.int64) * tensor.row
    places = places + rows[:, None] * tensor.row + tl.arange(0, size)[None, :]
    return places, ((first + rows >= 0) & (first + rows < limit))[:, None]


# Vectors `first`, `first` + 1, ... of a matrix; zeros before 0 and from `limit` on.
@triton.jit
def load_rows(
    tensor: Heads,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    places, inside = rows_at(tensor, matrix, shape, first, limit, num_rows, size)
    return tl.load(places, mask=inside, other=0.0)


# Write what `load_rows` would load, in the dtype of the tensor.
@triton.jit
def store_rows(
    tensor: Heads,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    limit: tl.tensor,
    found: tl.tensor,
) -> None:
    num_rows: tl.constexpr = found.shape[0]
    places, inside = rows_at(tensor, matrix, shape, first, limit, num_rows, found.shape[1])
    tl.store(places, found.to(tensor.data.dtype.element_ty), mask=inside)


# The keys or values from place `first` on, past and own, [num_rows, size]; zeros elsewhere.
@triton.jit
def load_keys(
    keys: Joined,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    num_rows: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    if keys.past is not None:
        rows = first + tl.arange(0, num_rows)
        inside = (rows >= shape.num_hidden) & (rows < shape.num_keys)
        # Each row [num_rows, 1] picks its tensor: a tile may hold parts of both.
        before = start_of(keys.past, matrix, shape)
        before = before + ((rows - shape.num_hidden).to(tl.int64) * keys.past.row)[:, None]
        after = start_of(keys.own, matrix, shape)
        after = after + ((rows - shape.boundary).to(tl.int64) * keys.own.row)[:, None]
        places = tl.where((rows < shape.boundary)[:, None], before, after)
        return tl.load(places + tl.arange(0, size)[None, :], mask=inside[:, None], other=0.0)
    else:  # noqa: RET505
        num_own = shape.num_keys - shape.boundary
        return load_rows(keys.own, matrix, shape, first - shape.boundary, num_own, num_rows, size)


# Write what `load_keys` would load, in the dtype of each tensor.
# Of the past, `keys.past` has room for the last `num_stored`, if it is given at all; with
# `adds_past` its part is added to what is there.
@triton.jit
def store_keys(
    keys: Joined,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
    num_stored: tl.tensor,
    found: tl.tensor,
    adds_past: tl.constexpr,
) -> None:
    num_own = shape.num_keys - shape.boundary
    store_rows(keys.own, matrix, shape, first - shape.boundary, num_own, found)
    if keys.past is not None:
        rows = first + tl.arange(0, found.shape[0])
        # Places of the past that have room: [first_stored, boundary).
        first_stored = shape.boundary - num_stored
        inside = ((rows >= first_stored) & (rows < shape.boundary))[:, None]
        start = start_of(keys.past, matrix, shape)
        places = vectors_at(start, rows - first_stored, keys.past.row, found.shape[1])
        if adds_past:
            found += tl.load(places, mask=inside, other=0.0).to(tl.float32)
        tl.store(places, found.to(keys.past.data.dtype.element_ty), mask=inside)


# The table of distances, (num_rows, size). Its last row stands for all greater distances too.


# Vectors of these distances, clipped to the table: [distances, size].
@triton.jit
def load_distances(
    table: tl.tensor, distances: tl.tensor, shape: Shape, size: tl.constexpr
) -> tl.tensor:
    # Negative distances are those of keys out of sight: any row will do.
    rows = tl.minimum(tl.maximum(distances, 0), shape.num_rows - 1)
    return tl.load(table + rows[:, None] * size + tl.arange(0, size)[None, :])


# Add gradients to the rows short of the last; what is beyond goes to `d_last`.
@triton.jit
def add_to_table(
    sums: tl.tensor, distances: tl.tensor, d_vectors: tl.tensor, d_last: tl.tensor, shape: Shape
) -> tl.tensor:
    size: tl.constexpr = d_vectors.shape[1]
    last = shape.num_rows - 1
    inside = ((distances >= 0) & (distances < last))[:, None]
    places = sums + distances[:, None] * size + tl.arange(0, size)[None, :]
    tl.store(places, tl.load(places, mask=inside, other=0.0) + d_vectors, mask=inside)
    return d_last + tl.sum(tl.where((distances >= last)[:, None], d_vectors, 0.0), 0)


# Add to the table's last row.
@triton.jit
def add_to_last(sums: tl.tensor, d_last: tl.tensor, shape: Shape) -> None:
    size: tl.constexpr = d_last.shape[0]
    places = sums + (shape.num_rows - 1) * size + tl.arange(0, size)
    tl.store(places, tl.load(places) + d_last)


# Dropout.


# Which weights survive dropout: a function of seed, matrix and pair alone.
# Pair number query * num_keys + key is one of Philox's four 32-bit counters, the matrix another.
@triton.jit
def kept_weights(noise: Noise, matrix: tl.tensor, pairs: tl.tensor) -> tl.tensor:
    zeros = pairs * 0
    bits, _, _, _ = tl.philox(tl.load(noise.seed), pairs, zeros + matrix, zeros, zeros)
    return tl.uint_to_uniform_float(bits) >= noise.rate


# The weights as the forward kernel used them, and the gradients of those it kept.
@triton.jit
def drop_again(
    weights: tl.tensor, d_weights: tl.tensor, noise: Noise, matrix: tl.tensor, pairs: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    used = weights
    if noise.seed is not None:
        kept = kept_weights(noise, matrix, pairs)
        # out = Σ (P kept / (1 - rate)) v, so dP = (d_out vᵀ) kept / (1 - rate).
        used = tl.where(kept, weights / (1 - noise.rate), 0.0)
        d_weights = tl.where(kept, d_weights / (1 - noise.rate), 0.0)
    return used, d_weights


# The softmax over tiles of keys, one after the other, is a tuple of highest scores [block_q], sums
# [block_q] and gathered values [block_q, size], all float32:
#   highest' = max(highest, max_j s[j])
#   total' = total 2^(highest - highest') + Σ_j 2^(s[j] - highest')
#   gathered' = gathered 2^(highest - highest') + Σ_j 2^(s[j] - highest') v[j]
# and gathered / total after the last tile.


# The softmax of no keys. A finite floor: a row with nothing in sight must not subtract infinities.
@triton.jit
def no_softmax(block_q: tl.constexpr, size: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    highest = tl.full((block_q,), -1e30, tl.float32)
    return highest, tl.zeros((block_q,), tl.float32), tl.zeros((block_q, size), tl.float32)


# The softmax with one more tile: scores [block_q, block_k] in bits, -inf out of sight, and value
# [block_k, size]. Pairs [block_q, block_k] are numbered for dropout.
@triton.jit
def add_tile(
    softmax: tl.tuple,
    scores: tl.tensor,
    value: tl.tensor,
    noise: Noise,
    matrix: tl.tensor,
    pairs: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    highest, total, gathered = softmax
    # [block_q]: the new maximum of each query, and below how much of the old sums is left.
    raised = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - raised[:, None])
    shrunk = tl.exp2(highest - raised)
    total = total * shrunk + tl.sum(weights, 1)
    # Dropout comes after the softmax: what is dropped still counts in the divisor.
    if noise.seed is not None:
        weights = tl.where(kept_weights(noise, matrix, pairs), weights, 0.0)
    # [block_q, block_k] · [block_k, size], on top of what was gathered
    gathered = tl.dot(
        weights.to(value.dtype), value, gathered * shrunk[:, None], input_precision="ieee"
    )
    return raised, total, gathered


# The gathered values divided, [block_q, size], and zero where nothing is in sight. The divisors'
# natural logarithms are stored for the backward pass: [matrices, queries] float32.
@triton.jit
def end_softmax(
    softmax: tl.tuple,
    noise: Noise,
    logsumexp: tl.tensor,
    matrix: tl.tensor,
    shape: Shape,
    first: tl.tensor,
) -> tl.tensor:
    highest, total, gathered = softmax
    # A query with nothing in sight divides by 1, and finds zero.
    sees = total > 0
    divisor = tl.where(sees, total, 1.0)
    rows = first + tl.arange(0, total.shape[0])
    # `highest` is in bits, its natural logarithm is not.
    tl.store(
        logsumexp + matrix.to(tl.int64) * shape.num_queries + rows,
        tl.where(sees, highest * LN2 + tl.log(divisor), -float("inf")),
        mask=rows < shape.num_queries,
    )
    return gathered * (1.0 / (divisor * (1 - noise.rate)))[:, None]
