"""A lookup whose gradient is a product has PyTorch's vectors and gradients."""

import pytest
import torch
from torch import nn

from staircase_attention.layers.embedding import Lookup


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (2, 0), (5,)])
def test_vectors_and_gradients_are_pytorch_s(shape):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    # One symbol never comes.
    tokens = torch.randint(5, shape, generator=generator)
    weights = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    found, expected = Lookup.apply(table, tokens), nn.functional.embedding(tokens, table)
    assert torch.equal(found, expected)
    [gradient], [usual] = (
        torch.autograd.grad((vectors * weights).sum(), table) for vectors in (found, expected)
    )
    torch.testing.assert_close(gradient, usual, rtol=1e-12, atol=1e-12)


def test_gradients_can_be_differentiated():
    table = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[0, 2, 2], [1, 0, 2]])
    torch.autograd.gradcheck(lambda rows: Lookup.apply(rows, tokens) ** 3, table)
    torch.autograd.gradgradcheck(lambda rows: Lookup.apply(rows, tokens) ** 3, table)


def test_gradients_are_not_rounded_where_products_are():
    table = torch.randn(3, 2, requires_grad=True)
    tokens = torch.tensor([[0, 2, 2]])
    with torch.autocast("cpu", torch.bfloat16):
        vectors = Lookup.apply(table, tokens)
        [gradient] = torch.autograd.grad((vectors * (1 + 2**-12)).sum(), table)
    assert gradient[0, 0] == 1 + 2**-12
