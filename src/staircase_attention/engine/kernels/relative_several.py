"""Relative-position attention when there are several tiles of pairs: launches of its kernels.

Two forward: scores by position, written down, and attention over them. Five backward: scores by
position again, gradients of keys and values, which leave those of the scores where the scores were,
and from these the gradients of the queries, in two parts, and of the table.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from staircase_attention.engine.kernels.relative_call import Call, block_for, strides
from staircase_attention.engine.kernels.relative_pairs import (
    attend_kernel,
    keys_kernel,
    queries_by_key_kernel,
)
from staircase_attention.engine.kernels.relative_positions import (
    queries_by_table_kernel,
    scores_kernel,
    table_kernel,
)
from staircase_attention.engine.kernels.relative_tiling import Tiling

Pair = tuple[Tensor, Tensor]
Kernel = Literal["scores", "attend", "keys", "queries by table", "queries by key", "table"]


class Tuning(NamedTuple):
    """How a kernel is launched."""

    rows: int
    """The most of a tile: matrices, or queries for the kernels of pairs."""
    num_warps: int
    num_stages: int
    """Of its pipeline."""
    registers: int | None = None
    """The most of a thread."""

    @property
    def options(self) -> dict[str, int]:
        """Arguments of the launch."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


TUNED: dict[tuple[torch.dtype, bool], dict[Kernel, Tuning]] = {
    (torch.bfloat16, False): {
        "scores": Tuning(128, 4, 2),
        "attend": Tuning(64, 4, 2, registers=128),
        "keys": Tuning(64, 4, 2),
        "queries by table": Tuning(128, 4, 3),
        "queries by key": Tuning(64, 4, 3),
        "table": Tuning(64, 4, 3),
    },
    (torch.bfloat16, True): {
        "scores": Tuning(128, 8, 2),
        "attend": Tuning(64, 4, 2),
        "keys": Tuning(64, 4, 2),
        "queries by table": Tuning(128, 8, 2),
        "queries by key": Tuning(64, 4, 3),
        "table": Tuning(64, 4, 3),
    },
    (torch.float32, False): dict.fromkeys(get_args(Kernel), Tuning(16, 4, 1)),
    (torch.float32, True): dict.fromkeys(get_args(Kernel), Tuning(16, 4, 1)),
}
"""For each kind of numbers, and for heads that are wide or not. The fastest of those tried on an
H200 for windows of 256 tokens in bfloat16."""
ENOUGH_PROGRAMS = 264
"""Two for each processor of an H200; for as many, tiles of matrices are cut down to `EFFICIENT`."""
EFFICIENT = 64
MOST_CLASSES = 8
"""Neighbours in a row of score gradients that the table's kernel reads at once: 16 bytes."""


