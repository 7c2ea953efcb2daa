"""Relative-position attention in a few kernels, forward and backward.

It computes what `attention.reference` does. Nothing here waits for the device, and what is launched
depends on shapes, and on where tensors lie, alone, so that calls can be captured in a CUDA graph.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_attention.engine.kernels import (
    relative_several,
    relative_single,
    single_query,
    single_query_backward,
)
from staircase_attention.engine.kernels.relative_call import Call, by_rows, in_one_piece

HEAD_SIZES = (16, 32, 64, 128)
KINDS = (torch.bfloat16, torch.float32)
NUM_TABLE_SUMS = 264
"""Programs that may sum the table's gradient side by side: two for each processor of an H200."""
MOST_SCORES = 2**29
"""Scores that are written down at a time; more queries come in pieces, where nothing is dropped."""


Pair = tuple[Tensor, Tensor]
"""Keys and values, or their gradients, each (batch, heads, time, size)."""


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
    *,
    first_query: int,
    span: int | None = None,
    first_visible: Int[Tensor, " batch"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, " 1"] | None = None,
    past: Pair | None = None,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """Attention, and the logarithm of each softmax's divisor (-inf where nothing is in sight).

    The output lies in memory as [batch, queries, heads, size]. `seed` is one int64 on the device:
    the same one drops the same weights. `past` comes before the keys and values, where it lies:
    queries and distances are counted from its first key.
    """
    if past is not None and queries.shape[2] == 1:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(past, (keys, values), strict=True))
        past = None
    table = table.contiguous()
    inputs = (by_rows(queries), by_rows(keys), by_rows(values), table)
    options: dict[str, Any] = {
        "first_visible": in_one_piece(first_visible),
        "dropout": float(dropout),
        "seed": seed,
    }
    call = Call.of(queries, keys, table, first_query, span, past=past)
    out = empty_by_time(queries)
    logsumexp = torch.empty(queries.shape[:3], dtype=torch.float32, device=queries.device)
    if call.num_queries == 1:
        single_query.forward(call, inputs, out, logsumexp, **options)
        return out, logsumexp
    num_at_once = max(MOST_SCORES // (call.num_matrices * call.num_keys) // 64 * 64, 64)
    if call.num_queries > num_at_once and dropout == 0:
        for first in range(0, call.num_queries, num_at_once):
            piece = slice(first, first + num_at_once)
            out[:, :, piece], logsumexp[:, :, piece] = forward(
                queries[:, :, piece],
                keys,
                values,
                table,
                first_query=first_query + first,
                span=call.span,
                first_visible=first_visible,
                past=past,
            )
        return out, logsumexp
    kernels = relative_single if call.is_single_tile else relative_several
    kernels.forward(
        call,
        inputs,
        out,
        logsumexp,
        before=inputs[1:3] if past is None else (by_rows(past[0]), by_rows(past[1])),
        has_past=call.num_past > 0,
        **options,
    )
    return out, logsumexp


def backward(
    d_out: Float[Tensor, "batch heads queries size"],
    queries: Float[Tensor, "batch heads queries size"],
    keys: Float[Tensor, "batch heads keys size"],
    values: Float[Tensor, "batch heads keys size"],
    table: Float[Tensor, "distances size"],
    out: Float[Tensor, "batch heads queries size"],
    logsumexp: Float[Tensor, "batch heads queries"],
    *,
    first_query: int,
    span: int | None = None,
    first_visible: Int[Tensor, " batch"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, " 1"] | None = None,
    table_sums: Float[Tensor, "sums distances size"],
    d_queries: Float[Tensor, "batch heads queries size"] | None = None,
    d_keys: Float[Tensor, "batch heads keys size"] | None = None,
    d_values: Float[Tensor, "batch heads keys size"] | None = None,
    past: Pair | None = None,
    d_past: Pair | None = None,
    adds_past: bool = False,
) -> tuple[
    Float[Tensor, "batch heads queries size"],
    Float[Tensor, "batch heads keys size"],
    Float[Tensor, "batch heads keys size"],
]:
    """Gradients of queries, keys and values, written where asked; the table's go to `table_sums`.

    `table_sums`, from `new_table_sums`, may be shared by calls of any shape one after another. The
    gradients of the past are written to `d_past`, if it is given, or with `adds_past` added to what
    it holds; then they may be asked for the last tokens only, by tensors that are shorter.
    """
    options: dict[str, Any] = {
        "first_visible": in_one_piece(first_visible),
        "dropout": float(dropout),
        "seed": seed,
    }
    queries, keys, values = by_rows(queries), by_rows(keys), by_rows(values)
    d_out, table = by_rows(d_out), table.contiguous()
    gradients = (
        empty_by_time(queries) if d_queries is None else d_queries,
        empty_by_time(keys) if d_keys is None else d_keys,
        empty_by_time(values) if d_values is None else d_values,
    )
    assert all(gradient.stride(-1) == 1 for gradient in gradients)
    inputs = (d_out, queries, keys, values, table, by_rows(out), logsumexp)
    if queries.shape[2] == 1:
        single_query_backward.backward(
            inputs,
            gradients,
            table_sums,
            first_query=first_query,
            span=span,
            past=past,
            d_past=d_past,
            adds_past=adds_past,
            **options,
        )
        return gradients
    call = Call.of(queries, keys, table, first_query, span, past=past)
    kernels = relative_single if call.is_single_tile else relative_several
    kernels.backward(
        call,
        inputs,
        gradients,
        table_sums,
        before=(keys, values) if past is None else (by_rows(past[0]), by_rows(past[1])),
        d_before=gradients[1:] if d_past is None else d_past,
        has_past=call.num_past > 0,
        stores_past=d_past is not None,
        adds_past=adds_past,
        **options,
    )
    return gradients


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
    found: Tensor = _RelativeAttention.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, table, first_query, span, first_visible, dropout, seed
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
        first_query: int,
        span: int | None,
        first_visible: Tensor | None,
        dropout: float,
        seed: Tensor | None,
    ) -> Tensor:
        ctx.table_dtype = table.dtype
        table = table.to(queries.dtype)
        ctx.place = {"first_query": first_query, "span": span, "dropout": dropout}
        out, logsumexp = forward(
            queries, keys, values, table, first_visible=first_visible, seed=seed, **ctx.place
        )
        ctx.save_for_backward(queries, keys, values, table, out, logsumexp, first_visible, seed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, table, out, logsumexp, first_visible, seed = ctx.saved_tensors
        table_sums = new_table_sums(table)
        gradients = backward(
            d_out,
            queries,
            keys,
            values,
            table,
            out,
            logsumexp,
            first_visible=first_visible,
            seed=seed,
            table_sums=table_sums,
            **ctx.place,
        )
        d_table = table_sums.sum(0).to(ctx.table_dtype)
        return *gradients, d_table, None, None, None, None, None


def empty_by_time(like: Tensor) -> Tensor:
    """An empty tensor of the same shape, in which a step's heads lie side by side."""
    batch, heads, length, size = like.shape
    shape = (batch, length, heads, size)
    return torch.empty(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
