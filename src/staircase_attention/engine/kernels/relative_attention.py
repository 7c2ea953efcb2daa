"""Relative-position attention in a few kernels, forward and backward.

It computes what `attention.reference` does. Nothing here waits for the device, and what is launched
depends on shapes, and on where tensors lie, alone, so that calls can be captured in a CUDA graph.
Three sets of kernels share the work: for one query, for pairs that fit into a single tile, and for
several tiles.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.engine.kernels import relative_several, relative_single, single_query
from staircase_attention.engine.kernels.relative_parts import Call, Gradients, with_rows

# Programs that may sum the table's gradient side by side: two for each processor of an H200.
NUM_TABLE_SUMS = 264
# Scores that are written down at a time; more queries come in pieces, where nothing is dropped.
MOST_SCORES = 2**29


def forward(
    call: Call,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """Attention, and the logarithm of each softmax's divisor (-inf where nothing is in sight).

    The output lies in memory as [batch, queries, heads, size].
    """
    queries, num_queries = call.queries, call.num_queries
    by_time = queries.transpose(1, 2)
    out = torch.empty_like(by_time, memory_format=torch.contiguous_format).transpose(1, 2)
    logsumexp = torch.empty(queries.shape[:3], dtype=torch.float32, device=queries.device)
    # Queries whose scores fit, in whole tiles of 64. Dropout numbers pairs within a call, so that
    # pieces would drop other weights.
    num_at_once = max(MOST_SCORES // (call.num_matrices * call.num_keys) // 64 * 64, 64)
    if num_queries > num_at_once and call.dropout == 0 and call.table is not None:
        for first in range(0, num_queries, num_at_once):
            piece = slice(first, first + num_at_once)
            part = replace(call, queries=queries[:, :, piece], first_query=call.first_query + first)
            out[:, :, piece], logsumexp[:, :, piece] = forward(part)
    elif num_queries == 1 and call.past is None and call.table is not None:
        single_query.forward(call, out, logsumexp)
    elif call.is_single_tile:
        relative_single.forward(call, out, logsumexp)
    else:
        relative_several.forward(call, out, logsumexp)
    return out, logsumexp


def backward(
    call: Call,
    d_out: Float[Tensor, "batch heads queries size"],
    out: Float[Tensor, "batch heads queries size"],
    logsumexp: Float[Tensor, "batch heads queries"],
    gradients: Gradients,
) -> None:
    """Write all gradients of a call, for what `forward` returned.

    Queries that see nothing but keys of others are served by `single_query.Notes` as well.
    """
    kernels = relative_single if call.is_single_tile else relative_several
    kernels.backward(call, with_rows(d_out), with_rows(out), logsumexp, gradients)
