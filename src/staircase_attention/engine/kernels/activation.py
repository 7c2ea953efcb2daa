# mypy: disable-error-code="untyped-decorator"
"""The step between the two products of a feed-forward block: bias, ReLU and dropout, in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from staircase_attention.engine.kernels.rows import sum_columns

NUM_PROGRAMS = 132
"""Programs that share the rows of a backward pass: the first size of `sums`."""

ROWS = 4
"""Rows of one block; a program works on four blocks, one for each number of a Philox call."""
COLUMNS = 256


@triton.jit
def _finish(
    inner_ptr: tl.tensor,
    offset: tl.tensor,
    inside: tl.tensor,
    value: tl.tensor,
    bias: tl.tensor,
    bits: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    DROPS: tl.constexpr,
) -> None:
    value = value.to(tl.float32) + bias[None, :]
    value = tl.where(value <= 0.0, 0.0, value)
    if DROPS:
        value = tl.where(bits.to(tl.int32, bitcast=True) >= threshold, value * scale, 0.0)
    tl.store(inner_ptr + offset, value.to(inner_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _relu_dropout_kernel(
    inner_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROPS: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < WIDTH
    row = block * (4 * ROWS) + tl.arange(0, ROWS)
    first = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    second = first + ROWS * WIDTH
    third = second + ROWS * WIDTH
    fourth = third + ROWS * WIDTH
    in_first = (row < rows)[:, None] & within[None, :]
    in_second = (row + ROWS < rows)[:, None] & within[None, :]
    in_third = (row + 2 * ROWS < rows)[:, None] & within[None, :]
    in_fourth = (row + 3 * ROWS < rows)[:, None] & within[None, :]
    # Everything is asked for before anything is worked on.
    a = tl.load(inner_ptr + first, mask=in_first, other=0.0)
    b = tl.load(inner_ptr + second, mask=in_second, other=0.0)
    c = tl.load(inner_ptr + third, mask=in_third, other=0.0)
    d = tl.load(inner_ptr + fourth, mask=in_fourth, other=0.0)
    bias = tl.zeros([COLUMNS], dtype=tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)
    if DROPS:
        counter = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None] * WIDTH
        p, q, r, s = tl.randint4x(tl.load(seed_ptr), counter + column[None, :])
    else:
        p, q, r, s = 0, 0, 0, 0
    _finish(inner_ptr, first, in_first, a, bias, p, threshold, scale, DROPS)
    _finish(inner_ptr, second, in_second, b, bias, q, threshold, scale, DROPS)
    _finish(inner_ptr, third, in_third, c, bias, r, threshold, scale, DROPS)
    _finish(inner_ptr, fourth, in_fourth, d, bias, s, threshold, scale, DROPS)


def relu_dropout_(
    inner: Tensor, bias: Tensor | None, *, dropout: float, seed: Tensor | None
) -> Tensor:
    """dropout(relu(inner + bias)), in place of `inner` (rows, width).

    The seed is one int64 on the device. What is dropped depends on the seed and the place in
    `inner` only, so that every call wants a seed of its own.
    """
    if not inner.is_contiguous():
        raise ValueError("only a contiguous tensor can be changed in place")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1: {dropout}")
    if dropout > 0 and seed is None:
        raise ValueError("dropout needs a seed")
    rows, width = inner.shape
    grid = (triton.cdiv(rows, 4 * ROWS), triton.cdiv(width, COLUMNS))
    _relu_dropout_kernel[grid](
        inner,
        bias,
        seed if dropout > 0 else None,
        rows,
        round(dropout * 2**32) - 2**31,
        1 / (1 - dropout),
        WIDTH=width,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DROPS=dropout > 0,
        num_warps=4,
    )
    return inner


def relu_backward_(d_inner: Tensor, inner: Tensor, *, scale: float, sums: Tensor) -> Tensor:
    """The gradient before bias, ReLU and dropout, in place of the one behind them.

    `inner` is what `relu_dropout_` left and `scale` is 1 / (1 - dropout). The gradient of the bias
    is added to `sums` (programs, width); its sum over programs is the caller's.
    """
    if not d_inner.is_contiguous():
        raise ValueError("only a contiguous tensor can be changed in place")
    sum_columns(d_inner, gate=inner.contiguous(), scale=scale, out=d_inner, sums=sums)
    return d_inner


def new_sums(width: int, *, device: torch.device) -> Tensor:
    """Zeros for `relu_backward_` to add to."""
    return torch.zeros(NUM_PROGRAMS, width, device=device, dtype=torch.float32)
