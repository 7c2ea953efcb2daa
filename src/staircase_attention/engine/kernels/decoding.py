"""Kernels that take one token of every row through products with weights.

Everything that changes from token to token follows from two things on the device: the `position`
of the present token, and a `plan` of integers that the host derives from the timetable for a run
of tokens (see `engine.decoding.plan`). So the same launches serve every token and can be captured
once. Keys and values lie in memory of shape [layers, regions, rows, heads, CAPACITY, SIZE], banks
first and the cache behind them; a plan gives a region's first row and, added to the position, the
place. Rows of vectors may be TOKENS successive tokens of each row of that memory, from the position
on; or, behind the rows of the first pass, those of passes that lag, each with a region of its own.

Hidden vectors between layers are float32 [rows, width]. Products multiply in the precision of the
weights and sum in float32. `few` kernels are for batches of a few rows and multiply without tensor
cores: each program reads whole rows of the weights in one go. `many` kernels are for larger
batches; none of their programs has a whole row of the source, so `norm_rows` norms rows for them.
A kernel that is launched `EARLY` begins before the one ahead of it has ended (programmatic
dependent launch): until `gdc_wait` it may read nothing that a kernel of this token writes.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,unreachable"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Targets of a product: rows of logits, after which the position moves on,
LOGITS = tl.constexpr(0)
# rows without what is negative,
RELU = tl.constexpr(1)
# a sum in place,
ADD = tl.constexpr(2)
# queries to rows, and keys and values to their memory,
KEEP = tl.constexpr(3)
# rows through a GELU,
GELU = tl.constexpr(4)
# or rows as they are.
ROWS_ONLY = tl.constexpr(5)
# How a product reads its source: as it is, through a layer norm, through an RMS norm,
AS_IS = tl.constexpr(0)
LAYER_NORM = tl.constexpr(1)
RMS_NORM = tl.constexpr(2)
# or, of rows twice as long, silu(first half) * second half.
SWIGLU = tl.constexpr(3)
# What a sum contributes to the mixture of levels that is cached: nothing,
NO_MIX = tl.constexpr(0)
# a weighted addend,
ADD_MIX = tl.constexpr(1)
# or the first term;
START_MIX = tl.constexpr(2)
# or itself, as what the next token's passes begin with.
CARRY = tl.constexpr(3)


@triton.jit
def add_four(a, b, c, d, e, f, g, h):
    """Two times four numbers to four."""
    return a + e, b + f, c + g, d + h


@triton.jit
def sums(parts, AXIS: tl.constexpr, TOGETHER: tl.constexpr):
    """The sum of each part over an axis; of four, threads exchange theirs at the same time."""
    if TOGETHER == 1:
        return (tl.sum(parts[0], axis=AXIS),)
    else:  # noqa: RET505
        return tl.reduce((parts[0], parts[1], parts[2], parts[3]), AXIS, add_four)


@triton.jit
def norms(rows, inside, gains, shifts, epsilon, WIDTH: tl.constexpr, READ: tl.constexpr,
          TOGETHER: tl.constexpr):  # fmt: skip
    """The norms of float32 rows that are zero outside."""
    if READ == LAYER_NORM:
        totals, centred = sums(rows, None, TOGETHER), ()
        for n in tl.static_range(TOGETHER):
            centred = centred + (tl.where(inside, rows[n] - totals[n] / WIDTH, 0.0),)  # noqa: RUF005
    else:
        centred = rows
    squares, normed = (), ()
    for n in tl.static_range(TOGETHER):
        squares = squares + (centred[n] * centred[n],)  # noqa: RUF005
    squares = sums(squares, None, TOGETHER)
    for n in tl.static_range(TOGETHER):
        scale = tl.rsqrt(squares[n] / WIDTH + epsilon)
        normed = normed + (centred[n] * scale * gains + shifts,)  # noqa: RUF005
    return normed


@triton.jit
def keep(result, row, columns, valid, queries, keys, values, base, first, shift, number, rows,
         COLUMNS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
         CAPACITY: tl.constexpr, TOKENS: tl.constexpr):  # fmt: skip
    """Queries to rows, keys and values to memory: queries, keys, values; or only the last two.

    Keys and values have HEADS heads each, queries all other columns. A region begins at row
    `first`; the first token has place `shift` in it. `number` counts layers from `base` on, which
    counts vectors of SIZE.
    """
    EACH: tl.constexpr = HEADS * SIZE
    WIDTH: tl.constexpr = COLUMNS - 2 * EACH
    kind = tl.where(columns < WIDTH, 0, 1 + (columns - WIDTH) // EACH)
    unit = tl.where(columns < WIDTH, columns, (columns - WIDTH) % EACH)
    ring = (first + number * (rows // TOKENS) + row // TOKENS) * HEADS + unit // SIZE
    there = base + ring * CAPACITY + shift + row % TOKENS
    there = there * SIZE + unit % SIZE
    tl.store(queries + row * WIDTH + unit, result.to(queries.dtype.element_ty),
             mask=valid & (kind == 0))  # fmt: skip
    tl.store(keys + there, result.to(keys.dtype.element_ty), mask=valid & (kind == 1))
    tl.store(values + there, result.to(values.dtype.element_ty), mask=valid & (kind == 2))  # noqa: PLR2004


@triton.jit
def finish(result, row, columns, valid, target, mix, mix_weight, keys, values, base, position,
           first, shift, number, rows, COLUMNS: tl.constexpr, TARGET: tl.constexpr,
           MIX: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, CAPACITY: tl.constexpr,
           TOKENS: tl.constexpr):  # fmt: skip
    """Put a product where it belongs."""
    if TARGET == KEEP:
        keep(result, row, columns, valid, target, keys, values, base, first, shift, number, rows,
             COLUMNS, HEADS, SIZE, CAPACITY, TOKENS)  # fmt: skip
    else:
        place = row * COLUMNS + columns
        if TARGET == RELU:
            result = tl.maximum(result, 0.0)
        if TARGET == GELU:
            result = result * 0.5 * (1.0 + tl.erf(result * 0.7071067811865476))
        tl.store(target + place, result.to(target.dtype.element_ty), mask=valid)
        if MIX == CARRY:
            # In rings of CAPACITY tokens: [rows, CAPACITY, COLUMNS].
            place += (row * (CAPACITY - 1) + tl.load(position) % CAPACITY) * COLUMNS
            tl.store(mix + place, result, mask=valid)
        elif MIX != NO_MIX:
            result *= tl.load(mix_weight)
            if MIX == ADD_MIX:
                result += tl.load(mix + place, mask=valid, other=0.0)
            tl.store(mix + place, result, mask=valid)


@triton.jit
def place_of(position, plan, TARGET: tl.constexpr):
    """The first row of a plan's region, and where the token at a position lies in it."""
    if TARGET == KEEP:
        return tl.load(plan), tl.load(position) + tl.load(plan + 1)
    else:  # noqa: RET505
        return 0, 0


