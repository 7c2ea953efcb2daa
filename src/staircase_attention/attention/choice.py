"""The one place that chooses how attention is computed."""

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import builtin, skewed
from staircase_attention.attention.view import View


def attend(
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    *,
    table: Float[Tensor, "distances size"] | None,
    view: View,
    dropout: float,
    fuses: bool = True,
) -> Float[Tensor, "batch heads queries size"]:
    """Attention by the fastest back-end that fits; see `reference.attend` for what it computes.

    `fuses` says whether kernels of our own may be among them.
    """
    if fuses and table is not None and _has_kernels_for(queries):
        # Triton is imported where it is used: it is not there on every machine.
        from staircase_attention.attention import fused

        return fused.attend(queries, keys, values, table=table, view=view, dropout=dropout)
    if view.needs_blocks:
        blocks = [
            attend(
                queries[:, :, rows],
                keys[:, :, columns],
                values[:, :, columns],
                table=table,
                view=part,
                dropout=dropout,
                fuses=fuses,
            )
            for rows, columns, part in view.blocks()
        ]
        return torch.cat(blocks, dim=2)
    if table is None:
        return builtin.attend(queries, keys, values, table=table, view=view, dropout=dropout)
    return skewed.attend(queries, keys, values, table=table, view=view, dropout=dropout)


def _has_kernels_for(queries: Float[Tensor, "batch heads queries size"]) -> bool:
    if not queries.is_cuda or find_spec("triton") is None:
        return False
    from staircase_attention.engine.kernels import relative_attention

    return relative_attention.fits(queries)


def attention_flops(view: View, *, has_table: bool) -> int:
    """Floating-point operations of one head of size 1: scores, distances and weighted sum."""
    if view.needs_blocks:
        return sum(attention_flops(part, has_table=has_table) for _, _, part in view.blocks())
    columns = 2 * view.num_keys + (view.num_distances if has_table else 0)
    return 2 * view.num_queries * columns
