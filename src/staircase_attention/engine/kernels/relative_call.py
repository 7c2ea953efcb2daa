"""What a call of relative-position attention is about, and how it is passed to kernels."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALLEST_BLOCK = 16
"""Tensor cores multiply tiles of at least this many rows."""
WIDE_HEAD = 128
"""Heads of this size need other tiles: every row takes more registers."""
LARGEST_TILE = {
    (torch.bfloat16, False): 64,
    (torch.bfloat16, True): 64,
    (torch.float32, False): 32,
    (torch.float32, True): 16,
}
"""By dtype and by whether heads are wide: the most queries and keys that a single tile holds."""

Pair = tuple[Tensor, Tensor]
"""Keys and values, or their gradients, each (batch, heads, time, size)."""


# Arguments of the kernels. Triton takes a named tuple apart, and specialises the pointers and
# strides inside it as it does plain arguments (divisible by 16, equal to 1, None).


class Heads(NamedTuple):
    """A (batch, heads, time, size) tensor with contiguous vectors: its address and its strides."""

    data: Any
    batch: Any
    head: Any
    row: Any


class Joined(NamedTuple):
    """Keys or values, or their gradients: those of the past, where there are any, and the own."""

    past: Any
    own: Any


class Noise(NamedTuple):
    """Dropout of weights; without a seed nothing is dropped, and the rate is 0."""

    seed: Any
    rate: Any


class Inputs(NamedTuple):
    """What attention reads. Scores are multiplied by `scale`, 1 / sqrt(size)."""

    queries: Any
    # Triton's own tuples have an attribute `values`.
    joined_keys: Any
    joined_values: Any
    table: Any
    first_visible: Any
    noise: Any
    scale: Any


class Shape(NamedTuple):
    """Numbers that change from call to call.

    They are not specialised (except that Triton takes 1 for a constant): one kernel serves them
    all. Keys are counted from `num_hidden` places before the first one, and so are the queries'
    positions. The past ends, and the own keys begin, at `boundary`.
    """

    num_matrices: Any
    num_heads: Any
    num_queries: Any
    num_keys: Any
    num_hidden: Any
    boundary: Any
    num_rows: Any
    first_query: Any
    span: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of relative-position attention."""

    queries: Float[Tensor, "batch heads queries size"]
    keys: Float[Tensor, "batch heads keys size"]
    values: Float[Tensor, "batch heads keys size"]
    table: Float[Tensor, "distances size"]
    past: Pair | None
    """Keys and values before these, at least one; None where there are none."""
    first_query: int
    span: int
    """At most the number of distances there are."""
    first_visible: Int[Tensor, " batch"] | None
    dropout: float
    seed: Int[Tensor, " 1"] | None
    """An int64 on the device; None where nothing is dropped."""

    @classmethod
    def of(
        cls,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        *,
        first_query: int,
        span: int | None = None,
        first_visible: Tensor | None = None,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        past: Pair | None = None,
    ) -> "Call":
        """The call with these arguments, laid out as the kernels read them.

        `past` comes before the keys and values, and may lie elsewhere: queries and distances are
        counted from its first key. The same seed drops the same weights.
        """
        num_distances = first_query + queries.shape[2]
        has_past = past is not None and past[0].shape[2] > 0
        return cls(
            queries=with_rows(queries),
            keys=with_rows(keys),
            values=with_rows(values),
            table=table.contiguous(),
            past=(with_rows(past[0]), with_rows(past[1])) if past and has_past else None,
            first_query=first_query,
            span=num_distances if span is None else min(span, num_distances),
            first_visible=None if first_visible is None else first_visible.contiguous(),
            dropout=float(dropout),
            seed=seed if dropout > 0 else None,
        )

    @property
    def num_matrices(self) -> int:
        """Batch rows times heads."""
        return self.queries.shape[0] * self.queries.shape[1]

    @property
    def num_queries(self) -> int:
        """Queries of a matrix."""
        return self.queries.shape[2]

    @property
    def num_past(self) -> int:
        """Keys of the past."""
        return 0 if self.past is None else self.past[0].shape[2]

    @property
    def num_keys(self) -> int:
        """Keys of a matrix, those of the past included."""
        return self.num_past + self.keys.shape[2]

    @property
    def size(self) -> int:
        """Elements of a vector."""
        return self.queries.shape[3]

    @property
    def kind(self) -> tuple[torch.dtype, bool]:
        """What tuning depends on: the dtype, and whether heads are wide."""
        return self.queries.dtype, self.size >= WIDE_HEAD

    @property
    def is_single_tile(self) -> bool:
        """Whether one tile holds all pairs."""
        return max(self.num_queries, self.num_keys) <= LARGEST_TILE[self.kind]

    @property
    def inputs(self) -> Inputs:
        """Tensors and dropout, for a kernel."""
        past_keys, past_values = self.past or (None, None)
        return Inputs(
            queries=heads(self.queries),
            joined_keys=join(past_keys, self.keys),
            joined_values=join(past_values, self.values),
            table=self.table,
            first_visible=self.first_visible,
            noise=Noise(self.seed, self.dropout),
            scale=1 / math.sqrt(self.size),
        )

    def shape(self, num_hidden: int = 0) -> Shape:
        """Sizes and positions, for a kernel that counts keys from `num_hidden` before the first."""
        return Shape(
            num_matrices=self.num_matrices,
            num_heads=self.queries.shape[1],
            num_queries=self.num_queries,
            num_keys=self.num_keys + num_hidden,
            num_hidden=num_hidden,
            boundary=self.num_past + num_hidden,
            num_rows=len(self.table),
            first_query=self.first_query + num_hidden,
            span=self.span,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Where a backward pass writes what it finds; the table's parts are added to `table_sums`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    past: Pair | None
    """For the last keys and values of the past, as many as there is room for, if they are asked."""
    adds_past: bool
    """Whether the gradients of the past are added to what is there."""
    table_sums: Float[Tensor, "sums distances size"]

    @property
    def num_stored(self) -> int:
        """Keys of the past whose gradients are asked for."""
        return 0 if self.past is None else self.past[0].shape[2]

    @property
    def joined(self) -> tuple[Joined, Joined]:
        """Gradients of keys and values, for a kernel."""
        past_keys, past_values = self.past or (None, None)
        return join(past_keys, self.keys), join(past_values, self.values)


def heads(tensor: Tensor) -> Heads:
    """A tensor with contiguous vectors, for a kernel."""
    assert tensor.stride(-1) == 1
    return Heads(tensor, *tensor.stride()[:3])


def join(past: Tensor | None, own: Tensor) -> Joined:
    """Two tensors one after the other, for a kernel."""
    return Joined(None if past is None else heads(past), heads(own))


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor with contiguous vectors, as the kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def block_for(length: int, largest: int) -> int:
    """The smallest power of two that holds `length`, within what tiles may be."""
    return min(max(1 << (length - 1).bit_length(), SMALLEST_BLOCK), largest)
