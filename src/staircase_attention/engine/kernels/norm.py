"""Residual sums and the norms behind them, in one pass over memory each way.

Layer norms; RMS norms are the same without a mean. Either may be without a bias.
"""

# mypy: disable-error-code="untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.rows import add_to, load_float, tile_at

# Programs that share the rows of a backward pass: the first size of `sums`. Two per processor.
NUM_PROGRAMS = 264

# Elements that a program reads of a matrix at once, if a row has no more.
FORWARD_ELEMENTS = 4096
BACKWARD_ELEMENTS = tl.constexpr(2048)
FORWARD_PER_WARP = 512
BACKWARD_PER_WARP = 256
MAX_ROWS = 64
MAX_WARPS = 16
# Rows and columns that a program sums at once where there is no norm.
SUMMED_ROWS, SUMMED_COLUMNS = tl.constexpr(8), tl.constexpr(256)
# Blocks of rows in use or on their way from memory in a backward pass.
STAGES = tl.constexpr(3)


# Equation: total = hidden + addend + addend_bias; normed = (total - mean) rstd weight + bias, with
# mean and variance over the WIDTH elements of a row and rstd = 1 / sqrt(variance + eps).
# An RMS norm takes the mean for 0.
# Tiles: [ROWS, COLUMNS] with COLUMNS >= WIDTH: whole rows, one tile for each program.
# Reads every input once; writes `total` where there is an addend, and `normed`, `mean` and `rstd`
# where a norm is asked for.
# Precision: float32. What is normalised is the total as it is stored, rounded to hidden's dtype.
@triton.jit
def _forward_kernel(
    hidden_ptr: tl.tensor,
    addend_ptr: tl.tensor,
    addend_bias_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    total_ptr: tl.tensor,
    normed_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    within = column < WIDTH
    offset, inside = tile_at(row, column, rows, WIDTH)
    # [ROWS, COLUMNS]; zero outside of the matrix
    total = load_float(hidden_ptr + offset, inside)
    if addend_ptr is not None:
        total += load_float(addend_ptr + offset, inside)
        if addend_bias_ptr is not None:
            total += load_float(addend_bias_ptr + column, within)
        # Backward reads the total as it is stored: so the norm is that of the rounded one.
        stored = total.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + offset, stored, mask=inside)
        total = stored.to(tl.float32)
    if normed_ptr is not None:
        # [ROWS]; the variance is that of the centred row, in a second pass over registers.
        centred = total
        if mean_ptr is not None:
            mean = tl.sum(total, 1) / WIDTH
            centred = tl.where(within[None, :], total - mean[:, None], 0.0)
            tl.store(mean_ptr + row, mean, mask=row < rows)
        rstd = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
        weight = load_float(weight_ptr + column, within)
        normed = centred * rstd[:, None] * weight[None, :]
        if bias_ptr is not None:
            normed += load_float(bias_ptr + column, within)[None, :]
        tl.store(normed_ptr + offset, normed.to(normed_ptr.dtype.element_ty), mask=inside)
        tl.store(rstd_ptr + row, rstd, mask=row < rows)


# Equation, with x = (total - mean) rstd and g = d_normed weight:
#   d_hidden = d_addend = (g - mean(g) - x mean(g x)) rstd + d_total + d_more
# RMS: without mean(g).
#   d_weight = Σ_rows d_normed x,  d_bias = Σ_rows d_normed,  d_addend_bias = Σ_rows d_addend
# Tiles: [ROWS, COLUMNS] with COLUMNS >= WIDTH: whole rows. A program takes every
# tl.num_programs(0)-th block of rows, and sums over rows at the end only.
# Reads gradients, `total`, `mean` and `rstd` once; writes `d_hidden` and, where its dtype differs,
# `d_addend`; adds to its own row of `sums` [programs, 3, WIDTH].
# Precision: float32; gradients are rounded to the dtype they are stored in, after they are summed.
@triton.jit
def _backward_kernel(
    d_total_ptr: tl.tensor,
    d_more_ptr: tl.tensor,
    d_normed_ptr: tl.tensor,
    total_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    d_hidden_ptr: tl.tensor,
    d_addend_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_ADDEND: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    within = column < WIDTH
    weight = load_float(weight_ptr + column, within)
    # [ROWS, COLUMNS] each: summed over blocks here, over the rows of a block after the last one.
    d_weight = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    d_bias = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    d_addend_bias = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    # Blocks of rows in turn: neighbours in memory are read at the same time.
    step = tl.num_programs(0) * ROWS
    stages: tl.constexpr = STAGES if COLUMNS <= BACKWARD_ELEMENTS else 1
    for start in tl.range(program * ROWS, rows, step, num_stages=stages):
        row = start + tl.arange(0, ROWS)
        offset, inside = tile_at(row, column, rows, WIDTH)
        d_normed = load_float(d_normed_ptr + offset, inside)
        total = load_float(total_ptr + offset, inside)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        if mean_ptr is not None:
            total -= tl.load(mean_ptr + row, mask=row < rows, other=0.0)[:, None]
        # Outside of the matrix d_normed is zero, and so is everything that is summed.
        scaled = total * rstd[:, None]
        d_scaled = d_normed * weight[None, :]
        # [ROWS]: the parts along the row itself and along ones, which the norm takes away.
        along = tl.sum(d_scaled * scaled, 1) / WIDTH
        if mean_ptr is not None:
            d_scaled -= (tl.sum(d_scaled, 1) / WIDTH)[:, None]
        gradient = (d_scaled - scaled * along[:, None]) * rstd[:, None]
        if d_total_ptr is not None:
            gradient += load_float(d_total_ptr + offset, inside)
        if d_more_ptr is not None:
            gradient += load_float(d_more_ptr + offset, inside)
        # The total is a sum: hidden and addend have one gradient, stored twice if dtypes differ.
        d_hidden = gradient.to(d_hidden_ptr.dtype.element_ty)
        tl.store(d_hidden_ptr + offset, d_hidden, mask=inside)
        if d_addend_ptr is not None:
            d_addend = gradient.to(d_addend_ptr.dtype.element_ty)
            tl.store(d_addend_ptr + offset, d_addend, mask=inside)
        d_weight += d_normed * scaled
        d_bias += d_normed
        if HAS_ADDEND:
            d_addend_bias += gradient
    # Programs without rows have nothing to add.
    if program * ROWS < rows:
        # Row `program` of sums: d_weight, d_bias and d_addend_bias, WIDTH each.
        own = sums_ptr + program * (3 * WIDTH) + column
        add_to(own, tl.sum(d_weight, 0), within)
        add_to(own + WIDTH, tl.sum(d_bias, 0), within)
        if HAS_ADDEND:
            add_to(own + 2 * WIDTH, tl.sum(d_addend_bias, 0), within)


# Equation: out = source; sums += Σ_rows out.
# Tiles: [SUMMED_ROWS, SUMMED_COLUMNS]. Programs along axis 1 share the columns, those along axis 0
# the rows: each takes every tl.num_programs(0)-th block.
# Reads `source` once, writes `out` where it is asked for, adds to its row of `sums`.
# Precision: float32; `out` is rounded to its dtype, what is summed is not.
@triton.jit
def _sum_columns_kernel(
    source_ptr: tl.tensor,
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    step = tl.num_programs(0) * SUMMED_ROWS
    column = tl.program_id(1) * SUMMED_COLUMNS + tl.arange(0, SUMMED_COLUMNS)
    total = tl.zeros([SUMMED_ROWS, SUMMED_COLUMNS], dtype=tl.float32)
    for start in tl.range(program * SUMMED_ROWS, rows, step, num_stages=STAGES):
        offset, inside = tile_at(start + tl.arange(0, SUMMED_ROWS), column, rows, WIDTH)
        # [SUMMED_ROWS, SUMMED_COLUMNS]; zero outside of the matrix
        value = load_float(source_ptr + offset, inside)
        if out_ptr is not None:
            tl.store(out_ptr + offset, value.to(out_ptr.dtype.element_ty), mask=inside)
        total += value
    # Programs without rows have nothing to add.
    if program * SUMMED_ROWS < rows:
        add_to(sums_ptr + program * WIDTH + column, tl.sum(total, 0), column < WIDTH)


def forward(
    hidden: Tensor,
    addend: Tensor | None,
    addend_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    dtype: torch.dtype,
    centres: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """(total, normed, mean, rstd) with total = hidden + addend + addend_bias in hidden's dtype.

    What is normalised is the total as it is stored; `normed` has the dtype asked for. Without an
    addend the total is `hidden` itself. RMS norms are those that centre nothing, and have no mean.
    """
    hidden = hidden.contiguous()
    total = hidden if addend is None else torch.empty_like(hidden)
    normed = torch.empty_like(hidden, dtype=dtype)
    rstd = torch.empty(hidden.shape[0], device=hidden.device, dtype=torch.float32)
    mean = torch.empty_like(rstd) if centres else None
    _launch_forward(hidden, addend, addend_bias, weight, bias, total, normed, mean, rstd, eps=eps)
    return total, normed, mean, rstd


def add(hidden: Tensor, addend: Tensor, addend_bias: Tensor | None) -> Tensor:
    """The sum of all three, in the dtype of `hidden`."""
    hidden = hidden.contiguous()
    total = torch.empty_like(hidden)
    _launch_forward(hidden, addend, addend_bias, None, None, total, None, None, None, eps=0.0)
    return total


def backward(
    d_total: Tensor | None,
    d_normed: Tensor,
    total: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    sums: Tensor,
    addend_dtype: torch.dtype | None,
    d_more: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(d_hidden, d_addend): the gradients of what `forward` was given.

    The total's own gradient is `d_total` plus `d_more`, where they are given. Those of weight, bias
    and addend_bias are added to `sums` (programs, 3, width), the last only if there was an addend;
    the caller sums over programs.
    """
    rows, width = total.shape
    d_hidden = torch.empty_like(total)
    # `apart` is the addend's gradient where it needs memory of its own.
    d_addend, apart = None, None
    if addend_dtype == total.dtype:
        d_addend = d_hidden
    elif addend_dtype is not None:
        d_addend = apart = torch.empty_like(total, dtype=addend_dtype)
    _backward_kernel[(sums.shape[0],)](
        None if d_total is None else d_total.contiguous(),
        None if d_more is None else d_more.contiguous(),
        d_normed.contiguous(),
        total,
        weight,
        mean,
        rstd,
        d_hidden,
        apart,
        sums,
        rows,
        HAS_ADDEND=addend_dtype is not None,
        **_tile(rows, width, BACKWARD_ELEMENTS.value, BACKWARD_PER_WARP),
    )
    return d_hidden, d_addend


def add_backward(d_total: Tensor, *, sums: Tensor | None, addend_dtype: torch.dtype) -> Tensor:
    """The gradient of `add`'s addend, and, added to `sums` (programs, width), of its bias."""
    d_total = d_total.contiguous()
    if sums is None:
        return d_total.to(addend_dtype)
    apart = None
    if addend_dtype != d_total.dtype:
        apart = torch.empty_like(d_total, dtype=addend_dtype)
    rows, width = d_total.shape
    grid = (len(sums), triton.cdiv(width, SUMMED_COLUMNS.value))
    _sum_columns_kernel[grid](d_total, apart, sums, rows, WIDTH=width, num_warps=4)
    return d_total if apart is None else apart


def _launch_forward(
    hidden: Tensor, addend: Tensor | None, *others: Tensor | None, eps: float
) -> None:
    """Launch the kernel; `others` are its other tensors, from `addend_bias` to `rstd`."""
    assert addend is not None or others[0] is None
    rows, width = hidden.shape
    tile = _tile(rows, width, FORWARD_ELEMENTS, FORWARD_PER_WARP)
    _forward_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        hidden, None if addend is None else addend.contiguous(), *others, rows, eps, **tile
    )


def _tile(rows: int, width: int, elements: int, per_warp: int) -> dict[str, int]:
    """How a kernel is compiled: tiles of fewer rows where some programs would get none."""
    columns = triton.next_power_of_2(width)
    # Rows for each program, if all of them are to have some.
    share = triton.next_power_of_2(max(triton.cdiv(rows, NUM_PROGRAMS), 1))
    num_rows = max(min(elements // columns, share, MAX_ROWS), 1)
    num_warps = min(max(num_rows * columns // per_warp, 1), MAX_WARPS)
    return {"WIDTH": width, "ROWS": num_rows, "COLUMNS": columns, "num_warps": num_warps}
