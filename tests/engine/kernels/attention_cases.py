"""Calls of attention to be tried, and their comparison with the reference in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from staircase_attention.attention import View, reference
from staircase_attention.engine.kernels import relative_attention
from staircase_attention.engine.kernels.relative_parts import Call, Gradients

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""How far results may be from the reference, as a share of its norm."""


@dataclass(frozen=True)
class Case:
    num_queries: int
    num_keys: int
    first_query: int
    span: int | None = None
    num_rows: int | None = 200
    """Of the table; None: without one."""
    group: int = 1
    """Heads of queries that share keys and values."""
    first_visible: tuple[int, int] | None = None
    size: int = 16
    num_heads: int = 1
    dtype: torch.dtype = field(default=torch.float32)

    @property
    def options(self) -> dict:
        """What the kernels are told about positions."""
        visible = self.first_visible
        return {
            "first_query": self.first_query,
            "span": self.span,
            "first_visible": None if visible is None else torch.tensor(visible, device=DEVICE),
        }

    @property
    def view(self) -> View:
        return View(
            num_queries=self.num_queries, num_keys=self.num_keys, device=DEVICE, **self.options
        )

    @property
    def seen(self) -> Tensor:
        """Which keys a query sees, (batch, heads, queries, keys)."""
        ones = torch.ones(2, self.num_heads, self.num_queries, self.num_keys, device=DEVICE)
        return reference.softmax_over_visible(ones, self.view) > 0

    def inputs(self) -> list[Tensor]:
        """Queries, keys, values and table; the first three are views, as models make them."""
        random = torch.Generator().manual_seed(self.num_queries * 31 + self.num_keys)

        def draw(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=random, dtype=torch.float64)
            return drawn.to(DEVICE, self.dtype)

        queries = draw(2, self.num_queries, self.num_heads, self.size).transpose(1, 2)
        both = draw(2, self.num_keys, 2, self.num_heads // self.group, self.size)
        keys, values = (part.transpose(1, 2) for part in both.unbind(2))
        table = [] if self.num_rows is None else [draw(self.num_rows, self.size)]
        return [queries, keys, values, *table]

    def call(self, inputs: list[Tensor], *, num_past: int = 0, **dropped) -> Call:
        """A call of which the first keys and values are a past that lies elsewhere."""
        queries, keys, values, table = [*inputs, None][:4]
        return Call(
            queries=queries,
            keys=keys[:, :, num_past:],
            values=values[:, :, num_past:],
            table=table,
            past=(keys[:, :, :num_past], values[:, :, :num_past]) if num_past else None,
            **self.options,
            **dropped,
        )

    def expected(self, inputs: list[Tensor], d_out: Tensor, kept: Tensor | None = None) -> list:
        """Output and gradients of all inputs in float64.

        If `kept` is given, other weights are dropped, with a dropout of 0.25.
        """
        exact = [one.detach().double().requires_grad_() for one in inputs]
        queries, keys, values, table = [*exact, None][:4]
        if kept is None:
            out = reference.attend(queries, keys, values, table=table, view=self.view, dropout=0.0)
        else:
            keys, values = (reference.for_every_head(one, self.num_heads) for one in (keys, values))
            scores = torch.einsum("bhqs,bhks->bhqk", queries, keys)
            if table is not None:
                vectors = table[self.view.distances.clamp(0, self.num_rows - 1)]
                scores = scores + torch.einsum("bhqs,qks->bhqk", queries, vectors)
            weights = reference.softmax_over_visible(scores / self.size**0.5, self.view)
            out = (weights * kept / 0.75) @ values
        return [out, *torch.autograd.grad(out, exact, d_out.double())]

    def kept_weights(self, queries: Tensor, keys: Tensor, *table: Tensor, **dropped) -> Tensor:
        """Which weights the kernels keep with these options: those that values still show."""
        unit = torch.eye(self.num_keys, self.size, device=DEVICE, dtype=keys.dtype)
        inputs = [queries, keys, unit.expand(keys.shape), *table]
        found, _ = relative_attention.forward(self.call(inputs, **dropped))
        return found[..., : self.num_keys] != 0


NAMES = ("out", "queries", "keys", "values", "table")


def new_sums(table: Tensor | None) -> Tensor | None:
    if table is None:
        return None
    return torch.zeros(relative_attention.NUM_TABLE_SUMS, *table.shape, device=DEVICE)


def new_gradients(call: Call, **changes) -> Gradients:
    """Room for the gradients of a call; the past's are not asked for."""
    options = {"past": None, "adds_past": False, "table_sums": new_sums(call.table)}
    names = ("queries", "keys", "values")
    make = partial(torch.empty_like, memory_format=torch.contiguous_format)
    empty = {name: make(getattr(call, name)) for name in names}
    return Gradients(**empty | options | changes)


def results(
    call: Call, change_d_out: Callable[[Tensor], Tensor] = torch.cos, **changes
) -> list[Tensor]:
    """The output, and the gradients of all inputs, for a gradient that the output decides."""
    out, logsumexp = relative_attention.forward(call)
    assert out.transpose(1, 2).is_contiguous()
    found = new_gradients(call, **changes)
    relative_attention.backward(call, change_d_out(out), out, logsumexp, found)
    sums = [] if found.table_sums is None else [found.table_sums.sum(0)]
    return [out, found.queries, found.keys, found.values, *sums]


def assert_equals_reference(case: Case) -> None:
    inputs = case.inputs()
    found = results(case.call(inputs))
    expected = case.expected(inputs, found[0].cos())
    for name, one, other in zip(NAMES[: len(found)], found, expected, strict=True):
        assert_near(one, other, name, CLOSE[case.dtype])
    # A query that sees nothing finds zero and gives no gradient, exactly.
    blind = ~case.seen.any(-1)
    assert not found[0][blind].any()
    assert not found[1][blind].any()


def assert_near(found: Tensor, expected: Tensor, name: str, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert found.isfinite().all(), name
    error = (found.double() - expected).norm().item()
    # Gradients of a query that sees one key are zero: what is left is rounded for each element.
    size = max(expected.norm().item(), found.numel() ** 0.5 / 10, 1)
    assert error <= tolerance * size, (name, error)


@st.composite
def cases(draw: st.DrawFn, max_queries: int = 70) -> Case:
    """Queries before, among or after their keys."""
    num_keys = draw(st.integers(1, 80))
    has_table, group = max_queries == 1 or draw(st.booleans()), 1
    if not has_table:
        group = draw(st.integers(1, 3))
    return Case(
        num_queries=draw(st.integers(1, max_queries)),
        num_keys=num_keys,
        first_query=draw(st.integers(0, num_keys + 3)),
        span=draw(st.none() | st.integers(1, 60)),
        num_rows=draw(st.integers(1, 100)) if has_table else None,
        group=group,
        first_visible=(0, draw(st.integers(0, num_keys))) if draw(st.booleans()) else None,
        size=draw(st.sampled_from([16, 32])),
        num_heads=group * (draw(st.integers(1, 2)) if max_queries == 1 else 1),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )
