"""How a token's products and attention are shared out among programs: what there is to tune."""

from dataclasses import dataclass

import torch
import triton

ENOUGH_PROGRAMS = 128
"""About as many as a large GPU has multiprocessors."""
MOST_SHARES = 8
"""Programs that share the keys of one head, at most."""
FEWEST_KEYS = 32
"""Keys that are worth a program of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """How a product of many rows is shared out."""

    rows: int
    columns: int
    inner: int
    parts: int
    num_stages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionTiles:
    """How the keys of each row and head are shared out."""

    shares: int
    """Programs for them."""
    block: int
    """Keys that a program works on at once."""
    num_warps: int


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


def attention_tiles(
    rows: int, heads: int, keys: int, size: int, dtype: torch.dtype, *, is_rotary: bool
) -> AttentionTiles:
    """Shares that fill the machine, and blocks that leave room for those on their way."""
    wanted = triton.cdiv(ENOUGH_PROGRAMS, rows * heads)
    shares = min(wanted, triton.cdiv(keys, FEWEST_KEYS), MOST_SHARES)
    shares = 1 << (shares.bit_length() - 1)
    # A program alone on its multiprocessor works on more at once than one of several.
    room = 49_152 if rows * heads * shares <= ENOUGH_PROGRAMS else 24_576
    units = triton.next_power_of_2(size)
    key_bytes = units * (2 * dtype.itemsize + (8 if is_rotary else dtype.itemsize))
    most = min(64, max(16, triton.next_power_of_2(triton.cdiv(keys, shares))))
    block = max(16, min(most, 1 << ((room // key_bytes).bit_length() - 1)))
    return AttentionTiles(
        shares=shares, block=block, num_warps=min(8, max(1, block * units // 1024))
    )
