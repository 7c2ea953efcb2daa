"""Relative-position attention in one pass over tiles, on the device's fast memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention.view import View
from staircase_attention.engine.kernels.relative_attention import relative_attention


def attend(
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    *,
    table: Float[Tensor, "distances size"],
    view: View,
    dropout: float,
) -> Float[Tensor, "batch heads queries size"]:
    """The same function as the reference, for models that have a table and where kernels fit."""
    with torch.cuda.device_of(queries):  # type: ignore[no-untyped-call]
        return relative_attention(
            queries,
            keys,
            values,
            table=table,
            first_query=view.first_query,
            span=view.span,
            first_visible=view.first_visible,
            dropout=dropout,
        )
