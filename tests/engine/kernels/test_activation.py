"""Bias, ReLU and dropout in place, and their gradients."""

import pytest
import torch
from torch import Tensor

from staircase_attention.engine.kernels import activation

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS = (torch.float32, torch.bfloat16)
SHAPES = ((1, 1), (7, 300), (130, 17))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def seed_of(value: int) -> Tensor:
    return torch.tensor([value], device=DEVICE)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = 1e-2 if actual.dtype == torch.bfloat16 else 1e-5
    assert (actual.double() - expected).norm() <= tolerance * (expected.norm() + 0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_without_dropout(shape, dtype, has_bias):
    inner = random(*shape, dtype=dtype)
    bias = random(shape[1], seed=1)
    expected = (inner.double() + (bias.double() if has_bias else 0)).relu()
    result = activation.relu_dropout_(inner, bias if has_bias else None, dropout=0.0, seed=None)
    assert result is inner
    assert_near(result, expected)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_scales_what_it_keeps(dtype, dropout):
    inner = random(130, 300, dtype=dtype).abs() + 0.5
    result = activation.relu_dropout_(inner.clone(), None, dropout=dropout, seed=seed_of(7))
    kept = result != 0
    assert_near(result[kept], inner[kept].double() / (1 - dropout))
    sigma = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - dropout)) < 4 * sigma
    # Rows are worked on in groups that share a counter; no two of them may share a mask.
    assert len({tuple(row) for row in kept.int().tolist()}) == len(kept)
    correlation = (kept[1:].double() - (1 - dropout)) * (kept[:-1].double() - (1 - dropout))
    assert abs(correlation.mean().item()) < 4 * dropout * (1 - dropout) / kept.numel() ** 0.5


def test_dropout_depends_on_the_seed_only():
    ones = torch.ones(40, 300, device=DEVICE)
    results = [
        activation.relu_dropout_(ones.clone(), None, dropout=0.5, seed=seed_of(seed))
        for seed in (3, 3, 4, 3 + 2**32)
    ]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


@pytest.mark.parametrize("shape", [*SHAPES, (40, 1024)])
@pytest.mark.parametrize("dtype", KINDS)
def test_backward(shape, dtype):
    before = random(*shape, dtype=dtype)
    inner = activation.relu_dropout_(before.clone(), None, dropout=0.25, seed=seed_of(1))
    d_inner = random(*shape, dtype=dtype, seed=2)
    leaf = before.double().requires_grad_()
    mask = (inner != 0) / 0.75
    (expected,) = torch.autograd.grad((leaf.relu() * mask).sum(), leaf, None)
    expected = expected * d_inner.double()
    sums = torch.zeros(3, shape[1], device=DEVICE)
    result = d_inner.clone()
    assert activation.relu_backward_(result, inner, scale=1 / 0.75, sums=sums) is result
    assert_near(result, expected)
    assert_near(sums.sum(0), expected.sum(0))
    once = sums.clone()
    again = activation.relu_backward_(d_inner.clone(), inner, scale=1 / 0.75, sums=sums)
    assert torch.equal(again, result)
    assert torch.equal(sums, 2 * once)


def test_what_is_not_a_number_stays_so():
    inner = torch.full((2, 3), float("nan"), device=DEVICE)
    assert activation.relu_dropout_(inner, None, dropout=0.0, seed=None).isnan().all()


def test_new_sums():
    sums = activation.new_sums(5, device=DEVICE)
    assert sums.shape == (activation.NUM_PROGRAMS, 5)
    assert not sums.any()


def test_refuses_what_it_cannot_do():
    inner = torch.ones(4, 3, device=DEVICE)
    with pytest.raises(ValueError, match="contiguous"):
        activation.relu_dropout_(inner.T, None, dropout=0.0, seed=None)
    with pytest.raises(ValueError, match="contiguous"):
        activation.relu_backward_(inner.T, inner.T, scale=1.0, sums=torch.zeros(1, 4))
    with pytest.raises(ValueError, match="less than 1"):
        activation.relu_dropout_(inner, None, dropout=1.0, seed=seed_of(1))
    with pytest.raises(ValueError, match="seed"):
        activation.relu_dropout_(inner, None, dropout=0.5, seed=None)
