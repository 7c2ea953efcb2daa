"""The step between the products of a feed-forward block: bias, activation and dropout.

ReLU works in place. SwiGLU and GELU read what came out of the first product, which is kept for the
backward pass; what went into the second one is computed again there.

Backward, the ReLU's gate is part of the product before it. The product's result is as wide
as the feed-forward block, four times its input: to write it, read it again for the gate, and write
it once more takes longer than the product itself.
"""

# mypy: disable-error-code="untyped-decorator"

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from staircase_attention.engine.kernels.rows import add_to, is_describable, load_float, tile_at

# Programs that share the rows of a backward pass: the first size of `sums`. One per processor.
NUM_PROGRAMS = 132

# Rows of one block; a program works on four blocks, one for each number of a Philox call.
ROWS = tl.constexpr(4)
COLUMNS = tl.constexpr(256)

RELU, GELU, SWIGLU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
KINDS = {"relu": RELU, "gelu": GELU, "swiglu": SWIGLU}

# Fewer rows do not fill the processors; PyTorch's product is faster then.
FEWEST_ROWS = 1024
# Up to this many inputs, a program keeps the weights of all its columns.
WIDEST_KEPT = 256
# Blocks in use or on their way from memory.
STAGES = tl.constexpr(3)
# Major compute capabilities with bulk copies, and with as much shared memory as the tiles take.
GENERATIONS = (9, 10)


