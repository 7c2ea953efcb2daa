"""Kernels that go over the rows of a matrix: sums of its columns, and scores of its rows."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

# Columns that one program sums.
COLUMNS = 256
# Rows that it reads at once.
ROWS = 8
# Blocks of rows in use or on their way from memory.
STAGES = 3

# Logits that a program reads at once, of one row or of several.
SCORED = 2048
SCORED_PER_WARP = 256
MAX_SCORED_ROWS = 64


# Where elements (row, column) of a (rows, WIDTH) matrix lie, and which of them it has:
# [ROWS, COLUMNS] each. 64 bits: matrices may have more than 2^31 elements.
@triton.jit
def tile_at(
    row: tl.tensor, column: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    return row.to(tl.int64)[:, None] * WIDTH + column[None, :], inside


# Elements in float32; zero where the mask is false.
@triton.jit
def load_float(places: tl.tensor, mask: tl.tensor) -> tl.tensor:
    return tl.load(places, mask=mask, other=0.0).to(tl.float32)


# Add to what memory holds; no other program may write there.
@triton.jit
def add_to(places: tl.tensor, found: tl.tensor, mask: tl.tensor) -> None:
    tl.store(places, tl.load(places, mask=mask, other=0.0) + found, mask=mask)


# Equation: out = source; sums += Σ_rows out.
# Tiles: [ROWS, COLUMNS]. Programs along axis 1 share the columns, those along axis 0 the rows: each
# takes every tl.num_programs(0)-th block.
# Reads `source` once, writes `out` where it is asked for, adds to its row of `sums`.
# Precision: float32; `out` is rounded to its dtype, what is summed is not.
@triton.jit
def _sum_columns_kernel(
    source_ptr: tl.tensor,
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    step = tl.num_programs(0) * ROWS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in tl.range(program * ROWS, rows, step, num_stages=STAGES):
        offset, inside = tile_at(start + tl.arange(0, ROWS), column, rows, WIDTH)
        # [ROWS, COLUMNS]; zero outside of the matrix
        value = load_float(source_ptr + offset, inside)
        if out_ptr is not None:
            tl.store(out_ptr + offset, value.to(out_ptr.dtype.element_ty), mask=inside)
        total += value
    # Programs without rows have nothing to add.
    if program * ROWS < rows:
        add_to(sums_ptr + program * WIDTH + column, tl.sum(total, 0), column < WIDTH)


def sum_columns(source: Tensor, *, sums: Tensor, out: Tensor | None = None) -> None:
    """Add the sums of columns to `sums` (programs, width), each row of it by its own program.

    What is summed is also written to `out`, in its dtype.
    """
    rows, width = source.shape
    grid = (sums.shape[0], triton.cdiv(width, COLUMNS))
    _sum_columns_kernel[grid](
        source,
        out,
        sums,
        rows,
        WIDTH=width,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        STAGES=STAGES,
        num_warps=4,
    )


# Equation: loss = log Σ_j exp(logit[j]) - logit[target]; wrong = argmax_j logit[j] != target; and
# if OVERWRITES, logit[j] = softmax_j(logits) - [j = target]. Ignored rows give zeros.
# Tiles: [ROWS, COLUMNS], for one block of columns after the other. Rows begin STRIDE apart.
# Reads the logits once, and once more if they are overwritten; writes a loss (float32) and a flag
# (int8) for each row.
# Precision: float32; gradients are rounded to the dtype of the logits.
@triton.jit
def _score_kernel(
    logits_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    losses_ptr: tl.tensor,
    wrong_ptr: tl.tensor,
    rows: tl.tensor,
    ignore_index: tl.tensor,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERWRITES: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    within = row < rows
    target = tl.load(targets_ptr + row, mask=within, other=0)
    asked = within & (target != ignore_index)
    target = target.to(tl.int32)
    base = logits_ptr + row.to(tl.int64)[:, None] * STRIDE
    # Every lane [ROWS, COLUMNS] keeps its own maximum, the column where that stands first, and its
    # sum relative to it. The lowest number instead of -inf keeps the differences of lanes without
    # logits defined.
    top = tl.full([ROWS, COLUMNS], -3.4028234663852886e38, dtype=tl.float32)
    place = tl.full([ROWS, COLUMNS], SIZE, dtype=tl.int32)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    answer = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in tl.range(0, SIZE, COLUMNS, num_stages=2):
        column = (start + tl.arange(0, COLUMNS))[None, :]
        inside = within[:, None] & (column < STRIDE)
        logit = load_float(base + column, inside)
        logit = tl.where(column < SIZE, logit, float("-inf"))
        # exp(top - higher) brings the lane's sum to its new maximum.
        higher = tl.maximum(top, logit)
        total = total * tl.exp(top - higher) + tl.exp(logit - higher)
        place = tl.where(logit > top, column, place)
        answer = tl.where(column == target[:, None], logit, answer)
        top = higher
    # Lanes [ROWS, COLUMNS] become rows [ROWS]; of equal maxima the first counts.
    best = tl.max(top, 1)
    total_of_row = tl.sum(total * tl.exp(top - best[:, None]), 1)
    choice = tl.min(tl.where(top == best[:, None], place, SIZE), 1)
    # log Σ_j exp(logit[j]) = best + log Σ_j exp(logit[j] - best); one lane holds the answer.
    loss = (best - tl.sum(answer, 1)) + tl.log(total_of_row)
    tl.store(losses_ptr + row, tl.where(asked, loss, 0.0), mask=within)
    wrong = asked & (choice != target)
    tl.store(wrong_ptr + row, wrong.to(tl.int8), mask=within)
    if OVERWRITES:
        # All threads have read a row before any of them overwrites it.
        tl.debug_barrier()
        share = (1.0 / total_of_row)[:, None]
        for start in tl.range(0, SIZE, COLUMNS):
            column = (start + tl.arange(0, COLUMNS))[None, :]
            inside = within[:, None] & (column < STRIDE)
            logit = load_float(base + column, inside)
            # softmax_j(logits) - [j = target], [ROWS, COLUMNS]
            slope = tl.exp(logit - best[:, None]) * share
            slope -= tl.where(column == target[:, None], 1.0, 0.0)
            slope = tl.where(asked[:, None] & (column < SIZE), slope, 0.0)
            tl.store(base + column, slope.to(logits_ptr.dtype.element_ty), mask=inside)


def score_rows(
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    wrong: Tensor,
    *,
    ignore_index: int,
    overwrites: bool,
) -> None:
    """Write every row's loss and whether its first choice is wrong; zeros for ignored rows.

    With `overwrites`, the gradients of the loss replace the logits. What lies between the end of a
    row and the next one may be overwritten too, so that rows which begin at multiples of 16 bytes
    are read and written as widely as possible.
    """
    rows, size = logits.shape
    # Short rows are taken together, long ones in blocks of columns.
    columns = min(triton.next_power_of_2(size), SCORED)
    num_rows = min(SCORED // columns, MAX_SCORED_ROWS)
    # No element is held by two threads: one could read what the other has overwritten.
    num_warps = max(num_rows * columns // SCORED_PER_WARP, 1)
    _score_kernel[(triton.cdiv(rows, num_rows),)](
        logits,
        targets,
        losses,
        wrong,
        rows,
        ignore_index,
        SIZE=size,
        STRIDE=logits.stride(0),
        ROWS=num_rows,
        COLUMNS=columns,
        OVERWRITES=overwrites,
        num_warps=num_warps,
    )
