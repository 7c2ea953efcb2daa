"""What kernels that go over the rows of a matrix share."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor


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


def is_describable(tensor: Tensor) -> bool:
    """Whether its address and the steps between its rows are as bulk copies need them."""
    *steps, last = tensor.stride()
    in_bytes = [step * tensor.element_size() for step in steps]
    is_aligned = tensor.data_ptr() % 16 == 0 and all(one > 0 and one % 16 == 0 for one in in_bytes)
    return last == 1 and is_aligned
