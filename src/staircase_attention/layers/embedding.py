"""Tokens to vectors, with gradients that are the same bits every time."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.checks import input_error

# Up to this many, a table's gradient on a GPU is a product.
#
# PyTorch's own kernel, for tables with fewer rows than four times the multiprocessors, lets
# programs add to the same numbers in whatever order they come. A larger table uses another kernel,
# which sorts tokens first.
FEW_SYMBOLS = 1024


class Embedding(nn.Embedding):
    """PyTorch's embedding, deterministic on a GPU too."""

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """The vector of every token."""
        if tokens.is_cuda and self.num_embeddings <= FEW_SYMBOLS:
            found: Tensor = Lookup.apply(self.weight, tokens)  # type: ignore[no-untyped-call]
            return found
        return super().forward(tokens)


class Lookup(torch.autograd.Function):
    """Rows of a table; gradients are summed by a product with which token is which symbol."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:  # noqa: ANN401, D102
        ctx.save_for_backward(tokens)
        ctx.num_symbols = len(table)
        return functional.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401, D102
        (tokens,) = ctx.saved_tensors
        symbols = torch.arange(ctx.num_symbols, device=tokens.device)
        with torch.autocast(gradient.device.type, enabled=False):
            # Row s sums the gradients of its tokens: [symbols, tokens] @ [tokens, width].
            is_symbol = (tokens.flatten() == symbols[:, None]).to(gradient.dtype)
            return is_symbol @ gradient.flatten(0, -2), None


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse anything but a batch of symbols of the vocabulary."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        rule = "tokens must be a tensor of int64 or int32"
        raise input_error(rule, kind, "convert with tokens.long()")
    if tokens.dim() != 2 or tokens.shape[0] == 0:  # noqa: PLR2004
        rule = "tokens must be batch x time with at least one row"
        raise input_error(rule, f"shape {tuple(tokens.shape)}", "for one sequence use tokens[None]")
    # Reading values waits for the device. A graph under capture cannot wait, and a tensor on the
    # meta device or in a trace has no values.
    is_capturing = tokens.is_cuda and torch.cuda.is_current_stream_capturing()
    if tokens.numel() == 0 or tokens.is_meta or is_capturing or torch.compiler.is_compiling():
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        rule = f"token ids must be from 0 to vocab_size - 1 = {vocab_size - 1}"
        remedy = "check the tokeniser, or build with a larger vocab_size"
        raise input_error(rule, f"ids from {low} to {high}", remedy)
