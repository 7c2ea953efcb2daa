"""Cross-entropy behind a linear map, a chunk of rows at a time: never all the logits at once."""

import os
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# About what the logits of one chunk take.
CHUNK_BYTES = 64 * 2**20
ROW_MULTIPLE = 128
# Rows of logits begin at multiples of this many bytes on a GPU, for fast matrix products.
ALIGNMENT = 128


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignore_index: int,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss over targets that are not ignored, and how many of them were not first choice.

    Logits are hidden (rows, width) @ weight.T + bias, in the dtype of `hidden`; losses are summed
    in float32 at least. Gradients, where they are needed, are computed here, while the logits are
    in memory, and those of weight and bias are summed in float32 at least too.
    """
    loss, num_wrong = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, ignore_index, chunk_rows, torch.is_grad_enabled()
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
        chunk_rows: int | None,
        tracks: bool,
    ) -> tuple[Tensor, Tensor]:
        wanted = [tracks and needed for needed in ctx.needs_input_grad[:3]]
        with torch.autocast(hidden.device.type, enabled=False):
            loss, num_wrong, gradients = _score(
                hidden,
                weight,
                bias,
                targets.contiguous(),
                ignore_index=ignore_index,
                chunk_rows=chunk_rows or _default_chunk(weight.shape[0], hidden.element_size()),
                wanted=wanted,
            )
        # Gradients for d_loss = 1: backward only multiplies.
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [None if part is None else part.dtype for part in (hidden, weight, bias)]
        ctx.mark_non_differentiable(num_wrong)
        return loss, num_wrong

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            None if gradient is None else (gradient * d_loss).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None, None, None


def _score(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignore_index: int,
    chunk_rows: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Loss, wrong first choices and the gradients asked for of hidden, weight and bias."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    weight = weight.to(hidden.dtype)
    bias = None if bias is None else bias.to(hidden.dtype)
    rows, size = hidden.shape[0], weight.shape[0]
    losses = torch.empty(rows, dtype=exact, device=hidden.device)
    wrong = torch.empty(rows, dtype=torch.int8, device=hidden.device)
    d_hidden = torch.empty_like(hidden) if wanted[0] else None
    d_weight = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
    d_bias = torch.zeros(size, dtype=exact, device=hidden.device) if wanted[2] else None
    # One buffer for the logits of every chunk, and for their gradients.
    buffer = _aligned(min(chunk_rows, rows), size, like=hidden)
    for start in range(0, rows, chunk_rows):
        part = slice(start, min(start + chunk_rows, rows))
        logits = buffer[: part.stop - part.start]
        # [chunk, width] · [width, size]
        if bias is None:
            torch.mm(hidden[part], weight.T, out=logits)
        else:
            torch.addmm(bias, hidden[part], weight.T, out=logits)
        row_scorer(hidden)(
            logits,
            targets[part],
            losses[part],
            wrong[part],
            ignore_index=ignore_index,
            overwrites=any(wanted),
        )
        # From here on `logits` are the gradients of the loss with respect to the logits.
        if d_hidden is not None:
            torch.mm(logits, weight, out=d_hidden[part])
        if d_weight is not None:
            add_product(d_weight, logits.T, hidden[part])
        if d_bias is not None:
            d_bias += logits.sum(0, dtype=exact)
    return losses.sum(), wrong.sum(), [d_hidden, d_weight, d_bias]


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


def row_scorer(hidden: Tensor) -> Callable[..., None]:
    """A Triton kernel where there is one for such rows, and its plain twin elsewhere."""
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    if hidden.dtype == torch.float64 or not (hidden.is_cuda or interprets):
        return score_rows
    from staircase_attention.engine.kernels import rows

    return rows.score_rows


def score_rows(
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    wrong: Tensor,
    *,
    ignore_index: int,
    overwrites: bool,
) -> None:
    """What `rows.score_rows` does, in PyTorch's operations."""
    asked = targets != ignore_index
    answers = torch.where(asked, targets, 0)[:, None]
    wrong.copy_((logits.argmax(-1) != targets) & asked)
    scores = functional.log_softmax(logits, -1, dtype=losses.dtype)
    losses.copy_(torch.where(asked, -scores.gather(1, answers)[:, 0], 0))
    if overwrites:
        # softmax - one-hot targets, in place of the scores
        slopes = scores.exp_()
        slopes.scatter_add_(1, answers, slopes.new_full(answers.shape, -1))
        logits.copy_(slopes.masked_fill_(~asked[:, None], 0))


def _default_chunk(size: int, element_size: int) -> int:
    rows = CHUNK_BYTES // (size * element_size)
    return max(rows // ROW_MULTIPLE, 1) * ROW_MULTIPLE


def _aligned(rows: int, width: int, *, like: Tensor) -> Tensor:
    """An uninitialised matrix; on a GPU its rows begin at multiples of ALIGNMENT bytes.

    On a CPU they are contiguous: products of bfloat16 read beyond the end of a row there.
    """
    multiple = ALIGNMENT // like.element_size() if like.is_cuda else 1
    padded = (width + multiple - 1) // multiple * multiple
    return torch.empty(rows, padded, dtype=like.dtype, device=like.device)[:, :width]
