"""Bias, activation and dropout, and their gradients; ReLU's also inside the product before them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from staircase_attention.engine.kernels import activation
from staircase_attention.engine.kernels.activation import Tiles

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def seed_of(value: int) -> Tensor:
    return torch.tensor([value], device=DEVICE)


def assert_near(actual: Tensor, expected: Tensor, *, terms: Tensor | None = None) -> None:
    """Within the errors of the dtype of `actual`: those of its terms, where sums may cancel."""
    size = (expected if terms is None else terms).norm() + 0.1
    assert (actual.double() - expected).norm() <= CLOSE[actual.dtype] * size


@settings(max_examples=16)
@given(
    rows=st.integers(1, 130),
    width=st.integers(1, 530),
    dtype=st.sampled_from(sorted(CLOSE, key=str)),
    has_bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.25]),
)
def test_outputs_and_gradients_equal_float64(rows, width, dtype, has_bias, dropout):
    before, d_out = (random(rows, width, dtype=dtype, seed=seed) for seed in (0, 2))
    bias = random(width, seed=1) if has_bias else None
    inner = before.clone()
    assert activation.relu_dropout_(inner, bias, dropout=dropout, seed=seed_of(1)) is inner
    total = before.double() + (0 if bias is None else bias.double())
    kept = (inner != 0) if dropout else 1
    assert_near(inner, total.relu() * kept / (1 - dropout))

    sums = torch.zeros(3, width, device=DEVICE)
    for count in (1, 2):
        d_inner = d_out.clone()
        scale = 1 / (1 - dropout)
        assert activation.relu_backward_(d_inner, inner, scale=scale, sums=sums) is d_inner
        expected = d_out.double() * (inner > 0) * scale
        assert_near(d_inner, expected)
        assert_near(sums.sum(0), count * expected.sum(0), terms=expected)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_rows_are_independent(dtype, dropout):
    inner = torch.ones(130, 300, device=DEVICE, dtype=dtype)
    kept = activation.relu_dropout_(inner, None, dropout=dropout, seed=seed_of(7)) != 0
    spread = dropout * (1 - dropout)
    assert abs(kept.double().mean().item() - (1 - dropout)) < 4 * (spread / kept.numel()) ** 0.5
    # Rows are worked on in groups that share a counter; no two of them may share a mask.
    assert len({tuple(row) for row in kept.int().tolist()}) == len(kept)
    correlation = (kept[1:].double() - (1 - dropout)) * (kept[:-1].double() - (1 - dropout))
    assert abs(correlation.mean().item()) < 4 * spread / kept.numel() ** 0.5


def test_dropout_depends_on_the_seed_only():
    ones = torch.ones(40, 300, device=DEVICE)
    one, same, *others = (
        activation.relu_dropout_(ones.clone(), None, dropout=0.5, seed=seed_of(seed))
        for seed in (3, 3, 4, 3 + 2**32)
    )
    assert torch.equal(one, same)
    assert not any(torch.equal(one, other) for other in others)


def test_nan_stays_nan():
    inner = torch.full((2, 3), torch.nan, device=DEVICE)
    assert activation.relu_dropout_(inner, None, dropout=0.0, seed=None).isnan().all()


def draw_product(rows: int, inputs: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((rows, inputs), (inputs, width), (rows, width))
    gradients, weights, gates = (
        random(*shape, dtype=torch.bfloat16, seed=seed) for seed, shape in enumerate(shapes)
    )
    return gradients, weights, gates.relu()


@pytest.mark.parametrize(
    "shape", [(1, 16, 16), (70, 64, 136), (130, 256, 384), (300, 320, 520)], ids=str
)
@pytest.mark.parametrize("num_programs", [1, 132])
def test_the_gated_product_is_the_product_where_the_gate_is_open(shape, num_programs):
    gradients, weights, gates = draw_product(*shape)
    sums, again = (torch.ones(num_programs, shape[2], device=DEVICE) for _ in range(2))
    launch = activation.launch_gated_product
    found = launch(gradients, weights, gates, scale=1.25, sums=sums)
    expected = gradients.double() @ weights.double() * 1.25 * (gates > 0)
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()
    assert not found[gates <= 0].any()
    total = sums.double().sum(0) - num_programs
    assert (total - expected.sum(0)).norm() <= 1e-5 * expected.norm()
    assert torch.equal(launch(gradients, weights, gates, scale=1.25, sums=again), found)
    assert torch.equal(sums, again)


def test_the_gated_product_without_its_kernel_is_the_same():
    gradients, weights, gates = draw_product(40, 32, 48)
    slow, fast = (torch.zeros(3, 48, device=DEVICE) for _ in range(2))
    assert not activation.fits(gradients, weights, gates)
    one = activation.gated_product(gradients, weights, gates, scale=2.0, sums=slow)
    other = activation.launch_gated_product(gradients, weights, gates, scale=2.0, sums=fast)
    assert (one.double() - other.double()).norm() <= 5e-3 * one.double().norm()
    assert (slow.sum(0) - fast.sum(0)).norm() <= 5e-3 * fast.sum(0).norm()


def test_bulk_copies_begin_at_multiples_of_16_bytes():
    room = torch.zeros(256, dtype=torch.bfloat16)
    assert activation.can_be_copied(room[:48].view(3, 16))
    assert not activation.can_be_copied(room[:36].view(3, 12))
    assert not activation.can_be_copied(room.view(16, 16).T[:, :8])
    assert not activation.can_be_copied(room[1:97].view(3, 32))


@pytest.mark.parametrize("num_inputs", [16, 256, 512])
def test_tiles_fit_into_shared_memory(num_inputs):
    tiles = Tiles.of(num_inputs)
    gradient, weight = tiles.rows * tiles.inputs, tiles.inputs * tiles.columns
    gate = tiles.rows * tiles.columns
    staged, once = (gate, weight) if tiles.keeps_weights else (weight, gate)
    assert 2 * (once + tiles.num_stages * (gradient + staged)) <= 227 * 1024


@settings(max_examples=12)
@given(
    rows=st.integers(1, 70),
    width=st.integers(1, 300),
    dtype=st.sampled_from(sorted(CLOSE, key=str)),
    has_bias=st.booleans(),
    is_gated=st.booleans(),
    dropout=st.sampled_from([0.0, 0.25]),
)
def test_smooth_activations_and_gradients_equal_float64(
    rows, width, dtype, has_bias, is_gated, dropout
):
    whole = 2 * width if is_gated else width
    before, d_inner = random(rows, whole, dtype=dtype), random(rows, width, dtype=dtype, seed=2)
    bias = random(whole, seed=1) if has_bias else None
    options = {"is_gated": is_gated, "dropout": dropout, "seed": seed_of(1)}
    inner = activation.smooth(before, bias, **options)
    sums = torch.zeros(3, whole, device=DEVICE) if has_bias else None
    again, d_before = activation.smooth_backward(d_inner, before, bias, sums=sums, **options)
    assert torch.equal(inner, again)

    exact = before.double().requires_grad_()
    shifted = exact if bias is None else exact + bias.double()
    *gates, value = shifted.split(width, dim=1)
    expected = silu(*gates) * value if gates else gelu(value)
    # A dropped unit is zero; what is kept is scaled.
    kept = (inner != 0).double() / (1 - dropout)
    expected = expected * kept
    assert_near(inner, expected.detach())
    if dropout and rows * width > 400:
        assert kept.mean().item() == pytest.approx(1.0, abs=0.15)
    (d_expected,) = torch.autograd.grad(expected, exact, d_inner.double())
    assert_near(d_before, d_expected)
    if sums is not None:
        assert_near(sums.sum(0), d_expected.sum(0), terms=d_expected)