def forward(
    call: Call,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    logsumexp: Tensor,
    *,
    before: Pair,
    has_past: bool,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Attention, written to `out` and `logsumexp`."""
    tiling = Tiling.of(call)
    queries, keys, values, table = inputs
    scores = new_scores(tiling, queries.device)
    launch_scores(tiling, queries, table, scores, first_visible)
    block_q, block_k = tiling.block_q, tiling.block_k
    attend_kernel[(call.num_matrices * tiling.num_query_blocks,)](
        vectors_of(queries, block_q),
        *(vectors_of(one, block_k) for one in (keys, values, *before)),
        described(scores, 1, block_q, block_k),
        vectors_of(out, block_q),
        logsumexp,
        seed,
        *tiling.shape,
        call.scale,
        dropout,
        has_past=has_past,
        has_dropout=dropout > 0,
        **tiling.blocks,
        **TUNED[call.kind]["attend"].options,
    )


def backward(
    call: Call,
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, Tensor, Tensor],
    table_sums: Tensor,
    *,
    before: Pair,
    d_before: Pair,
    has_past: bool,
    stores_past: bool,
    adds_past: bool,
    first_visible: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Gradients by way of those of the scores, which are written down."""
    tiling = Tiling.of(call)
    d_out, queries, keys, values, table, out, logsumexp = inputs
    d_queries, *d_own = gradients
    scores = new_scores(tiling, queries.device)
    d_scores = scores.view(queries.dtype)
    # Rows begin at multiples of 16 bytes.
    rows_width = -(-call.num_queries // 4) * 4
    normalisers, agreement = torch.empty(
        (2, call.num_matrices, rows_width), dtype=torch.float32, device=queries.device
    )
    launch_scores(
        tiling,
        queries,
        table,
        scores,
        first_visible,
        outputs=(out, d_out, logsumexp),
        found=(normalisers, agreement),
    )
    tuning = TUNED[call.kind]["keys"]
    rows_q = min(block_for(call.num_queries, tuning.rows), tiling.block_q)
    keys_kernel[(call.num_matrices * tiling.num_key_blocks,)](
        vectors_of(queries, rows_q),
        keys,
        values,
        *before,
        described(scores, 1, rows_q, tiling.block_k),
        described(d_scores, 1, rows_q, tiling.block_k),
        vectors_of(d_out, rows_q),
        # What is beyond the queries must not be read: it was never written.
        *(described(one[:, : call.num_queries], 1, rows_q) for one in (normalisers, agreement)),
        *d_own,
        *d_before,
        seed,
        *strides(keys, values, *before, *d_own, *d_before),
        d_before[0].shape[2],
        *tiling.shape,
        call.scale,
        dropout,
        has_past=has_past,
        stores_past=stores_past,
        adds_past=adds_past,
        has_dropout=dropout > 0,
        rows_q=rows_q,
        **tiling.blocks,
        **tuning.options,
    )
    launch_queries(tiling, keys, before[0], table, d_scores, d_queries, has_past=has_past)
    launch_table(tiling, queries, d_scores, table_sums)


def launch_scores(
    tiling: Tiling,
    queries: Tensor,
    table: Tensor,
    scores: Tensor,
    first_visible: Tensor | None,
    *,
    outputs: tuple[Tensor, Tensor, Tensor] | None = None,
    found: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Scores by position; and for the way back, what else the kernels need of every query."""
    call, tuning = tiling.call, TUNED[tiling.call.kind]["scores"]
    block_m = filling_block(call, tuning.rows)
    out, d_out, logsumexp = outputs or (queries, queries, None)
    normalisers, agreement = found or (None, None)
    scores_kernel[(call.num_queries, -(-call.num_matrices // block_m))](
        queries,
        table,
        scores,
        first_visible,
        out,
        d_out,
        logsumexp,
        normalisers,
        agreement,
        *strides(queries, out, d_out),
        call.num_matrices,
        *tiling.shape,
        tiling.width,
        0 if normalisers is None else normalisers.stride(0),
        call.scale,
        has_first_visible=first_visible is not None,
        has_gradients=outputs is not None,
        block_m=block_m,
        **tiling.blocks,
        **tuning.options,
    )


def launch_queries(
    tiling: Tiling,
    keys: Tensor,
    past_keys: Tensor,
    table: Tensor,
    d_scores: Tensor,
    d_queries: Tensor,
    *,
    has_past: bool,
) -> None:
    """Gradients of the queries: what the table adds, and on top of it what the keys add."""
    call, tuning = tiling.call, TUNED[tiling.call.kind]["queries by table"]
    block_m = filling_block(call, tuning.rows)
    room = d_queries
    if not is_describable(room):
        room = torch.empty_like(d_queries, memory_format=torch.contiguous_format)
    queries_by_table_kernel[(call.num_queries, -(-call.num_matrices // block_m))](
        table,
        d_scores,
        room,
        *strides(room),
        call.num_matrices,
        *tiling.shape,
        tiling.width,
        call.scale,
        block_m=block_m,
        **tiling.blocks,
        **tuning.options,
    )
    queries_by_key_kernel[(call.num_matrices * tiling.num_query_blocks,)](
        vectors_of(keys, tiling.block_k),
        vectors_of(past_keys, tiling.block_k),
        described(d_scores, 1, tiling.block_q, tiling.block_k),
        vectors_of(room, tiling.block_q),
        *tiling.shape,
        call.scale,
        has_past=has_past,
        **tiling.blocks,
        **TUNED[call.kind]["queries by key"].options,
    )
    if room is not d_queries:
        d_queries.copy_(room)


def launch_table(tiling: Tiling, queries: Tensor, d_scores: Tensor, table_sums: Tensor) -> None:
    """Gradients of the table, added to as many of the sums as there is work for."""
    call, tuning = tiling.call, TUNED[tiling.call.kind]["table"]
    num_sums = len(table_sums)
    block_m = block_for(call.num_matrices, tuning.rows)
    num_classes = 1 << (min(MOST_CLASSES, num_sums).bit_length() - 1)
    num_blocks = (call.span + num_classes - 2) // tiling.block_k + 1
    num_owners = min(-(-num_blocks // 2), num_sums // num_classes)
    num_groups = num_sums // (num_owners * num_classes)
    num_row_blocks = -(-call.num_matrices // block_m)
    # Where there are few matrices, their queries are shared out too.
    num_parts = max(1, min(num_groups // num_row_blocks, call.num_queries // (2 * num_classes)))
    num_groups = min(num_groups // num_parts, num_row_blocks) * num_parts
    table_kernel[(num_classes * num_owners * num_groups,)](
        queries,
        d_scores,
        table_sums,
        *strides(queries),
        call.num_matrices,
        num_blocks,
        num_groups,
        num_parts,
        *tiling.shape,
        tiling.width,
        call.scale,
        num_classes=num_classes,
        block_m=block_m,
        **tiling.blocks,
        **tuning.options,
    )


def new_scores(tiling: Tiling, device: torch.device) -> Tensor:
    """Room for a score of each pair, in as many bytes as the inputs' numbers have."""
    call = tiling.call
    kind = torch.float16 if call.dtype == torch.bfloat16 else torch.float32
    shape = (call.num_matrices, call.num_queries, tiling.width)
    return torch.empty(shape, dtype=kind, device=device)


def filling_block(call: Call, largest: int) -> int:
    """Matrices of a tile at one query: fewer where there would be too few programs."""
    block = block_for(call.num_matrices, largest)
    while block > EFFICIENT and call.num_queries * -(-call.num_matrices // block) < ENOUGH_PROGRAMS:
        block //= 2
    return block


def vectors_of(tensor: Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of a (batch, heads, time, size) tensor for blocks of `rows` vectors.

    Of a copy, where none can be made of the tensor.
    """
    block = (1, 1, rows, tensor.shape[-1])
    if tensor.numel() == 0:
        tensor = tensor.new_empty(block)  # Nothing is read from it, but it must not be empty.
    elif not is_describable(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return described(tensor, *block)


def described(tensor: Tensor, *block: int) -> TensorDescriptor:
    """A descriptor of a tensor for such blocks."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def is_describable(tensor: Tensor) -> bool:
    """Whether its address and the steps between its rows are as descriptors need them."""
    steps = (step * tensor.element_size() for step in tensor.stride()[:-1])
    return tensor.data_ptr() % 16 == 0 and all(step > 0 and step % 16 == 0 for step in steps)
