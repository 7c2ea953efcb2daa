"""Cross-entropy behind a linear map, a chunk of rows at a time: never all the logits at once."""

# mypy: disable-error-code="untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.engine.kernels.rows import load_float

# About what the logits of one chunk take.
CHUNK_BYTES = 64 * 2**20
ROW_MULTIPLE = 128
# Rows of logits begin at multiples of this many bytes on a GPU, for fast matrix products.
ALIGNMENT = 128

# Logits that a program reads at once, of one row or of several.
SCORED = 2048
SCORED_PER_WARP = 256
MAX_SCORED_ROWS = 64


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Summed loss over targets that are not ignored, and how many of them were not first choice.

    Logits are hidden (rows, width) @ weight.T + bias, in the dtype of `hidden`, which is float32 or
    bfloat16; losses are summed in float32. Gradients, where they are needed, are computed here,
    while the logits are in memory, and those of weight and bias are summed in float32 too.
    """
    loss, num_wrong = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, ignore_index, torch.is_grad_enabled()
    )
    return loss, num_wrong


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        ignore_index: int,
        tracks: bool,
    ) -> tuple[Tensor, Tensor]:
        wanted = [tracks and needed for needed in ctx.needs_input_grad[:3]]
        ctx.dtypes = [None if part is None else part.dtype for part in (hidden, weight, bias)]
        weight = weight.to(hidden.dtype)
        bias = None if bias is None else bias.to(hidden.dtype)
        targets, rows, size = targets.contiguous(), hidden.shape[0], weight.shape[0]
        losses = torch.empty(rows, dtype=torch.float32, device=hidden.device)
        wrong = torch.empty(rows, dtype=torch.int8, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if wanted[0] else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        d_bias = losses.new_zeros(size) if wanted[2] else None
        chunk_rows = _rows_per_chunk(size, hidden.element_size())
        # One buffer for the logits of every chunk, and for their gradients.
        buffer = _aligned(min(chunk_rows, rows), size, like=hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, rows, chunk_rows):
                part = slice(start, min(start + chunk_rows, rows))
                logits = buffer[: part.stop - part.start]
                # [chunk, width] · [width, size]
                if bias is None:
                    torch.mm(hidden[part], weight.T, out=logits)
                else:
                    torch.addmm(bias, hidden[part], weight.T, out=logits)
                score_rows(
                    *(logits, targets[part], losses[part], wrong[part]),
                    ignore_index=ignore_index,
                    overwrites=any(wanted),
                )
                # From here on `logits` are the gradients of the loss with respect to the logits.
                if d_hidden is not None:
                    torch.mm(logits, weight, out=d_hidden[part])
                if d_weight is not None:
                    add_product(d_weight, logits.T, hidden[part])
                if d_bias is not None:
                    d_bias += logits.sum(0, dtype=torch.float32)
        # Gradients for d_loss = 1: backward only multiplies.
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        num_wrong = wrong.sum()
        ctx.mark_non_differentiable(num_wrong)
        return losses.sum(), num_wrong

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            None if gradient is None else (gradient * d_loss).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None, None


def add_product(
    total: Float[Tensor, "rows columns"],
    left: Float[Tensor, "rows inner"],
    right: Float[Tensor, "inner columns"],
) -> None:
    """Total += left @ right, in place; `total` is float32, whatever the factors are."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        # PyTorch has no product with a wider result on a CPU.
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _rows_per_chunk(size: int, element_size: int) -> int:
    rows = CHUNK_BYTES // (size * element_size)
    return max(rows // ROW_MULTIPLE, 1) * ROW_MULTIPLE


def _aligned(rows: int, width: int, *, like: Tensor) -> Tensor:
    """An uninitialised matrix; on a GPU its rows begin at multiples of ALIGNMENT bytes.

    On a CPU they are contiguous: products of bfloat16 read beyond the end of a row there.
    """
    multiple = ALIGNMENT // like.element_size() if like.is_cuda else 1
    padded = (width + multiple - 1) // multiple * multiple
    return torch.empty(rows, padded, dtype=like.dtype, device=like.device)[:, :width]


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
