"""Kernels for one token a row: products that read their weights once.

A ring is a buffer of keys or values in which the token at position p lies at p modulo the buffer's
capacity. Everything that changes from token to token follows from one position on the device, so
that the same launches serve every token and can be captured once.

Hidden vectors between layers are float32. `few` kernels are for batches of a few rows and multiply
without tensor cores: each program reads whole rows of the weights in one go. `many` kernels are for
larger batches; none of their programs has a whole row, so whoever writes rows that are to be normed
leaves sums of each tile of them as well. A kernel that is launched `early` begins before the one
ahead of it has ended: until it waits, it may read nothing but weights.
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
def leave_sums(sums, x, row, tile, is_row, inside, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Of a tile of some rows the sum, and the squares of what is apart from its mean."""
    TILES: tl.constexpr = (WIDTH + TILE - 1) // TILE
    whole = tl.sum(tl.where(inside, x, 0.0), axis=1)
    mean = whole / tl.minimum(TILE, WIDTH - tile * TILE)
    apart = tl.where(inside, x - mean[:, None], 0.0)
    there = sums + (row * TILES + tile) * 2
    tl.store(there, whole, mask=is_row)
    tl.store(there + 1, tl.sum(apart * apart, axis=1), mask=is_row)


@triton.jit
def mean_and_scale(sums, row, is_row, epsilon, WIDTH: tl.constexpr, TILE: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """What the layer norm of some rows takes off and multiplies by, from the sums of their tiles.

    Squares are around the mean of each tile, so that nothing cancels. BLOCK tiles have room for
    all.
    """
    TILES: tl.constexpr = (WIDTH + TILE - 1) // TILE
    tiles = tl.arange(0, BLOCK)[None, :]
    there = sums + (row[:, None] * TILES + tiles) * 2
    mask = is_row[:, None] & (tiles < TILES)
    wholes = tl.load(there, mask=mask, other=0.0)
    squares = tl.load(there + 1, mask=mask, other=0.0)
    mean = tl.sum(wholes, axis=1) / WIDTH
    lengths = tl.minimum(tl.maximum(WIDTH - tiles * TILE, 0), TILE)
    apart = tl.where(lengths > 0, wholes / tl.maximum(lengths, 1) - mean[:, None], 0.0)
    variance = (tl.sum(squares, axis=1) + tl.sum(lengths * apart * apart, axis=1)) / WIDTH
    return mean, tl.rsqrt(variance + epsilon)


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
    """Put a product where it belongs; returns what then lies there, and what in the mix."""
    mixed = result
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
            mixed = so_far + tl.load(mix_weight) * result
            tl.store(mix + place, mixed, mask=valid)
    return result, mixed


@triton.jit(do_not_specialize=["layer", "pass_number", "rows", "base"])
def product_few(source, weights, bias, gain, shift, target, mix, mix_weight, queries, keys, values,
                base, position, layer, pass_number, rows, epsilon, WEIGHT_STRIDE: tl.constexpr,
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
def product_many(source, sums, weights, bias, gain, shift, target, target_sums, mix, mix_sums,
                 partial, counts, mix_weight, queries, keys, values, base, position, layer,
                 pass_number, rows, epsilon, WEIGHT_STRIDE: tl.constexpr, COLUMNS: tl.constexpr,
                 INNER: tl.constexpr, NORM: tl.constexpr, TARGET: tl.constexpr,
                 BIAS: tl.constexpr, MIX: tl.constexpr, FIRST: tl.constexpr,
                 ADVANCE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
                 CAPACITY: tl.constexpr, CHUNK: tl.constexpr, PASSES: tl.constexpr,
                 STAIRS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 BLOCK_TILES: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Σ_k source[row, k] weights[column, k] for many rows, the sum over k in `PARTS` parts.

    With NORM the source is the layer norm of float32 rows, of which there are sums. Each part but
    the last to arrive leaves its sum behind; the last adds them up, always in the same order, so
    that the result does not depend on which it is.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    num_blocks = tl.cdiv(rows, BLOCK_M)
    number, block = tl.program_id(2) // num_blocks, tl.program_id(2) % num_blocks
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = part * PART + tl.arange(0, BLOCK_K)
    is_row, is_column = row < rows, columns < COLUMNS
    xs = source + row[:, None] * INNER
    ws = weights + number * WEIGHT_STRIDE + columns[:, None] * INNER
    if EARLY:
        gdc_launch_dependents()
        last = weights + number * WEIGHT_STRIDE + (COLUMNS - 1) * INNER
        send_for(tl.where(is_column[:, None], ws, last), part * PART, PART, INNER)
        gdc_wait()
    if NORM:
        mean, scale = mean_and_scale(sums, row, is_row, epsilon, INNER, BLOCK_N, BLOCK_TILES)
    result = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, PART, BLOCK_K):
        there = start + inner
        inside = there < INNER
        x = tl.load(xs + there[None, :], mask=is_row[:, None] & inside[None, :], other=0.0)
        if NORM:
            gains = tl.load(gain + number * INNER + there, mask=inside, other=0.0)
            shifts = tl.load(shift + number * INNER + there, mask=inside, other=0.0)
            x = (x - mean[:, None]) * scale[:, None] * gains[None, :] + shifts[None, :]
            x = x.to(weights.dtype.element_ty)
        mask = is_column[:, None] & inside[None, :]
        weight = tl.load(ws + there[None, :], mask=mask, other=0.0)
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
        result, mixed = finish(
            result, row[:, None], columns[None, :], valid, target, mix, mix_weight, queries, keys,
            values, base, position, layer + number, pass_number, rows, COLUMNS, TARGET, MIX, FIRST,
            HEADS, SIZE, CAPACITY, CHUNK, PASSES, STAIRS)  # fmt: skip
        if TARGET == ADD:
            leave_sums(target_sums, result, row, tile, is_row, valid, COLUMNS, BLOCK_N)
        if MIX:
            leave_sums(mix_sums, mixed, row, tile, is_row, valid, COLUMNS, BLOCK_N)
    if ADVANCE:  # noqa: SIM102
        if tile + part + tl.program_id(2) == 0:
            tl.store(position, tl.load(position) + 1)


@triton.jit
def embed_rows(tokens, table, hidden, hidden_sums, kept, kept_sums, mix, mix_weight, num_tokens,
               WIDTH: tl.constexpr, COPY: tl.constexpr, MIX: tl.constexpr, SUMS: tl.constexpr,
               TILE: tl.constexpr, BLOCK_TILES: tl.constexpr):  # fmt: skip
    """Each row's token as a vector, in tiles; a token that is none gives zeros."""
    row = tl.program_id(0)
    tiles = tl.arange(0, BLOCK_TILES)
    columns = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
    inside = columns < WIDTH
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < num_tokens)
    x = tl.load(table + token * WIDTH + columns, mask=inside & known, other=0.0).to(tl.float32)
    place = row * WIDTH + columns
    is_tile = tiles * TILE < WIDTH
    tl.store(hidden + place, x, mask=inside)
    if SUMS:
        leave_sums(hidden_sums, x, row, tiles, is_tile, inside, WIDTH, TILE)
    if COPY:
        tl.store(kept + place, x, mask=inside)
        if SUMS:
            leave_sums(kept_sums, x, row, tiles, is_tile, inside, WIDTH, TILE)
    if MIX:
        tl.store(mix + place, x * tl.load(mix_weight), mask=inside)
