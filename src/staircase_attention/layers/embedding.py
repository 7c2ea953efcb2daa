"""Vectors of symbols, whose gradients are the same bits every time."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

FEW_SYMBOLS = 1024
"""Up to so many, a table's gradient on a GPU is a product.

PyTorch's own kernel, for tables that have fewer rows than four times the multiprocessors, lets
programs add to the same numbers in whatever order they come. A larger table takes another kernel,
which sorts tokens first.
"""


class Embedding(nn.Embedding):
    """PyTorch's, but that a run on a GPU can be repeated."""

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
            is_symbol = (tokens.flatten() == symbols[:, None]).to(gradient.dtype)
            return is_symbol @ gradient.flatten(0, -2), None
