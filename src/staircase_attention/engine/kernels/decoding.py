"""Kernels for one token a row: products that read their weights once.

A ring is a buffer of keys or values in which the token at position p lies at p modulo the buffer's
capacity. Everything that changes from token to token follows from one position on the device, so
that the same launches serve every token and can be captured once.

Hidden vectors between layers are float32. `few` kernels are for batches of a few rows and multiply
without tensor cores: each program reads whole rows of the weights in one go. `many` kernels are for
larger batches; none of their programs has a whole row, so a kernel of its own norms rows for them.
A kernel that is launched `early` begins before the one ahead of it has ended: until it waits, it
may read nothing but weights.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

STORE = tl.constexpr(0)
"""Targets: rows as they are,"""
RELU = tl.constexpr(1)
"""rows without what is negative,"""
ADD = tl.constexpr(2)
"""a sum in place,"""
KEEP = tl.constexpr(3)
"""or queries to rows, and keys and values to rings."""


@triton.jit
def slot_of(position, pass_number, CHUNK: tl.constexpr, PASSES: tl.constexpr, STAIRS: tl.constexpr):
    """Which of a layer's rings a pass reads and extends."""
    if STAIRS:
        slot = (position // CHUNK + pass_number - 1) % PASSES
    else:
        slot = tl.cast(pass_number - 1, tl.int64)
    return slot


@triton.jit
def layer_norm(x, inside, gains, shifts, epsilon, WIDTH: tl.constexpr):
    """The norm of one float32 row that is zero outside."""
    mean = tl.sum(x, axis=0) / WIDTH
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / WIDTH + epsilon)
    return centred * scale * gains + shifts


@triton.jit
def put_in_rings(result, row, columns, valid, queries, keys, values, base, position, layer,
                 pass_number, rows, HEADS: tl.constexpr, SIZE: tl.constexpr,
                 CAPACITY: tl.constexpr, CHUNK: tl.constexpr, PASSES: tl.constexpr,
                 STAIRS: tl.constexpr):  # fmt: skip
    """Queries to rows, keys and values to their places in the rings of this layer and pass."""
    WIDTH: tl.constexpr = HEADS * SIZE
    now = tl.load(position)
    slot = slot_of(now, pass_number, CHUNK, PASSES, STAIRS)
    kind = columns // WIDTH
    unit = columns % WIDTH
    ring = ((layer * PASSES + slot) * rows + row) * HEADS + unit // SIZE
    place = (base + ring * CAPACITY + now % CAPACITY) * SIZE + unit % SIZE
    tl.store(queries + row * WIDTH + unit, result.to(queries.dtype.element_ty),
             mask=valid & (kind == 0))  # fmt: skip
    tl.store(keys + place, result.to(keys.dtype.element_ty), mask=valid & (kind == 1))
    tl.store(values + place, result.to(values.dtype.element_ty), mask=valid & (kind == 2))  # noqa: PLR2004


@triton.jit
def finish(result, row, columns, valid, target, mix, mix_weight, queries, keys, values, base,
           position, layer, pass_number, rows, COLUMNS: tl.constexpr, TARGET: tl.constexpr,
           MIX: tl.constexpr, FIRST: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
           CAPACITY: tl.constexpr, CHUNK: tl.constexpr, PASSES: tl.constexpr,
           STAIRS: tl.constexpr):  # fmt: skip
    """Put a product where it belongs."""
    if TARGET == KEEP:
        put_in_rings(result, row, columns + FIRST, valid, queries, keys, values, base, position,
                     layer, pass_number, rows, HEADS, SIZE, CAPACITY, CHUNK, PASSES,
                     STAIRS)  # fmt: skip
    else:
        place = row * COLUMNS + columns
        if TARGET == RELU:
            result = tl.maximum(result, 0.0)
        if TARGET == ADD:
            result += tl.load(target + place, mask=valid, other=0.0)
        tl.store(target + place, result.to(target.dtype.element_ty), mask=valid)
        if MIX:
            so_far = tl.load(mix + place, mask=valid, other=0.0)
            tl.store(mix + place, so_far + tl.load(mix_weight) * result, mask=valid)


