"""Relative-position attention where a matrix has several tiles of pairs: launches of its kernels.

Without a table, where positions are in queries and keys already, groups of heads may share keys and
values, and the kernels of the table are left out.

Two forward: scores by position, written down, and attention over them. Five backward: scores by
position again, gradients of keys and values, which leave those of the scores where the scores were,
and from these the gradients of the queries, in two parts, and of the table.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from staircase_attention.engine.kernels.relative_parts import (
    SMALLEST_BLOCK,
    Call,
    Gradients,
    Shape,
    block_for,
    heads,
)
from staircase_attention.engine.kernels.relative_several_kernels import (
    Outputs,
    attend_kernel,
    keys_kernel,
    queries_by_key_kernel,
    queries_by_table_kernel,
    scores_kernel,
    table_kernel,
)
from staircase_attention.engine.kernels.rows import is_describable

Kernel = Literal["scores", "attend", "keys", "queries by table", "queries by key", "table"]


class Tuning(NamedTuple):
    """How a kernel is launched."""

    rows: int
    """Limit of a tile's rows: matrices, or queries for the kernels of pairs."""
    num_warps: int
    num_stages: int
    """Stages of its software pipeline."""
    registers: int | None = None
    """Limit of registers per thread."""

    @property
    def options(self) -> dict[str, int]:
        """Arguments of the launch."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


# By dtype and by whether heads are wide. The fastest of those tried on an H200 for windows of 256
# tokens in bfloat16.
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
# The most queries and keys of a tile.
LARGEST_SIDE = {torch.bfloat16: 64, torch.float32: 32}
# Two for each processor of an H200; for as many, tiles of matrices are cut down to `EFFICIENT`.
ENOUGH_PROGRAMS = 264
EFFICIENT = 64
# Neighbours in a row of score gradients that the table's kernel reads at once: 16 bytes.
MOST_CLASSES = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the pairs of a call are cut into tiles of `block_q` queries times `block_k` keys.

    Without a past, the first query begins a tile as the own keys do with one: tiles, and with them
    all results, are the same whether or not the past lies elsewhere.
    """

    call: Call
    block_q: int
    block_k: int

    @classmethod
    def of(cls, call: Call) -> "Tiling":
        """Tiles for a call; in bfloat16 products of 64 rows are the fast ones."""
        largest = LARGEST_SIDE[call.queries.dtype]
        block_q = block_for(call.num_queries, largest)
        if call.queries.dtype == torch.bfloat16 and block_q > SMALLEST_BLOCK:
            block_q = largest
        return cls(call, block_q, block_for(call.num_keys, largest))

    @property
    def num_hidden(self) -> int:
        """Places before the first key."""
        return -(self.call.num_past or self.call.first_query) % self.block_k

    @property
    def num_query_blocks(self) -> int:
        """Tiles above one another."""
        return -(-self.call.num_queries // self.block_q)

    @property
    def num_key_blocks(self) -> int:
        """Tiles beside one another."""
        return -(-(self.call.num_keys + self.num_hidden) // self.block_k)

    @property
    def width(self) -> int:
        """Elements of a query's row of keys; rows begin at multiples of 16 bytes, for any tiles."""
        return -(-(self.call.num_keys + self.num_hidden) // 64) * 64

    @property
    def shape(self) -> Shape:
        """Sizes and positions, for a kernel."""
        return self.call.shape(self.num_hidden)

    @property
    def blocks(self) -> dict[str, int]:
        """How each kernel is compiled."""
        return {"block_q": self.block_q, "block_k": self.block_k, "size": self.call.size}

    def new_scores(self) -> Tensor:
        """Room for a score of each pair, in as many bytes as the inputs' elements have."""
        call = self.call
        dtype = torch.float16 if call.queries.dtype == torch.bfloat16 else torch.float32
        shape = (call.num_matrices, call.num_queries, self.width)
        return torch.empty(shape, dtype=dtype, device=call.queries.device)

    def matrices_per_tile(self, largest: int) -> int:
        """Matrices of a tile at one query: fewer where there would be too few programs."""
        call = self.call
        block = block_for(call.num_matrices, largest)
        while (
            block > EFFICIENT
            and call.num_queries * -(-call.num_matrices // block) < ENOUGH_PROGRAMS
        ):
            block //= 2
        return block


def forward(call: Call, out: Tensor, logsumexp: Tensor) -> None:
    """Attention, written to `out` and `logsumexp`."""
    tiling, inputs, scores = Tiling.of(call), call.inputs, None
    block_q, block_k = tiling.block_q, tiling.block_k
    if call.table is not None:
        room = tiling.new_scores()
        launch_scores(tiling, room)
        scores = TensorDescriptor.from_tensor(room, [1, block_q, block_k])
    attend_kernel[(call.num_matrices * tiling.num_query_blocks,)](
        described_vectors(call.queries, block_q),
        described_vectors(call.keys, block_k),
        described_vectors(call.values, block_k),
        described_vectors(call.past[0], block_k) if call.past else None,
        described_vectors(call.past[1], block_k) if call.past else None,
        scores,
        inputs.first_visible,
        described_vectors(out, block_q),
        logsumexp,
        inputs.noise,
        tiling.shape,
        inputs.scale,
        group=call.group,
        **tiling.blocks,
        **TUNED[call.kind]["attend"].options,
    )


def backward(
    call: Call, d_out: Tensor, out: Tensor, logsumexp: Tensor, gradients: Gradients
) -> None:
    """Gradients by way of those of the scores, which are written down."""
    tiling, inputs = Tiling.of(call), call.inputs
    scores = tiling.new_scores()
    # The same memory: a tile of scores is read before its gradients are written there.
    d_scores = scores.view(call.queries.dtype)
    # Rows begin at multiples of 16 bytes.
    rows_width = -(-call.num_queries // 4) * 4
    normalisers, agreement = torch.empty(
        (2, call.num_matrices, rows_width), dtype=torch.float32, device=scores.device
    )
    outputs = Outputs(heads(out), heads(d_out), logsumexp, normalisers, agreement)
    launch_scores(tiling, scores, outputs)
    tuning = TUNED[call.kind]["keys"]
    # Tiles of queries, at most those that the scores were written for.
    rows_q = min(block_for(call.num_queries, tuning.rows), tiling.block_q)
    by_place = TensorDescriptor.from_tensor(scores, [1, rows_q, tiling.block_k])
    keys_kernel[(call.num_matrices // call.group * tiling.num_key_blocks,)](
        described_vectors(call.queries, rows_q),
        inputs.joined_keys,
        inputs.joined_values,
        None if call.table is None else by_place,
        TensorDescriptor.from_tensor(d_scores, [1, rows_q, tiling.block_k]),
        described_vectors(d_out, rows_q),
        # What is beyond the queries must not be read: it was never written.
        *(
            TensorDescriptor.from_tensor(one[:, : call.num_queries], [1, rows_q])
            for one in (normalisers, agreement)
        ),
        *gradients.joined,
        inputs.noise,
        tiling.shape,
        tiling.shape._replace(num_heads=call.keys.shape[1]),
        inputs.first_visible,
        gradients.num_stored,
        inputs.scale,
        group=call.group,
        adds_past=gradients.adds_past,
        rows_q=rows_q,
        **tiling.blocks,
        **tuning.options,
    )
    launch_queries(tiling, d_scores, gradients.queries)
    if gradients.table_sums is not None:
        launch_table(tiling, d_scores, gradients.table_sums)


def launch_scores(tiling: Tiling, scores: Tensor, outputs: Outputs | None = None) -> None:
    """Scores by position; and for the way back, what else the kernels need of every query."""
    call, inputs, tuning = tiling.call, tiling.call.inputs, TUNED[tiling.call.kind]["scores"]
    block_m = tiling.matrices_per_tile(tuning.rows)
    scores_kernel[(call.num_queries, -(-call.num_matrices // block_m))](
        inputs.queries,
        inputs.table,
        scores,
        inputs.first_visible,
        outputs,
        tiling.shape,
        tiling.width,
        outputs.agreement.stride(0) if outputs else 0,
        inputs.scale,
        block_m=block_m,
        **tiling.blocks,
        **tuning.options,
    )


def launch_queries(tiling: Tiling, d_scores: Tensor, d_queries: Tensor) -> None:
    """Gradients of the queries: what the table adds, and on top of it what the keys add."""
    call, inputs = tiling.call, tiling.call.inputs
    tuning = TUNED[call.kind]["queries by table"]
    block_m = tiling.matrices_per_tile(tuning.rows)
    # Bulk copies read and write the gradient in between: they need rows at multiples of 16 bytes.
    room = d_queries
    if not is_describable(room):
        room = torch.empty_like(d_queries, memory_format=torch.contiguous_format)
    if call.table is not None:
        queries_by_table_kernel[(call.num_queries, -(-call.num_matrices // block_m))](
            inputs.table,
            d_scores,
            heads(room),
            tiling.shape,
            tiling.width,
            inputs.scale,
            block_m=block_m,
            **tiling.blocks,
            **tuning.options,
        )
    queries_by_key_kernel[(call.num_matrices * tiling.num_query_blocks,)](
        described_vectors(call.keys, tiling.block_k),
        described_vectors(call.past[0], tiling.block_k) if call.past else None,
        TensorDescriptor.from_tensor(d_scores, [1, tiling.block_q, tiling.block_k]),
        described_vectors(room, tiling.block_q),
        tiling.shape,
        inputs.scale,
        adds=call.table is not None,
        group=call.group,
        **tiling.blocks,
        **TUNED[call.kind]["queries by key"].options,
    )
    if room is not d_queries:
        d_queries.copy_(room)


def launch_table(tiling: Tiling, d_scores: Tensor, table_sums: Tensor) -> None:
    """Gradients of the table, added to as many of the sums as there is work for."""
    call, inputs, tuning = tiling.call, tiling.call.inputs, TUNED[tiling.call.kind]["table"]
    num_sums = len(table_sums)
    block_m = block_for(call.num_matrices, tuning.rows)
    # A power of two, so that classes divide the blocks of distances.
    num_classes = 1 << (min(MOST_CLASSES, num_sums).bit_length() - 1)
    num_blocks = (call.num_distances + num_classes - 2) // tiling.block_k + 1
    # Each owner takes a block of many queries and one of few: near distances and far ones.
    num_owners = min(-(-num_blocks // 2), num_sums // num_classes)
    # The sums that are left share the matrices.
    num_groups = num_sums // (num_owners * num_classes)
    num_row_blocks = -(-call.num_matrices // block_m)
    # Where there are few matrices, their queries are shared out too.
    num_parts = max(1, min(num_groups // num_row_blocks, call.num_queries // (2 * num_classes)))
    num_groups = min(num_groups // num_parts, num_row_blocks) * num_parts
    table_kernel[(num_classes * num_owners * num_groups,)](
        inputs.queries,
        d_scores,
        table_sums,
        tiling.shape,
        num_blocks,
        num_groups,
        num_parts,
        tiling.width,
        inputs.scale,
        num_classes=num_classes,
        block_m=block_m,
        **tiling.blocks,
        **tuning.options,
    )


def described_vectors(tensor: Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of a (batch, heads, time, size) tensor for blocks of `rows` vectors.

    Of a copy, where none can be made of the tensor.
    """
    block = [1, 1, rows, tensor.shape[-1]]
    if tensor.numel() == 0:
        tensor = tensor.new_empty(block)  # Nothing is read from it, but it must not be empty.
    elif not is_describable(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return TensorDescriptor.from_tensor(tensor, block)
