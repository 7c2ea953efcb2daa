# mypy: disable-error-code="untyped-decorator"
"""The product that comes to a ReLU's backward pass, with the ReLU's gate inside it.

The product's result is as wide as the feed-forward block, four times its input: to write it, read
it again for the gate, and write it once more takes longer than the product itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from staircase_attention.engine.kernels.activation import relu_backward_

FEWEST_ROWS = 1024
"""Fewer rows do not fill the processors; PyTorch's product is faster then."""
WIDEST_KEPT = 256
"""Up to so many inputs, a program keeps the weights of all its columns."""
NUM_PROCESSORS = 132
GENERATIONS = (9, 10)
"""Of GPUs: those with bulk copies, and with as much memory in a processor as the tiles take."""


@dataclass(frozen=True)
class Tiles:
    """How the product is cut up."""

    rows: int
    columns: int
    inputs: int
    num_stages: int
    num_warps: int
    keeps_weights: bool

    @classmethod
    def of(cls, num_inputs: int) -> "Tiles":
        """What was fastest on an H200."""
        if num_inputs <= WIDEST_KEPT:
            inputs = max(triton.next_power_of_2(num_inputs), 16)
            return cls(64, 128, inputs, num_stages=3, num_warps=4, keeps_weights=True)
        return cls(128, 256, 64, num_stages=3, num_warps=8, keeps_weights=False)


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
    NUM_TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    KEEPS_WEIGHTS: tl.constexpr,
) -> None:
    # A program keeps to its columns, whose sums stay in registers, and shares the rows with others.
    share = tl.program_id(0) // NUM_TILES
    first = tl.program_id(0) % NUM_TILES * COLUMNS
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    if KEEPS_WEIGHTS:
        kept = weights.load([0, first])
        for row in tl.range(share * ROWS, num_rows, num_shares * ROWS, num_stages=STAGES):
            gradient = gradients.load([row, 0])
            gate = gates.load([row, first])
            found = tl.dot(gradient, kept, input_precision="ieee")
            found = tl.where(gate > 0.0, found * scale, 0.0)
            out.store([row, first], found.to(gate.dtype))
            total += tl.sum(found, 0)
    else:
        for row in tl.range(share * ROWS, num_rows, num_shares * ROWS):
            found = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
            for start in tl.range(0, num_inputs, INPUTS, num_stages=STAGES):
                gradient = gradients.load([row, start])
                weight = weights.load([start, first])
                found = tl.dot(gradient, weight, found, input_precision="ieee")
            gate = gates.load([row, first])
            found = tl.where(gate > 0.0, found * scale, 0.0)
            out.store([row, first], found.to(gate.dtype))
            total += tl.sum(found, 0)
    column = first + tl.arange(0, COLUMNS)
    own = sums_ptr + share * WIDTH + column
    within = column < WIDTH
    tl.store(own, tl.load(own, mask=within, other=0.0) + total, mask=within)


def gated_product(
    gradients: Float[Tensor, "rows inputs"],
    weights: Float[Tensor, "inputs width"],
    gates: Float[Tensor, "rows width"],
    *,
    scale: float,
    sums: Float[Tensor, "programs width"],
) -> Float[Tensor, "rows width"]:
    """(gradients @ weights) * scale where the gate is positive, and nothing elsewhere.

    The sums of its columns are added to `sums`, of which every row has its own programs.
    """
    if not fits(gradients, weights, gates):
        return relu_backward_(gradients @ weights, gates, scale=scale, sums=sums)
    return launch(gradients, weights, gates, scale=scale, sums=sums)


def fits(gradients: Tensor, weights: Tensor, gates: Tensor) -> bool:
    """Whether the kernel is the faster way, and its bulk copies can read all three."""
    return (
        gradients.dtype == torch.bfloat16
        and len(gradients) >= FEWEST_ROWS
        and gradients.is_cuda
        and torch.cuda.get_device_capability(gradients.device)[0] in GENERATIONS
        and all(can_be_copied(one) for one in (gradients, weights, gates))
    )


def can_be_copied(matrix: Tensor) -> bool:
    """Whether rows begin where bulk copies can begin: at multiples of 16 bytes."""
    in_bytes = matrix.stride(0) * matrix.element_size()
    return matrix.stride(1) == 1 and in_bytes % 16 == 0 and matrix.data_ptr() % 16 == 0


def launch(
    gradients: Tensor, weights: Tensor, gates: Tensor, *, scale: float, sums: Tensor
) -> Tensor:
    """What `gated_product` is, by its kernel."""
    num_rows, num_inputs = gradients.shape
    width = weights.shape[1]
    tiles = Tiles.of(num_inputs)
    out = torch.empty_like(gates)
    num_tiles = triton.cdiv(width, tiles.columns)
    num_shares = min(
        max(NUM_PROCESSORS // num_tiles, 1), len(sums), triton.cdiv(num_rows, tiles.rows)
    )
    _gated_product_kernel[(num_shares * num_tiles,)](
        described(gradients, tiles.rows, tiles.inputs),
        described(weights, tiles.inputs, tiles.columns),
        described(gates, tiles.rows, tiles.columns),
        described(out, tiles.rows, tiles.columns),
        sums,
        num_rows,
        num_inputs,
        scale,
        num_shares,
        WIDTH=width,
        NUM_TILES=num_tiles,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        INPUTS=tiles.inputs,
        STAGES=tiles.num_stages,
        KEEPS_WEIGHTS=tiles.keeps_weights,
        num_warps=tiles.num_warps,
    )
    return out


def described(matrix: Tensor, *block: int) -> Any:
    """A matrix for bulk copies of blocks; what lies beyond its edges is zero, or not written."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block))
