"""How the products of a token are shared out among programs: what there is to tune."""

from dataclasses import dataclass

import torch
import triton

ENOUGH_PROGRAMS = 128
"""About as many as a large GPU has multiprocessors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """How a product of many rows is shared out."""

    rows: int
    columns: int
    inner: int
    parts: int
    num_stages: int


def few_tiles(columns: int, inner: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Columns and inner size of a program that reads its weights in one go, and its warps."""
    most = 16_384 if dtype.itemsize == 2 else 8_192  # noqa: PLR2004
    block_k = triton.next_power_of_2(inner)
    block_n = max(1, min(64, most // block_k))
    while block_n > 1 and block_n * block_k > 4096 and columns < ENOUGH_PROGRAMS * block_n:  # noqa: PLR2004
        block_n //= 2
    return block_n, block_k, 8 if block_n * block_k > 8192 else 4  # noqa: PLR2004


def many_tiles(rows: int, columns: int, inner: int, dtype: torch.dtype) -> Tiles:
    """Tiles for tensor cores, the inner size in parts where there would be few programs."""
    is_half = dtype.itemsize == 2  # noqa: PLR2004
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    block_n = 32
    block_k = 128 if is_half else 32
    num_programs = triton.cdiv(columns, block_n) * triton.cdiv(rows, block_m)
    parts = max(1, min(ENOUGH_PROGRAMS * 3 // 2 // num_programs, inner // 256, 8))
    parts = 1 << (parts.bit_length() - 1)
    return Tiles(
        rows=block_m,
        columns=block_n,
        inner=block_k,
        parts=parts,
        num_stages=4 if is_half else 2,
    )


def is_power_of_2(number: int) -> bool:
    """Whether a tile can have exactly this size."""
    return number & (number - 1) == 0
