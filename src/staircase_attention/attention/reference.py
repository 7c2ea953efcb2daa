"""Relative-position attention as the equation says it, one distance vector for each pair."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

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
    """Shaw et al. 2018, keys only, and with no vector for the future.

    score(i, j) = (q_i · k_j + q_i · r[min(d, R-1)]) / sqrt(size), d = distance of key j from query
    i, R = rows of the table r; without a table only the first term. A query that sees no key at all
    gets zero. `dropout` is the probability with which a weight is dropped. A group of heads shares
    keys and values, where there are fewer of these.
    """
    keys, values = (for_every_head(one, queries.shape[1]) for one in (keys, values))
    scores = torch.einsum("bhqs,bhks->bhqk", queries, keys)
    if table is not None:
        vectors = table[view.distances.clamp(0, table.shape[0] - 1)]
        scores = scores + torch.einsum("bhqs,qks->bhqk", queries, vectors)
    weights = softmax_over_visible(scores / math.sqrt(queries.shape[-1]), view)
    weights = functional.dropout(weights, dropout)
    return torch.einsum("bhqk,bhks->bhqs", weights, values)


def for_every_head(
    vectors: Float[Tensor, "batch groups keys size"], num_heads: int
) -> Float[Tensor, "batch heads keys size"]:
    """Keys or values as every head sees them: each, as often as there are heads in its group."""
    num_groups = vectors.shape[1]
    if num_groups == num_heads:
        return vectors
    return vectors.repeat_interleave(num_heads // num_groups, dim=1)


def softmax_over_visible(
    scores: Float[Tensor, "batch heads queries keys"], view: View
) -> Float[Tensor, "batch heads queries keys"]:
    """Weights that sum to one over the visible keys, or are all zero where there is none."""
    hidden = view.hidden
    if hidden is None:
        return scores.softmax(-1)
    # A finite floor instead of -inf: a row that sees nothing must not make NaN gradients.
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(hidden, 0.0)