# What comes out of an activation for what goes in, [ROWS, COLUMNS], and its slopes.
# SwiGLU: y = silu(gate) value, silu(x) = x sigmoid(x). GELU: y = value Φ(value). ReLU:
# y = max(value, 0), whose slope is the same for a value that is y already.
# Reads rows of `before` [rows, 2 WIDTH] (gates, then values) or [rows, WIDTH], and of `bias`.
# Returns y, dy/dgate (of SwiGLU) and dy/dvalue.
@triton.jit
def activated(
    before_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    TOTAL: tl.constexpr = 2 * WIDTH if KIND == SWIGLU else WIDTH
    FIRST: tl.constexpr = TOTAL - WIDTH
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = before_ptr + row.to(tl.int64)[:, None] * TOTAL + column[None, :]
    value = load_float(place + FIRST, inside)
    if bias_ptr is not None:
        value += load_float(bias_ptr + FIRST + column, column < WIDTH)[None, :]
    if KIND == SWIGLU:
        gate = load_float(place, inside)
        if bias_ptr is not None:
            gate += load_float(bias_ptr + column, column < WIDTH)[None, :]
        share = tl.sigmoid(gate)
        silu = gate * share
        return silu * value, value * (share + silu * (1.0 - share)), silu
    elif KIND == GELU:  # noqa: RET505
        # Φ(x) = (1 + erf(x / √2)) / 2, Φ'(x) = exp(-x² / 2) / √(2π)
        share = 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
        slope = share + value * 0.3989422804014327 * tl.exp(-0.5 * value * value)
        return value * share, slope, slope
    else:
        # NaN is not <= 0, and stays.
        slope = tl.where(value <= 0.0, 0.0, 1.0)
        return tl.where(value <= 0.0, 0.0, value), slope, slope


# Random bits of four blocks of [ROWS, COLUMNS], one below the other: element (row, column) of the
# four has the four numbers of Philox(seed, counter) with a counter of its own.
@triton.jit
def random_bits(
    seed_ptr: tl.tensor, block: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr
) -> tl.tuple:
    counter = (tl.cast(block, tl.int32) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None] * WIDTH
    return tl.randint4x(tl.load(seed_ptr), counter + column[None, :])


# Equation: inner = dropout(activation(before + bias)), as in `activated`; may be in place.
# Tiles: four blocks of [ROWS, COLUMNS] for each program, one below the other.
# Reads `before` and `bias` once, writes `inner`.
# Precision: float32, rounded to the dtype of `inner`.
@triton.jit
def _forward_kernel(
    before_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    inner_ptr: tl.tensor,
    rows: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = block * (4 * ROWS) + tl.arange(0, ROWS)
    # All four blocks are asked for before anything is written.
    blocks = (0, 1, 2, 3)
    values = [
        activated(before_ptr, bias_ptr, row + part * ROWS, column, rows, WIDTH, KIND)[0]
        for part in blocks
    ]
    if seed_ptr is not None:
        bits = random_bits(seed_ptr, block, column, WIDTH)
    for part in tl.static_range(4):
        value = values[part]
        if seed_ptr is not None:
            # P(kept) = 1 - dropout; what is kept is scaled, so that the mean stays.
            kept = bits[part].to(tl.int32, bitcast=True) >= threshold
            value = tl.where(kept, value * scale, 0.0)
        place, inside = tile_at(row + part * ROWS, column, rows, WIDTH)
        tl.store(inner_ptr + place, value.to(inner_ptr.dtype.element_ty), mask=inside)


# Equation: d_before = d_inner dropped as before, times the slopes of `activated`; inner again.
# Of a ReLU, `before` is what dropout left: one gate for both.
# Tiles: four blocks of [ROWS, COLUMNS], one below the other. Programs along axis 1 share the
# columns, those along axis 0 the rows: each takes every tl.num_programs(0)-th four.
# Reads `before`, `bias` and `d_inner`; writes `d_before` and, not of a ReLU, `inner`; adds its
# column sums to its own row of `sums`, where a bias wants them.
# Precision: float32; what is written is rounded, what is summed is not.
@triton.jit
def _backward_kernel(
    before_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    d_inner_ptr: tl.tensor,
    inner_ptr: tl.tensor,
    d_before_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    TOTAL: tl.constexpr = 2 * WIDTH if KIND == SWIGLU else WIDTH
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gate_sum = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    value_sum = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, 4 * ROWS), tl.num_programs(0)):
        if seed_ptr is not None:
            bits = random_bits(seed_ptr, block, column, WIDTH)
        for part in tl.static_range(4):
            row = tl.cast(block, tl.int32) * (4 * ROWS) + part * ROWS + tl.arange(0, ROWS)
            inner, by_gate, by_value = activated(
                before_ptr, bias_ptr, row, column, rows, WIDTH, KIND
            )
            place, inside = tile_at(row, column, rows, WIDTH)
            gradient = load_float(d_inner_ptr + place, inside)
            if seed_ptr is not None:
                kept = bits[part].to(tl.int32, bitcast=True) >= threshold
                inner = tl.where(kept, inner * scale, 0.0)
                gradient = tl.where(kept, gradient * scale, 0.0)
            if KIND == RELU:
                gradient *= scale
            else:
                tl.store(inner_ptr + place, inner.to(inner_ptr.dtype.element_ty), mask=inside)
            there = d_before_ptr + row.to(tl.int64)[:, None] * TOTAL + column[None, :]
            d_value = gradient * by_value
            stored = d_value.to(d_before_ptr.dtype.element_ty)
            tl.store(there + TOTAL - WIDTH, stored, mask=inside)
            value_sum += d_value
            if KIND == SWIGLU:
                d_gate = gradient * by_gate
                tl.store(there, d_gate.to(d_before_ptr.dtype.element_ty), mask=inside)
                gate_sum += d_gate
    if sums_ptr is not None:
        own = sums_ptr + tl.program_id(0) * TOTAL + column
        add_to(own + TOTAL - WIDTH, tl.sum(value_sum, 0), column < WIDTH)
        if KIND == SWIGLU:
            add_to(own, tl.sum(gate_sum, 0), column < WIDTH)


def forward(
    before: Float[Tensor, "rows before"],
    bias: Float[Tensor, " before"] | None,
    *,
    kind: str,
    dropout: float,
    seed: Tensor | None,
) -> Float[Tensor, "rows inner"]:
    """dropout(activation(before + bias)); of a ReLU in place of `before`.

    The seed is one int64 on the device. What is dropped depends on the seed and the place only, so
    every call needs a seed of its own.
    """
    assert before.is_contiguous()
    assert 0 <= dropout < 1
    assert dropout == 0 or seed is not None
    rows, width = len(before), before.shape[1] // (2 if kind == "swiglu" else 1)
    inner = before if kind == "relu" else before.new_empty(rows, width)
    grid = (triton.cdiv(rows, 4 * ROWS.value), triton.cdiv(width, COLUMNS.value))
    _forward_kernel[grid](
        *(before, bias, seed if dropout > 0 else None, inner, rows, *_limits(dropout)),
        WIDTH=width,
        KIND=KINDS[kind].value,
        num_warps=4,
    )
    return inner


def backward(
    d_inner: Float[Tensor, "rows inner"],
    before: Float[Tensor, "rows before"],
    bias: Float[Tensor, " before"] | None,
    *,
    kind: str,
    dropout: float,
    seed: Tensor | None,
    sums: Float[Tensor, "programs before"] | None,
) -> tuple[Float[Tensor, "rows inner"], Float[Tensor, "rows before"]]:
    """What `forward` returned, and the gradient of `before`; that of the bias is added to `sums`.

    A ReLU needs neither bias nor seed again: it has left its result in `before`.
    """
    rows, width = d_inner.shape
    inner = before if kind == "relu" else torch.empty_like(d_inner)
    d_before = torch.empty_like(before)
    grid = (NUM_PROGRAMS if sums is None else len(sums), triton.cdiv(width, COLUMNS.value))
    _backward_kernel[grid](
        *(before, bias, seed if dropout > 0 else None, d_inner.contiguous()),
        *(inner, d_before, sums, rows, *_limits(dropout)),
        WIDTH=width,
        KIND=KINDS[kind].value,
        num_warps=4,
    )
    return inner, d_before


def _limits(dropout: float) -> tuple[int, float]:
    """The lowest random bits that are kept, as a signed 32-bit number; what is kept is scaled."""
    return round(dropout * 2**32) - 2**31, 1 / (1 - dropout)


def tiles(num_inputs: int) -> dict[str, int]:
    """How the gated product is cut up: what was fastest on an H200."""
    if num_inputs <= WIDEST_KEPT:
        inputs = max(triton.next_power_of_2(num_inputs), 16)
        return {"ROWS": 64, "COLUMNS": 128, "INPUTS": inputs, "KEEPS_WEIGHTS": True, "num_warps": 4}
    return {"ROWS": 128, "COLUMNS": 256, "INPUTS": 64, "KEEPS_WEIGHTS": False, "num_warps": 8}


# Equation: out = (gradients @ weights) * scale where gates > 0, else 0; sums += column sums of out.
# Tiles: [ROWS, INPUTS] · [INPUTS, COLUMNS], by bulk copies. A program keeps to its COLUMNS columns,
# whose sums stay in registers, and shares the rows with `num_shares` - 1 others. If all inputs fit
# into one tile, it also keeps the weights.
# Reads `gradients`, `weights` and `gates`, writes `out`, adds to its own row of `sums`.
# Precision: products of bfloat16 are summed in float32; so are the columns, before rounding.
@triton.jit
def _gated_product_kernel(
    gradients: tl.tensor,
    weights: tl.tensor,
    gates: tl.tensor,
    out: tl.tensor,
    sums_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_inputs: tl.tensor,
    scale: tl.tensor,
    num_shares: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    KEEPS_WEIGHTS: tl.constexpr,
) -> None:
    num_tiles: tl.constexpr = tl.cdiv(WIDTH, COLUMNS)
    share = tl.program_id(0) // num_tiles
    first = tl.program_id(0) % num_tiles * COLUMNS
    # [COLUMNS]: sums over all rows of this share.
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    if KEEPS_WEIGHTS:
        # [INPUTS, COLUMNS], for all rows: a row block costs one product and no further weights.
        kept = weights.load([0, first])
    # Whichever loop is the innermost has its loads on their way.
    stages: tl.constexpr = STAGES if KEEPS_WEIGHTS else None
    for row in tl.range(share * ROWS, num_rows, num_shares * ROWS, num_stages=stages):
        # [ROWS, INPUTS] · [INPUTS, COLUMNS]
        if KEEPS_WEIGHTS:
            gradient = gradients.load([row, 0])
            gate = gates.load([row, first])
            found = tl.dot(gradient, kept, input_precision="ieee")
        else:
            found = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
            # One block of inputs after the other.
            for start in tl.range(0, num_inputs, INPUTS, num_stages=STAGES):
                gradient = gradients.load([row, start])
                weight = weights.load([start, first])
                found = tl.dot(gradient, weight, found, input_precision="ieee")
            # [ROWS, COLUMNS]; needed after the last block of inputs only.
            gate = gates.load([row, first])
        # Dropped elements are zero behind the ReLU too: one gate serves both.
        found = tl.where(gate > 0.0, found * scale, 0.0)
        out.store([row, first], found.to(gate.dtype))
        total += tl.sum(found, 0)
    column = first + tl.arange(0, COLUMNS)
    add_to(sums_ptr + share * WIDTH + column, total, column < WIDTH)


def gated_product(
    gradients: Float[Tensor, "rows inputs"],
    weights: Float[Tensor, "inputs width"],
    gates: Float[Tensor, "rows width"],
    *,
    dropout: float,
    sums: Float[Tensor, "programs width"],
) -> Float[Tensor, "rows width"]:
    """(gradients @ weights) / (1 - dropout) where the gate is positive, and zero elsewhere.

    The sums of its columns are added to `sums`; the caller sums over programs.
    """
    if not fits(gradients, weights, gates):
        options = {"kind": "relu", "dropout": dropout, "seed": None}
        return backward(gradients @ weights, gates, None, sums=sums, **options)[1]  # type: ignore[arg-type]
    (num_rows, num_inputs), width = gradients.shape, weights.shape[1]
    cut, out = tiles(num_inputs), torch.empty_like(gates)
    rows, inputs, columns = cut["ROWS"], cut["INPUTS"], cut["COLUMNS"]
    num_tiles = triton.cdiv(width, columns)
    # No more shares than fill the processors, than `sums` has rows for, or than there is work for.
    num_shares = min(max(NUM_PROGRAMS // num_tiles, 1), len(sums), triton.cdiv(num_rows, rows))
    # What lies beyond the edges of a matrix is read as zero, and not written.
    _gated_product_kernel[(num_shares * num_tiles,)](
        TensorDescriptor.from_tensor(gradients, [rows, inputs]),
        TensorDescriptor.from_tensor(weights, [inputs, columns]),
        TensorDescriptor.from_tensor(gates, [rows, columns]),
        TensorDescriptor.from_tensor(out, [rows, columns]),
        *(sums, num_rows, num_inputs, 1 / (1 - dropout), num_shares),
        WIDTH=width,
        **cut,
    )
    return out


def fits(*matrices: Tensor) -> bool:
    """Whether the kernel is the faster way, and its bulk copies can read all three."""
    first = matrices[0]
    return (
        first.dtype == torch.bfloat16
        and len(first) >= FEWEST_ROWS
        and first.is_cuda
        and torch.cuda.get_device_capability(first.device)[0] in GENERATIONS
        and all(map(is_describable, matrices))
    )
