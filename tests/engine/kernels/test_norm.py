"""Residual sums and layer norms against float64 autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from staircase_attention.engine.kernels import norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = st.sampled_from(sorted(CLOSE, key=str))
# No rows of 1 or 2 elements: their norms do not depend on them, so that nothing is left but
# rounding errors, multiplied by up to 1 / sqrt(EPS) = 316.
SHAPES = st.sampled_from([(1, 3), (7, 5), (1, 64), (130, 17), (7, 300), (7, 1024)])


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """Few programs, so that they share few rows as they would share many."""
    monkeypatch.setattr(norm, "NUM_PROGRAMS", 4)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * shape[0] + shape[-1])
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Within the errors of the dtype of `actual`."""
    error = (actual.double() - expected).norm()
    assert error <= CLOSE[actual.dtype] * (expected.norm() + 0.1), (error, expected.norm())


class Arguments:
    """Drawn arguments of a sum and its norm; each addition may be missing."""

    def __init__(
        self, shape, hidden_dtype, addend_dtype, *, has_bias=True, has_addend=True, centres=True
    ):
        self.centres = centres
        self.hidden = random(*shape, dtype=hidden_dtype, seed=1)
        self.addend = random(*shape, dtype=addend_dtype, seed=2) if has_addend else None
        self.addend_bias = random(shape[1], seed=3) if has_addend and has_bias else None
        self.weight, self.bias = 1 + random(shape[1], seed=4), random(shape[1], seed=5)
        self.d_normed = random(*shape, dtype=addend_dtype, seed=7)

    @property
    def total(self) -> Tensor:
        parts = (self.hidden, self.addend, self.addend_bias)
        return sum(part.double() for part in parts if part is not None)

    def norm(self, total: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.centres:
            return functional.layer_norm(total, total.shape[-1:], weight, bias, EPS)
        return functional.rms_norm(total, total.shape[-1:], weight, EPS) + bias

    def forward(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return norm.forward(
            *(self.hidden, self.addend, self.addend_bias, self.weight, self.bias),
            eps=EPS,
            dtype=dtype,
            centres=self.centres,
        )

    def gradients(self, total: Tensor) -> list[Tensor]:
        """Those of total, weight and bias, in float64."""
        leaves = [one.double().requires_grad_() for one in (total, self.weight, self.bias)]
        return list(torch.autograd.grad(self.norm(*leaves), leaves, self.d_normed.double()))


@settings(max_examples=20)
@given(
    shape=SHAPES,
    hidden_dtype=DTYPES,
    addend_dtype=DTYPES,
    has_addend=st.booleans(),
    has_bias=st.booleans(),
    num_gradients=st.integers(0, 2),
    num_programs=st.sampled_from([1, 3, 40]),
    centres=st.booleans(),
)
def test_outputs_and_gradients_equal_float64(
    shape, hidden_dtype, addend_dtype, has_addend, has_bias, num_gradients, num_programs, centres
):
    options = {"has_bias": has_bias, "has_addend": has_addend, "centres": centres}
    given = Arguments(shape, hidden_dtype, addend_dtype, **options)
    before = given.hidden.clone()
    total, normed, mean, rstd = given.forward(addend_dtype)
    assert torch.equal(given.hidden, before)
    assert (total is given.hidden) == (not has_addend)
    assert (total.dtype, normed.dtype) == (hidden_dtype, addend_dtype)
    assert rstd.dtype == torch.float32
    assert_near(total, given.total)
    # What is normalised is the total as it is stored.
    stored = total.double()
    assert_near(normed, given.norm(stored, given.weight.double(), given.bias.double()))
    if centres:
        assert mean.dtype == torch.float32
        assert_near(mean, stored.mean(-1))
        stored = stored - stored.mean(-1, keepdim=True)
    assert (mean is not None) == centres
    assert_near(rstd, (stored.square().mean(-1) + EPS).rsqrt())

    # One gradient of the total lies by columns.
    d_totals = [
        random(*shape, dtype=hidden_dtype, seed=6),
        random(*reversed(shape), dtype=addend_dtype, seed=9).T,
    ][:num_gradients]
    sums = torch.zeros(num_programs, 3, shape[1], device=DEVICE)
    d_total, d_more = [*d_totals, None, None][:2]
    d_hidden, d_addend = norm.backward(
        d_total,
        given.d_normed,
        total,
        given.weight,
        mean,
        rstd,
        sums=sums,
        addend_dtype=addend_dtype if has_addend else None,
        d_more=d_more,
    )
    d_through, d_weight, d_bias = given.gradients(total)
    expected = sum((one.double() for one in d_totals), start=d_through)
    assert d_hidden.dtype == hidden_dtype
    assert_near(d_hidden, expected)
    if has_addend:
        assert d_addend.dtype == addend_dtype
        assert_near(d_addend, expected)
        assert (d_addend is d_hidden) == (hidden_dtype == addend_dtype)
    else:
        assert d_addend is None
    d_addend_bias = expected.sum(0) if has_addend else torch.zeros_like(d_bias)
    assert_near(sums.sum(0), torch.stack([d_weight, d_bias, d_addend_bias]))


def test_sums_accumulate_and_calls_repeat_exactly():
    given = Arguments((130, 33), torch.float32, torch.float32, has_addend=False)
    total, _, mean, rstd = given.forward(torch.float32)
    once, twice = (torch.zeros(3, 3, 33, device=DEVICE) for _ in range(2))
    one, *others = (
        norm.backward(
            None, given.d_normed, total, given.weight, mean, rstd, sums=sums, addend_dtype=None
        )[0]
        for sums in (once, twice, twice)
    )
    assert all(torch.equal(one, other) for other in others)
    assert torch.equal(2 * once, twice)


@settings(max_examples=8)
@given(
    shape=st.sampled_from([(1, 1), (7, 300), (130, 5)]), hidden_dtype=DTYPES, addend_dtype=DTYPES
)
def test_a_sum_without_a_norm_and_its_gradients_equal_float64(shape, hidden_dtype, addend_dtype):
    given = Arguments(shape, hidden_dtype, addend_dtype)
    total = norm.add(given.hidden, given.addend, given.addend_bias)
    assert total.dtype == hidden_dtype
    assert_near(total, given.total)
    without = norm.add(given.hidden, given.addend, None)
    assert_near(without, given.hidden.double() + given.addend.double())

    sums = torch.zeros(3, shape[1], device=DEVICE)
    for count in (1, 2):
        d_addend = norm.add_backward(given.hidden, sums=sums, addend_dtype=addend_dtype)
        assert d_addend.dtype == addend_dtype
        assert_near(d_addend, given.hidden.double())
        assert_near(sums.sum(0), count * given.hidden.double().sum(0))
