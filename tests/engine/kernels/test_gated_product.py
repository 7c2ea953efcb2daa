"""The product before a ReLU's backward, with the gate in it."""

import pytest
import torch

from staircase_attention.engine.kernels import gated_product
from staircase_attention.engine.kernels.gated_product import Tiles

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SHAPES = [(1, 16, 16), (70, 64, 136), (130, 256, 384), (300, 320, 520), (150, 1024, 256)]
"""Rows, inputs and columns."""


def draw(rows, inputs, width):
    generator = torch.Generator().manual_seed(rows)
    gradients, weights, gates = (
        torch.randn(shape, generator=generator).to(DEVICE, torch.bfloat16)
        for shape in ((rows, inputs), (inputs, width), (rows, width))
    )
    return gradients, weights, gates.relu()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_programs", [1, 132])
def test_it_is_the_product_where_the_gate_is_open(shape, num_programs):
    gradients, weights, gates = draw(*shape)
    sums = torch.ones(num_programs, shape[2], device=DEVICE)
    found = gated_product.launch(gradients, weights, gates, scale=1.25, sums=sums)
    expected = gradients.double() @ weights.double() * 1.25 * (gates > 0)
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()
    assert torch.equal(found == 0, (gates <= 0) | (found == 0))
    total = sums.double().sum(0) - num_programs
    assert (total - expected.sum(0)).norm() <= 1e-5 * expected.norm()
    again = torch.ones_like(sums)
    assert torch.equal(
        gated_product.launch(gradients, weights, gates, scale=1.25, sums=again), found
    )
    assert torch.equal(sums, again)


def test_the_slow_way_is_the_same():
    gradients, weights, gates = draw(40, 32, 48)
    slow, fast = (torch.zeros(3, 48, device=DEVICE) for _ in range(2))
    assert not gated_product.fits(gradients, weights, gates)
    one = gated_product.gated_product(gradients, weights, gates, scale=2.0, sums=slow)
    other = gated_product.launch(gradients, weights, gates, scale=2.0, sums=fast)
    assert (one.double() - other.double()).norm() <= 5e-3 * one.double().norm()
    assert (slow.sum(0) - fast.sum(0)).norm() <= 5e-3 * fast.sum(0).norm()


def test_rows_that_begin_between_multiples_of_16_bytes_go_the_slow_way():
    assert gated_product.can_be_copied(torch.zeros(3, 16, dtype=torch.bfloat16))
    assert not gated_product.can_be_copied(torch.zeros(3, 12, dtype=torch.bfloat16))
    assert not gated_product.can_be_copied(torch.zeros(16, 16, dtype=torch.bfloat16).T[:, :8])
    assert not gated_product.can_be_copied(torch.zeros(100, dtype=torch.bfloat16)[1:97].view(3, 32))


@pytest.mark.parametrize("num_inputs", [16, 256, 512])
def test_tiles_fit_the_memory_of_a_processor(num_inputs):
    tiles = Tiles.of(num_inputs)
    gradient, weight = tiles.rows * tiles.inputs, tiles.inputs * tiles.columns
    gate = tiles.rows * tiles.columns
    if tiles.keeps_weights:
        numbers = weight + tiles.num_stages * (gradient + gate)
    else:
        numbers = tiles.num_stages * (gradient + weight) + gate
    assert 2 * numbers <= 227 * 1024