@triton.jit(do_not_specialize=["layer", "pass_number", "rows", "base"])
def product_few(source, weights, bias, gain, shift, epsilon, target, mix, mix_weight, queries, keys,
                values, base, position, layer, pass_number, rows, WEIGHT_STRIDE: tl.constexpr,
                COLUMNS: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr,
                TARGET: tl.constexpr, BIAS: tl.constexpr, MIX: tl.constexpr, FIRST: tl.constexpr,
                ADVANCE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
                CAPACITY: tl.constexpr, CHUNK: tl.constexpr, PASSES: tl.constexpr,
                STAIRS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Σ_k source[row, k] weights[column, k] for a few rows, each program a few columns whole.

    With NORM the source is the layer norm of float32 rows.
    """
    if EARLY:
        gdc_launch_dependents()
    # The second axis counts layers where one launch serves them all.
    number = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    valid = columns < COLUMNS
    inside = inner < INNER
    there = weights + number * WEIGHT_STRIDE + columns[:, None] * INNER + inner[None, :]
    weight = tl.load(there, mask=valid[:, None] & inside[None, :], other=0.0)
    if BIAS:
        biases = tl.load(bias + columns, mask=valid, other=0.0)
    if NORM:
        gains = tl.load(gain + number * INNER + inner, mask=inside, other=0.0)
        shifts = tl.load(shift + number * INNER + inner, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
    for row in tl.static_range(ROWS):
        x = tl.load(source + row * INNER + inner, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            x = layer_norm(x, inside, gains, shifts, epsilon, INNER)
        x = x.to(weights.dtype.element_ty).to(tl.float32)
        result = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
        if BIAS:
            result += biases
        finish(result, row, columns, valid, target, mix, mix_weight, queries, keys, values, base,
               position, layer + number, pass_number, rows, COLUMNS, TARGET, MIX, FIRST, HEADS,
               SIZE, CAPACITY, CHUNK, PASSES, STAIRS)  # fmt: skip
    if ADVANCE:  # noqa: SIM102
        if tl.program_id(0) == 0:
            tl.store(position, tl.load(position) + 1)


@triton.jit
def send_for(rows, first, LENGTH: tl.constexpr, INNER: tl.constexpr):
    """Ask for a part of some rows of numbers, so that they are near when they are needed."""
    LINE: tl.constexpr = 1024 // rows.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = 4 if LENGTH > 2 * LINE else (2 if LENGTH > LINE else 1)
    for start in tl.static_range(0, LENGTH, LINES * LINE):
        columns = tl.minimum(first + start + tl.arange(0, LINES) * LINE, INNER - 1)
        there = (rows + columns[None, :]).to(tl.int64)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [there],
                                  dtype=tl.int32, is_pure=False, pack=1)  # fmt: skip


@triton.jit(do_not_specialize=["layer", "pass_number", "rows", "base"])
def product_many(source, weights, bias, partial, counts, target, mix, mix_weight, queries, keys,
                 values, base, position, layer, pass_number, rows, WEIGHT_STRIDE: tl.constexpr,
                 COLUMNS: tl.constexpr, INNER: tl.constexpr, TARGET: tl.constexpr,
                 BIAS: tl.constexpr, MIX: tl.constexpr, FIRST: tl.constexpr,
                 ADVANCE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
                 CAPACITY: tl.constexpr, CHUNK: tl.constexpr, PASSES: tl.constexpr,
                 STAIRS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 EARLY: tl.constexpr):  # fmt: skip
    """Σ_k source[row, k] weights[column, k] for many rows, the sum over k in `PARTS` parts.

    Each part but the last to arrive leaves its sum behind; the last adds them up, always in the
    same order, so that the result does not depend on which it is.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    num_blocks = tl.cdiv(rows, BLOCK_M)
    number, block = tl.program_id(2) // num_blocks, tl.program_id(2) % num_blocks
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = part * PART + tl.arange(0, BLOCK_K)
    is_row, is_column = row < rows, columns < COLUMNS
    xs = source + (number * rows + row)[:, None] * INNER
    ws = weights + number * WEIGHT_STRIDE + columns[:, None] * INNER
    if EARLY:
        gdc_launch_dependents()
        last = weights + number * WEIGHT_STRIDE + (COLUMNS - 1) * INNER
        send_for(tl.where(is_column[:, None], ws, last), part * PART, PART, INNER)
        gdc_wait()
    result = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, PART, BLOCK_K):
        inside = (start + inner < INNER)[None, :]
        x = tl.load(xs + start + inner[None, :], mask=is_row[:, None] & inside, other=0.0)
        weight = tl.load(ws + start + inner[None, :], mask=is_column[:, None] & inside, other=0.0)
        result = tl.dot(x, tl.trans(weight), result, input_precision="ieee")
    if BIAS:
        result += tl.load(bias + columns, mask=is_column & (part == 0), other=0.0)[None, :]
    valid = is_row[:, None] & is_column[None, :]
    place = row[:, None] * COLUMNS + columns[None, :]
    is_last = True
    if PARTS > 1:
        size = rows * COLUMNS
        tl.store(partial + part * size + place, result, mask=valid)
        tl.debug_barrier()
        count = counts + block * tl.num_programs(0) + tile
        is_last = tl.atomic_add(count, 1, sem="acq_rel") == PARTS - 1
        if is_last:
            tl.debug_barrier()
            result = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for one in tl.static_range(PARTS):
                result += tl.load(partial + one * size + place, mask=valid, other=0.0,
                                  cache_modifier=".cg")  # fmt: skip
            tl.store(count, 0)
    if is_last:
        finish(result, row[:, None], columns[None, :], valid, target, mix, mix_weight, queries,
               keys, values, base, position, layer + number, pass_number, rows, COLUMNS, TARGET,
               MIX, FIRST, HEADS, SIZE, CAPACITY, CHUNK, PASSES, STAIRS)  # fmt: skip
    if ADVANCE:  # noqa: SIM102
        if tile + part + tl.program_id(2) == 0:
            tl.store(position, tl.load(position) + 1)


@triton.jit(do_not_specialize=["rows"])
def norm_rows(source, gain, shift, target, rows, epsilon, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """The layer norm of each row, by one norm or by several."""
    if EARLY:
        gdc_launch_dependents()
    row, number = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gains = tl.load(gain + number * WIDTH + columns, mask=inside, other=0.0)
    shifts = tl.load(shift + number * WIDTH + columns, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
    x = tl.load(source + row * WIDTH + columns, mask=inside, other=0.0)
    x = layer_norm(x, inside, gains, shifts, epsilon, WIDTH)
    place = target + (number * rows + row) * WIDTH + columns
    tl.store(place, x.to(target.dtype.element_ty), mask=inside)


@triton.jit
def embed_rows(tokens, table, hidden, kept, mix, mix_weight, num_tokens, WIDTH: tl.constexpr,
               COPY: tl.constexpr, MIX: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Each row's token as a vector; a token that is none gives zeros."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < num_tokens)
    x = tl.load(table + token * WIDTH + columns, mask=inside & known, other=0.0).to(tl.float32)
    place = row * WIDTH + columns
    tl.store(hidden + place, x, mask=inside)
    if COPY:
        tl.store(kept + place, x, mask=inside)
    if MIX:
        tl.store(mix + place, x * tl.load(mix_weight), mask=inside)
