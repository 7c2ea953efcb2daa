"""The forward of relative-position attention with one query for each batch row and head.

With one query there is no matrix to multiply by, and time goes into reading keys and values once.
A program takes one head through its keys in blocks, and block after block adds to the same lanes:
lanes are summed up after the last, so that the threads of a program need not meet before. The
same weights are dropped as by the kernels for many queries.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.relative_call import Call
from staircase_attention.engine.kernels.relative_tiles import earliest_key, head_base

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
def keys_in_sight(
    first_visible: tl.tensor,
    head: tl.tensor,
    num_heads: tl.tensor,
    num_keys: tl.tensor,
    first_query: tl.tensor,
    span: tl.tensor,
    has_first_visible: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first key that a head's query sees, and the one after the last."""
    earliest = earliest_key(first_visible, head, num_heads, has_first_visible)
    oldest = tl.maximum(first_query - span + 1, earliest)
    return oldest, tl.minimum(num_keys, first_query + 1)


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
    oldest, stop = keys_in_sight(
        first_visible, head, num_heads, num_keys, first_query, span, has_first_visible
    )
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
