"""Muon for stacks of matrices is PyTorch's Muon, whether its rate is a tensor or a number."""

import pytest
import torch

from staircase_attention.training.optimizer import StackedMuon, orthogonalised

SHAPES = [(6, 4), (4, 6), (6, 4), (5, 5), (4, 6)]
SETTINGS = {"weight_decay": 0.1, "momentum": 0.9}


def matrices_and_twins():
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [[one.clone().requires_grad_() for one in made] for _ in range(2)]


@pytest.mark.parametrize("is_tensor", [True, False])
def test_it_is_pytorch_s_at_any_rate(is_tensor, monkeypatch):
    # PyTorch's turns matrices in bfloat16 on a CPU too.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self)
    matrices, twins = matrices_and_twins()
    rate = torch.tensor(0.0, dtype=torch.float64)
    stacked = StackedMuon(matrices, lr=rate if is_tensor else 0.0, **SETTINGS)
    usual = torch.optim.Muon(twins, adjust_lr_fn="match_rms_adamw", **SETTINGS)
    generator = torch.Generator().manual_seed(1)
    for number in (1e-2, 0.0, 3e-3, 2e-1):
        for one, other in zip(matrices, twins, strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            other.grad = one.grad.clone()
        if is_tensor:
            rate.fill_(number)
        else:
            stacked.param_groups[0]["lr"] = number
        stacked.step()
        usual.param_groups[0]["lr"] = number
        usual.step()
        for one, other in zip(matrices, twins, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(
                stacked.state[one]["momentum_buffer"], usual.state[other]["momentum_buffer"]
            )
            other.data.copy_(one.data)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_an_update_that_is_not_finite_is_left_out(num_steps):
    matrices, twins = matrices_and_twins()
    rate = torch.tensor(0.1, dtype=torch.float64)
    with_it, without = (StackedMuon(some, lr=rate, **SETTINGS) for some in (matrices, twins))
    for number in range(num_steps + 2):
        is_finite = number != num_steps
        for one, other in zip(matrices, twins, strict=True):
            other.grad = torch.full_like(one, number + 1.0) + torch.eye(*one.shape)
            one.grad = other.grad.clone() if is_finite else torch.full_like(one, torch.nan)
        with_it.found_inf = torch.tensor(0.0 if is_finite else 1.0)
        with_it.step()
        if is_finite:
            without.step()
    for one, other in zip(matrices, twins, strict=True):
        assert torch.equal(one, other)


def test_a_matrix_without_a_gradient_stays_as_it_is():
    matrices, twins = matrices_and_twins()
    muon = StackedMuon(matrices, lr=torch.tensor(0.1), **SETTINGS)
    for one in matrices[1:]:
        one.grad = torch.ones_like(one)
    muon.step()
    assert [torch.equal(*pair) for pair in zip(matrices, twins, strict=True)] == [
        True,
        *[False] * 4,
    ]


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 32), (2, 32, 8)])
def test_singular_values_come_near_one(shape):
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalised(stack).float())
    assert values.min() > 0.5
    assert values.max() < 1.3
