"""Residual sums and layer norms against float64 autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from staircase_attention.engine.kernels import norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
PROGRAMS = 3
KINDS = (torch.float32, torch.bfloat16)
SHAPES = ((1, 1), (7, 1), (7, 3), (1, 64), (130, 17), (7, 300), (7, 1024))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * shape[0] + shape[-1])
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Within the errors of the kind of numbers that `actual` is made of."""
    tolerance = 1e-2 if actual.dtype == torch.bfloat16 else 1e-5
    error = (actual.double() - expected).norm()
    assert error <= tolerance * (expected.norm() + 0.1), (error, expected.norm())


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not written is not a number."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(
        torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(float("nan"))
    )


@pytest.fixture(autouse=True, params=[4])
def num_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs, so that they share few rows as they would share many."""
    monkeypatch.setattr(norm, "NUM_PROGRAMS", request.param)


def arguments(
    rows: int, width: int, hidden_dtype: torch.dtype, addend_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    return (
        random(rows, width, dtype=hidden_dtype, seed=1),
        random(rows, width, dtype=addend_dtype, seed=2),
        random(width, seed=3),
        1 + random(width, seed=4),
        random(width, seed=5),
    )


def gradients(total: Tensor, weight: Tensor, d_normed: Tensor) -> list[Tensor]:
    """Those of total, weight and bias, in float64."""
    total, weight = (part.double().requires_grad_() for part in (total, weight))
    bias = torch.zeros_like(weight, requires_grad=True)
    normed = functional.layer_norm(total, total.shape[-1:], weight, bias, EPS)
    return list(torch.autograd.grad(normed, (total, weight, bias), d_normed.double()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hidden_dtype", KINDS)
@pytest.mark.parametrize("addend_dtype", KINDS)
def test_forward_adds_and_normalises_what_it_stores(shape, hidden_dtype, addend_dtype):
    hidden, addend, addend_bias, weight, bias = arguments(*shape, hidden_dtype, addend_dtype)
    before = hidden.clone()
    total, normed, mean, rstd = norm.forward(
        hidden, addend, addend_bias, weight, bias, eps=EPS, dtype=addend_dtype
    )
    assert torch.equal(hidden, before)
    assert (total.dtype, normed.dtype, mean.dtype, rstd.dtype) == (
        hidden_dtype,
        addend_dtype,
        torch.float32,
        torch.float32,
    )
    assert_near(total, hidden.double() + addend.double() + addend_bias.double())
    stored = total.double()
    expected = functional.layer_norm(stored, stored.shape[-1:], weight.double(), bias.double(), EPS)
    assert_near(normed, expected)
    assert_near(mean, stored.mean(-1))
    assert_near(rstd, (stored.var(-1, correction=0) + EPS).rsqrt())


def test_forward_without_addend_returns_hidden():
    hidden, _, _, weight, bias = arguments(7, 40, torch.float32, torch.float32)
    before = hidden.clone()
    total, normed, _, _ = norm.forward(
        hidden, None, None, weight, bias, eps=EPS, dtype=torch.float32
    )
    assert total is hidden
    assert torch.equal(hidden, before)
    assert_near(
        normed, functional.layer_norm(hidden.double(), (40,), weight.double(), bias.double(), EPS)
    )


def test_forward_without_bias_of_addend():
    hidden, addend, _, weight, bias = arguments(7, 40, torch.float32, torch.bfloat16)
    total, *_ = norm.forward(hidden, addend, None, weight, bias, eps=EPS, dtype=torch.float32)
    assert torch.equal(total, hidden + addend.float())
    with pytest.raises(ValueError, match="addend"):
        norm.forward(hidden, None, bias, weight, bias, eps=EPS, dtype=torch.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hidden_dtype", KINDS)
@pytest.mark.parametrize("addend_dtype", KINDS)
def test_backward(shape, hidden_dtype, addend_dtype):
    width = shape[1]
    hidden, addend, addend_bias, weight, bias = arguments(*shape, hidden_dtype, addend_dtype)
    total, _, mean, rstd = norm.forward(
        hidden, addend, addend_bias, weight, bias, eps=EPS, dtype=addend_dtype
    )
    d_total = random(*shape, dtype=hidden_dtype, seed=6)
    d_normed = random(*shape, dtype=addend_dtype, seed=7)
    sums = torch.zeros(PROGRAMS, 3, width, device=DEVICE)
    d_hidden, d_addend = norm.backward(
        d_total, d_normed, total, weight, mean, rstd, sums=sums, addend_dtype=addend_dtype
    )
    d_through, d_weight, d_bias = gradients(total, weight, d_normed)
    expected = d_through + d_total.double()
    assert d_hidden.dtype == hidden_dtype
    assert_near(d_hidden, expected)
    assert d_addend is not None
    assert d_addend.dtype == addend_dtype
    assert_near(d_addend, expected)
    assert (d_addend is d_hidden) == (hidden_dtype == addend_dtype)
    assert_near(sums.sum(0), torch.stack([d_weight, d_bias, expected.sum(0)]))


@pytest.mark.parametrize("programs", [1, 40])
def test_backward_without_addend_and_gradient_of_total(programs):
    total, _, _, weight, bias = arguments(130, 33, torch.float32, torch.float32)
    _, _, mean, rstd = norm.forward(total, None, None, weight, bias, eps=EPS, dtype=torch.float32)
    d_normed = random(130, 33, seed=8)
    sums = torch.zeros(programs, 3, 33, device=DEVICE)
    d_hidden, d_addend = norm.backward(
        None, d_normed, total, weight, mean, rstd, sums=sums, addend_dtype=None
    )
    d_through, d_weight, d_bias = gradients(total, weight, d_normed)
    assert d_addend is None
    assert_near(d_hidden, d_through)
    assert_near(sums.sum(0), torch.stack([d_weight, d_bias, torch.zeros_like(d_bias)]))


@pytest.mark.parametrize("more_dtype", KINDS)
def test_backward_adds_two_gradients_of_the_total(more_dtype):
    total, _, _, weight, bias = arguments(30, 33, torch.float32, torch.float32)
    _, _, mean, rstd = norm.forward(total, None, None, weight, bias, eps=EPS, dtype=torch.float32)
    d_total, d_normed = random(30, 33, seed=6), random(30, 33, seed=8)
    d_more = random(33, 30, dtype=more_dtype, seed=9).T
    sums = torch.zeros(PROGRAMS, 3, 33, device=DEVICE)
    d_hidden, d_addend = norm.backward(
        d_total,
        d_normed,
        total,
        weight,
        mean,
        rstd,
        sums=sums,
        addend_dtype=torch.bfloat16,
        d_more=d_more,
    )
    d_through, *others = gradients(total, weight, d_normed)
    expected = d_through + d_total.double() + d_more.double()
    assert_near(d_hidden, expected)
    assert d_addend is not None
    assert_near(d_addend, expected)
    assert_near(sums.sum(0), torch.stack([*others, expected.sum(0)]))


@pytest.mark.parametrize("num_programs", [264], indirect=True)
def test_a_row_for_every_program():
    test_backward((30, 17), torch.float32, torch.bfloat16)


def test_sums_accumulate_and_calls_repeat_exactly():
    total, _, _, weight, bias = arguments(130, 33, torch.float32, torch.float32)
    _, _, mean, rstd = norm.forward(total, None, None, weight, bias, eps=EPS, dtype=torch.float32)
    d_normed = random(130, 33, seed=8)
    once, twice = (torch.zeros(PROGRAMS, 3, 33, device=DEVICE) for _ in range(2))
    results = [
        norm.backward(
            None, d_normed, total, weight, mean, rstd, sums=sums, addend_dtype=torch.float32
        )[0]
        for sums in (once, twice, twice)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(2 * once, twice)


@pytest.mark.parametrize("rows", [1, 64, 5000, 65536])
@pytest.mark.parametrize("width", [1, 5, 256, 300, 1024, 8192])
def test_tiles_are_full_powers_of_two(rows, width):
    num_rows, columns, num_warps = norm._tile(
        rows, width, norm.BACKWARD_ELEMENTS, norm.BACKWARD_PER_WARP
    )
    assert all(size & (size - 1) == 0 for size in (num_rows, columns, num_warps))
    assert columns >= width
    assert num_rows * columns <= max(norm.BACKWARD_ELEMENTS, columns)


@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (130, 5)])
@pytest.mark.parametrize("hidden_dtype", KINDS)
@pytest.mark.parametrize("addend_dtype", KINDS)
def test_add_and_its_backward(shape, hidden_dtype, addend_dtype):
    hidden, addend, addend_bias, _, _ = arguments(*shape, hidden_dtype, addend_dtype)
    total = norm.add(hidden, addend, addend_bias)
    assert total.dtype == hidden_dtype
    assert_near(total, hidden.double() + addend.double() + addend_bias.double())
    assert_near(norm.add(hidden, addend, None), hidden.double() + addend.double())

    sums = torch.zeros(PROGRAMS, shape[1], device=DEVICE)
    for count in (1, 2):
        d_addend = norm.add_backward(hidden, sums=sums, addend_dtype=addend_dtype)
        assert d_addend.dtype == addend_dtype
        assert_near(d_addend, hidden.double())
        assert_near(sums.sum(0), count * hidden.double().sum(0))
    assert torch.equal(
        norm.add_backward(hidden, sums=None, addend_dtype=addend_dtype), hidden.to(addend_dtype)
    )


def test_new_sums():
    assert norm.new_sums(5, device=DEVICE).shape == (norm.NUM_PROGRAMS, 3, 5)
    assert norm.new_add_sums(5, device=DEVICE).shape == (norm.NUM_PROGRAMS, 5)
    assert not norm.new_sums(5, device=DEVICE).any()
    assert not norm.new_add_sums(5, device=DEVICE).any()