@triton.jit(do_not_specialize=["base"])
def product_few(source, weights, bias, norm, epsilon, target, mix, mix_weight, keys, values, base,
                position, plan, WEIGHT_STRIDE: tl.constexpr, COLUMNS: tl.constexpr,
                INNER: tl.constexpr, READ: tl.constexpr, TARGET: tl.constexpr, BIAS: tl.constexpr,
                MIX: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
                CAPACITY: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
                TOGETHER: tl.constexpr, WARPS: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Σ_k source[row, k] weights[column, k] for ROWS rows; BLOCK_N whole columns per program.

    READ as a norm, the source is that of float32 rows, by gains and shifts that lie in `norm`
    [layers, 2, INNER]. The second axis of the grid counts layers where one launch serves them all,
    the third TOGETHER rows, one or four. Four wait for memory and for other threads at the same
    time; a row's sums are made in the same order in both cases.
    """
    NORM: tl.constexpr = (READ == LAYER_NORM) | (READ == RMS_NORM)
    STRIDE: tl.constexpr = 2 * INNER if READ == SWIGLU else INNER
    # Threads of a warp share 4 columns, 8 for each; warps share the sum.
    SHARED: tl.constexpr = min(BLOCK_N, 4)
    UNIT: tl.constexpr = min(64, BLOCK_K // WARPS)
    PARTS: tl.constexpr = BLOCK_K // (UNIT * WARPS)
    if EARLY:
        gdc_launch_dependents()
    number = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = columns < COLUMNS
    # Weights are [SHARED, warps, parts, columns / SHARED, UNIT], what they multiply lacks columns.
    groups = tl.arange(0, BLOCK_N // SHARED)[None, None, None, :, None] * SHARED
    mine = groups + tl.arange(0, SHARED)[:, None, None, None, None] + tl.program_id(0) * BLOCK_N
    pieces = tl.arange(0, PARTS)[None, :, None] * WARPS + tl.arange(0, WARPS)[:, None, None]
    inner = pieces * UNIT + tl.arange(0, UNIT)[None, None, :]
    inside = inner < INNER
    along = inner[None, :, :, None, :]
    there = weights + number * WEIGHT_STRIDE + mine * INNER + along
    weight = tl.load(there, mask=(mine < COLUMNS) & (along < INNER), other=0.0)
    if BIAS:
        biases = tl.load(bias + columns, mask=valid, other=0.0)
    if NORM:
        gains = tl.load(norm + number * 2 * INNER + inner, mask=inside, other=0.0)
        shifts = tl.load(norm + (number * 2 + 1) * INNER + inner, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
    first, shift = place_of(position, plan, TARGET)
    start = tl.program_id(2) * TOGETHER
    # All loads before the first exchange between threads, and before any store.
    xs, olds, parts = (), (), ()
    for n in tl.static_range(TOGETHER):
        row = tl.minimum(start + n, ROWS - 1)
        x = tl.load(source + row * STRIDE + inner, mask=inside, other=0.0).to(tl.float32)
        if READ == SWIGLU:
            value = tl.load(source + row * STRIDE + INNER + inner, mask=inside, other=0.0)
            x = x * tl.sigmoid(x) * value.to(tl.float32)
        xs = xs + (x,)  # noqa: RUF005
        old = 0.0
        if TARGET == ADD:
            old = tl.load(target + row * COLUMNS + columns, mask=valid, other=0.0)
        olds = olds + (old,)  # noqa: RUF005
    if NORM:
        xs = norms(xs, inside, gains, shifts, epsilon, INNER, READ, TOGETHER)
    for n in tl.static_range(TOGETHER):
        x = xs[n].to(weights.dtype.element_ty).to(tl.float32)
        parts = parts + (weight.to(tl.float32) * x[None, :, :, None, :],)  # noqa: RUF005
    # First each thread by itself, then those of a warp, then warps.
    results = sums(sums(sums(parts, 2, TOGETHER), 3, TOGETHER), 1, TOGETHER)
    for n in tl.static_range(TOGETHER):
        result = tl.reshape(tl.trans(results[n]), [BLOCK_N])
        if BIAS:
            result += biases
        if TARGET == ADD:
            result += olds[n]
        finish(result, start + n, columns, valid & (start + n < ROWS), target, mix, mix_weight,
               keys, values, base, position, first, shift, number, ROWS, COLUMNS, TARGET, MIX,
               HEADS, SIZE, CAPACITY, TOKENS)  # fmt: skip
    if TARGET == LOGITS:  # noqa: SIM102
        if tl.program_id(0) + tl.program_id(2) == 0:
            tl.store(position, tl.load(position) + TOKENS)


@triton.jit
def send_for(rows, first, LENGTH: tl.constexpr, INNER: tl.constexpr):
    """Prefetch a part of some rows to the L2 cache, one address per cache line."""
    LINE: tl.constexpr = 1024 // rows.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = 4 if LENGTH > 2 * LINE else (2 if LENGTH > LINE else 1)
    for start in tl.static_range(0, LENGTH, LINES * LINE):
        columns = tl.minimum(first + start + tl.arange(0, LINES) * LINE, INNER - 1)
        there = (rows + columns[None, :]).to(tl.int64)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [there],
                                  dtype=tl.int32, is_pure=False, pack=1)  # fmt: skip


@triton.jit(do_not_specialize=["rows", "base"])
def product_many(source, weights, bias, partial, counts, target, mix, mix_weight, keys, values,
                 base, position, plan, rows, WEIGHT_STRIDE: tl.constexpr, COLUMNS: tl.constexpr,
                 INNER: tl.constexpr, TARGET: tl.constexpr, BIAS: tl.constexpr, MIX: tl.constexpr,
                 HEADS: tl.constexpr, SIZE: tl.constexpr, CAPACITY: tl.constexpr,
                 TOKENS: tl.constexpr, PARTS: tl.constexpr, READ: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 EARLY: tl.constexpr):  # fmt: skip
    """Σ_k source[row, k] weights[column, k] for many rows, the sum over k in PARTS parts.

    A program has a tile [BLOCK_M, BLOCK_N] of the product and PART of the sum. It leaves its part
    in `partial` [PARTS, rows, COLUMNS], in float32; the last program to arrive adds all parts in a
    fixed order, so that the result does not depend on which one is last.
    """
    PART: tl.constexpr = (INNER + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K) * BLOCK_K
    tile, part = tl.program_id(0), tl.program_id(1)
    num_blocks = tl.cdiv(rows, BLOCK_M)
    number, block = tl.program_id(2) // num_blocks, tl.program_id(2) % num_blocks
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = part * PART + tl.arange(0, BLOCK_K)
    is_row, is_column = row < rows, columns < COLUMNS
    STRIDE: tl.constexpr = 2 * INNER if READ == SWIGLU else INNER
    xs = source + (number * rows + row)[:, None] * STRIDE
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
        if READ == SWIGLU:
            gate = x.to(tl.float32)
            value = tl.load(xs + INNER + start + inner[None, :], mask=is_row[:, None] & inside,
                            other=0.0)  # fmt: skip
            x = (gate * tl.sigmoid(gate) * value.to(tl.float32)).to(x.dtype)
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
        if TARGET == ADD:
            result += tl.load(target + place, mask=valid, other=0.0)
        first, shift = place_of(position, plan, TARGET)
        finish(result, row[:, None], columns[None, :], valid, target, mix, mix_weight, keys, values,
               base, position, first, shift, number, rows, COLUMNS, TARGET, MIX, HEADS, SIZE,
               CAPACITY, TOKENS)  # fmt: skip
    if TARGET == LOGITS:  # noqa: SIM102
        if tile + part + tl.program_id(2) == 0:
            tl.store(position, tl.load(position) + TOKENS)


@triton.jit(do_not_specialize=["rows"])
def norm_rows(source, norm, target, rows, epsilon, WIDTH: tl.constexpr, READ: tl.constexpr,
              BLOCK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """The norm of each row, by one norm or by several: target [norms, rows, WIDTH]."""
    if EARLY:
        gdc_launch_dependents()
    row, number = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gains = tl.load(norm + number * 2 * WIDTH + columns, mask=inside, other=0.0)
    shifts = tl.load(norm + (number * 2 + 1) * WIDTH + columns, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
    x = tl.load(source + row * WIDTH + columns, mask=inside, other=0.0)
    x = norms((x,), inside, gains, shifts, epsilon, WIDTH, READ, 1)[0]
    place = target + (number * rows + row) * WIDTH + columns
    tl.store(place, x.to(target.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def embed_rows(tokens, table, hidden, mix, mix_weight, carried, position, rows, num_tokens,
               WIDTH: tl.constexpr, MIX: tl.constexpr, PLACES: tl.constexpr, ADDS: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """The embedding of each row's token; a token outside the vocabulary gives zeros.

    Behind these rows, what passes that lag begin with: carried [passes, rows, PLACES, WIDTH], what
    the pass before left one token ago, or, if it ADDS, the sum of that and of the embedding.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.zeros([BLOCK], tl.float32)
    if ADDS | (row < rows):
        token = tl.load(tokens + row % rows)
        known = (token >= 0) & (token < num_tokens)
        there = table + token * WIDTH + columns
        x = tl.load(there, mask=inside & known, other=0.0).to(tl.float32)
    if row >= rows:
        ring = ((row - rows) * PLACES + (tl.load(position) + PLACES - 1) % PLACES) * WIDTH
        x += tl.load(carried + ring + columns, mask=inside, other=0.0)
    place = row * WIDTH + columns
    tl.store(hidden + place, x, mask=inside)
    if MIX:
        tl.store(mix + place, x * tl.load(mix_weight), mask=inside)
