"""Relative-position attention in a few kernels, forward and backward.

It computes what `attention.reference` does. Nothing here waits for the device, and what is launched
depends on shapes, and on where tensors lie, alone, so that calls can be captured in a CUDA graph.
Three sets of kernels share the work: for one query, for pairs that fit into a single tile, and for
several tiles.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.engine.kernels import relative_several, relative_single, single_query
from staircase_attention.engine.kernels.relative_parts import Call, Gradients, Pair, with_rows

HEAD_SIZES = (16, 32, 64, 128)
KINDS = (torch.bfloat16, torch.float32)
# Programs that may sum the table's gradient side by side: two for each processor of an H200.
NUM_TABLE_SUMS = 264
# Scores that are written down at a time; more queries come in pieces, where nothing is dropped.
MOST_SCORES = 2**29


def fits(queries: Tensor) -> bool:
    """Whether the kernels are written for such queries."""
    return queries.shape[-1] in HEAD_SIZES and queries.dtype in KINDS


def new_table_sums(table: Float[Tensor, "distances size"]) -> Float[Tensor, "sums distances size"]:
    """Zeros to which backward passes add the table's gradient in parts; their sum is the whole."""
    shape = (NUM_TABLE_SUMS, *table.shape)
    return torch.zeros(shape, dtype=torch.float32, device=table.device)


def forward(
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    table: Float[Tensor, "distances size"],
    **options: Any,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """Attention, and the logarithm of each softmax's divisor (-inf where nothing is in sight).

    The options are those of `Call.of`. The output lies in memory as [batch, queries, heads, size].
    """
    return attend(Call.of(queries, keys, values, table, **options))


def backward(
    d_out: Float[Tensor, "batch heads queries size"],
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    table: Float[Tensor, "distances size"],
    out: Float[Tensor, "batch heads queries size"],
    logsumexp: Float[Tensor, "batch heads queries"],
    *,
    table_sums: Float[Tensor, "sums distances size"],
    d_queries: Float[Tensor, "batch heads queries size"] | None = None,
    d_keys: Float[Tensor, "batch heads keys size"] | None = None,
    d_values: Float[Tensor, "batch heads keys size"] | None = None,
    d_past: Pair | None = None,
    adds_past: bool = False,
    **options: Any,
) -> tuple[
    Float[Tensor, "batch heads queries size"],
    Float[Tensor, "batch heads keys size"],
    Float[Tensor, "batch heads keys size"],
]:
    """Gradients of queries, keys and values, written where asked; the table's go to `table_sums`.

    `options` are those of `forward`. `table_sums`, from `new_table_sums`, may be shared by calls of
    any shape one after another. The gradients of the past are written to `d_past`, if it is given,
    or with `adds_past` added to what it holds; then they may be asked for the last tokens only, by
    tensors that are shorter.
    """
    call = Call.of(queries, keys, values, table, **options)
    gradients = Gradients(
        queries=empty_by_time(queries) if d_queries is None else d_queries,
        keys=empty_by_time(keys) if d_keys is None else d_keys,
        values=empty_by_time(values) if d_values is None else d_values,
        past=None if call.past is None else d_past,
        adds_past=adds_past,
        table_sums=table_sums,
    )
    kernels_for(call).backward(call, with_rows(d_out), with_rows(out), logsumexp, gradients)
    return gradients.queries, gradients.keys, gradients.values


def attend(call: Call) -> tuple[Tensor, Tensor]:
    """What `forward` returns for a call; queries whose scores are too many come in pieces."""
    out = empty_by_time(call.queries)
    logsumexp = torch.empty(call.queries.shape[:3], dtype=torch.float32, device=out.device)
    # Queries whose scores fit, in whole tiles of 64. Dropout numbers pairs within a call, so that
    # pieces would drop other weights.
    num_at_once = max(MOST_SCORES // (call.num_matrices * call.num_keys) // 64 * 64, 64)
    if call.num_queries <= num_at_once or call.dropout > 0:
        kernels_for(call).forward(call, out, logsumexp)
        return out, logsumexp
    for first in range(0, call.num_queries, num_at_once):
        piece = slice(first, first + num_at_once)
        part = replace(
            call, queries=call.queries[:, :, piece], first_query=call.first_query + first
        )
        out[:, :, piece], logsumexp[:, :, piece] = attend(part)
    return out, logsumexp


def kernels_for(call: Call) -> Any:
    """The module that serves a call."""
    if call.num_queries == 1:
        return single_query
    return relative_single if call.is_single_tile else relative_several


def relative_attention(
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    *,
    table: Float[Tensor, "distances size"],
    first_query: int,
    span: int | None = None,
    first_visible: Int[Tensor, " batch"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries size"]:
    """Attention as `forward` computes it, with gradients for all four tensors."""
    seed = new_seed(queries.device) if dropout > 0 else None
    options = {"first_query": first_query, "span": span, "dropout": dropout}
    found: Tensor = _RelativeAttention.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, table, first_visible, seed, options
    )
    return found


def new_seed(device: torch.device) -> Int[Tensor, " 1"]:
    """A seed for dropout, drawn where it is used."""
    return torch.randint(2**62, (1,), dtype=torch.int64, device=device)


class _RelativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        first_visible: Tensor | None,
        seed: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        # The table may be float32 for other inputs: its gradient is summed, and returned, in that.
        ctx.table_dtype, ctx.options = table.dtype, options
        inputs = (queries, keys, values, table.to(queries.dtype))
        results = forward(*inputs, first_visible=first_visible, seed=seed, **options)
        ctx.save_for_backward(*inputs, *results, first_visible, seed)
        return results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *saved, first_visible, seed = ctx.saved_tensors
        options = {**ctx.options, "first_visible": first_visible, "seed": seed}
        table_sums = new_table_sums(saved[3])
        gradients = backward(d_out, *saved, table_sums=table_sums, **options)
        return *gradients, table_sums.sum(0).to(ctx.table_dtype), None, None, None


def empty_by_time(like: Tensor) -> Tensor:
    """An empty tensor of the same shape, in which a step's heads lie side by side."""
    batch, heads, length, size = like.shape
    shape = (batch, length, heads, size)
    return torch.empty(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
