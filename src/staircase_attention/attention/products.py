"""Attention by matrix products: the same function as the reference, and the one that models use.

P = Q Rᵀ holds every query's score for every distance. Reading P along its skewed diagonals puts
the score for distance i - j at (i, j); the skew is a change of strides, so that both directions
cost no more than a copy and nothing is scattered.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from staircase_attention.attention.reference import for_every_head, softmax_over_visible
from staircase_attention.attention.view import View


def attend(
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch groups keys size"],
    values: Float[Tensor, "batch groups keys size"],
    *,
    table: Float[Tensor, "distances size"] | None,
    view: View,
    dropout: float,
) -> Float[Tensor, "batch heads queries size"]:
    """Attention as in `reference.attend`; without a table it is PyTorch's own."""
    # An ONNX graph has no operator for this that gives zero where a query sees nothing.
    if table is None and not torch.onnx.is_in_onnx_export():
        seen = None if view.hidden is None else ~view.hidden
        is_grouped = keys.shape[1] < queries.shape[1]
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, dropout_p=dropout, enable_gqa=is_grouped
        )
    if queries.dtype.itemsize < torch.float32.itemsize:
        # bfloat16 has 8 bits for a score: too few for a model that attends over a long span.
        with torch.autocast(queries.device.type, enabled=False):
            wide = [one.float() for one in (queries, keys, values)]
            table = table if table is None else table.float()
            return attend(*wide, table=table, view=view, dropout=dropout).to(queries.dtype)
    keys, values = (for_every_head(one, queries.shape[1]) for one in (keys, values))
    # Scaled here, once, queries scale both terms of the score.
    queries = queries / math.sqrt(queries.shape[-1])
    scores = torch.matmul(queries, keys.transpose(-1, -2))
    if table is not None:
        # From the farthest distance to 0; those past the table have its last row.
        vectors = table[: view.num_distances].flip(0)
        num_clipped = view.num_distances - len(vectors)
        if num_clipped:
            vectors = torch.cat([table[-1:].expand(num_clipped, -1), vectors])
        scores = scores + skew(queries @ vectors.T, view)
    return functional.dropout(softmax_over_visible(scores, view), dropout) @ values


def skew(
    by_distance: Float[Tensor, "batch heads queries distances"], view: View
) -> Float[Tensor, "batch heads queries keys"]:
    """Move each query's scores from distances, farthest first, to keys.

    Row i must shift left by (queries - 1 - i). With one column of padding the rows are a stride of
    (distances + 1) apart; read at a stride of (distances) from element (queries - 1) on, each row
    starts one further left than the row above it. What runs over a row's end lies in the future,
    where the mask hides it. Column j is now the place j; where keys have gaps, theirs are picked.
    """
    rows, columns = view.num_queries, view.num_distances
    flat = functional.pad(by_distance, (0, 1)).flatten(-2)
    run = flat[..., rows - 1 : rows - 1 + rows * columns]
    by_place = torch.unflatten(run, -1, (rows, columns))
    if view.has_gaps:
        return by_place.index_select(-1, view.key_places)
    return by_place[..., : view.num_keys]
