"""Calls of attention to be tried, and how they are compared with the reference."""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from staircase_attention.attention import View, fused, reference
from staircase_attention.engine.kernels import relative_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""How far results may be from the reference in float64, in parts of its norm."""


@dataclass(frozen=True)
class Case:
    num_queries: int
    num_keys: int
    first_query: int
    span: int | None = None
    num_rows: int = 200
    first_visible: tuple[int, int] | None = None
    size: int = 16
    num_heads: int = 1
    dtype: torch.dtype = field(default=torch.float32)

    @property
    def view(self) -> View:
        visible = self.first_visible
        return View(
            num_queries=self.num_queries,
            num_keys=self.num_keys,
            first_query=self.first_query,
            span=self.span,
            first_visible=None if visible is None else torch.tensor(visible, device=DEVICE),
            device=DEVICE,
        )

    @property
    def place(self) -> dict:
        view = self.view
        return {
            "first_query": view.first_query,
            "span": view.span,
            "first_visible": view.first_visible,
        }

    def inputs(self) -> list[Tensor]:
        """Queries, keys, values and table; the first three are views, as models make them."""
        random = torch.Generator().manual_seed(self.num_queries * 31 + self.num_keys)

        def draw(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=random, dtype=torch.float64)
            return drawn.to(DEVICE, self.dtype)

        queries = draw(2, self.num_queries, self.num_heads, self.size).transpose(1, 2)
        both = draw(2, self.num_keys, 2, self.num_heads, self.size)
        keys, values = (part.transpose(1, 2) for part in both.unbind(2))
        table = draw(self.num_rows, self.size)
        return [tensor.detach().requires_grad_() for tensor in (queries, keys, values, table)]


def results(function, case: Case, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    *others, table = inputs
    out = function(*others, table=table, view=case.view, dropout=0.0)
    return [out, *torch.autograd.grad(out, inputs, out.detach().cos())]


def assert_equals_reference(case: Case) -> None:
    inputs = case.inputs()
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    assert relative_attention.fits(inputs[0])
    out, *found = results(fused.attend, case, inputs)
    # The kernels' own output decides which gradient is sent back.
    target = reference.attend(*exact[:3], table=exact[3], view=case.view, dropout=0.0)
    expected = torch.autograd.grad(target, exact, out.detach().cos().double())
    names = ("out", "queries", "keys", "values", "table")
    for name, one, other in zip(names, (out, *found), (target, *expected), strict=True):
        assert_near(one, other, name, CLOSE[case.dtype])


def assert_near(found: Tensor, expected: Tensor, name: str, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert found.isfinite().all(), name
    error = (found.double() - expected).norm().item()
    assert error <= tolerance * max(expected.norm().item(), 1), name


def dropped_attention(case: Case, inputs: list[Tensor], kept: Tensor) -> Tensor:
    """The reference, with the given weights dropped."""
    queries, keys, values, table = inputs
    unit = torch.eye(case.num_keys, device=DEVICE, dtype=torch.float64)
    vectors = table[case.view.distances.clamp(0, case.num_rows - 1)]
    scores = torch.einsum("bhqs,bhks->bhqk", queries, keys)
    scores = scores + torch.einsum("bhqs,qks->bhqk", queries, vectors)
    weights = reference.softmax_over_visible(scores / case.size**0.5, case.view)
    return (weights * kept / 0.75) @ unit @ values


@st.composite
def single_queries(draw: st.DrawFn) -> Case:
    """One query, before, among or after its keys."""
    num_keys = draw(st.integers(1, 90))
    return Case(
        num_queries=1,
        num_keys=num_keys,
        first_query=draw(st.integers(0, num_keys + 3)),
        span=draw(st.none() | st.integers(1, 60)),
        num_rows=draw(st.integers(1, 100)),
        first_visible=(0, draw(st.integers(0, num_keys))) if draw(st.booleans()) else None,
        size=draw(st.sampled_from([16, 32])),
        num_heads=draw(st.integers(1, 2)),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )
