"""What kernels that go over the rows of a matrix share, and sums of its columns."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

# Columns that one program sums.
COLUMNS = tl.constexpr(256)
# Rows that it reads at once.
ROWS = tl.constexpr(8)
# Blocks of rows in use or on their way from memory.
STAGES = tl.constexpr(3)


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


def is_describable(tensor: Tensor) -> bool:
    """Whether its address and the steps between its rows are as bulk copies need them."""
    *steps, last = tensor.stride()
    in_bytes = [step * tensor.element_size() for step in steps]
    is_aligned = tensor.data_ptr() % 16 == 0 and all(one > 0 and one % 16 == 0 for one in in_bytes)
    return last == 1 and is_aligned


def sum_columns(source: Tensor, *, sums: Tensor, out: Tensor | None = None) -> None:
    """Add the sums of columns to `sums` (programs, width), each row of it by its own program.

    What is summed is also written to `out`, in its dtype.
    """
    rows, width = source.shape
    grid = (sums.shape[0], triton.cdiv(width, COLUMNS.value))
    _sum_columns_kernel[grid](source, out, sums, rows, WIDTH=width, num_warps=4)
