"""Bias, activation and dropout, and their gradients; ReLU's also inside the product before them."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from staircase_attention.engine.kernels import activation
from staircase_attention.engine.kernels.rows import is_describable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


relu_dropout_ = partial(activation.forward, kind="relu")


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def seed_of(value: int) -> Tensor:
    return torch.tensor([value], device=DEVICE)


def assert_near(actual: Tensor, expected: Tensor, *, terms: Tensor | None = None) -> None:
    """Within the errors of the dtype of `actual`: those of its terms, where sums may cancel."""
    size = (expected if terms is None else terms).norm() + 0.1
    assert (actual.double() - expected).norm() <= CLOSE[actual.dtype] * size


@settings(max_examples=24)
@given(
    rows=st.integers(1, 70),
    width=st.integers(1, 300),
    dtype=st.sampled_from(sorted(CLOSE, key=str)),
    has_bias=st.booleans(),
    kind=st.sampled_from(["relu", "gelu", "swiglu"]),
    dropout=st.sampled_from([0.0, 0.25]),
)
def test_outputs_and_gradients_equal_float64(rows, width, dtype, has_bias, kind, dropout):
    whole = 2 * width if kind == "swiglu" else width
    before, d_inner = random(rows, whole, dtype=dtype), random(rows, width, dtype=dtype, seed=2)
    bias = random(whole, seed=1) if has_bias else None
    exact = before.double().requires_grad_()
    shifted = exact if bias is None else exact + bias.double()
    options = {"kind": kind, "dropout": dropout, "seed": seed_of(1)}
    inner = activation.forward(before, bias, **options)
    assert (inner is before) == (kind == "relu")

    *gates, value = shifted.split(width, dim=1)
    expected = silu(*gates) * value if gates else {"relu": relu, "gelu": gelu}[kind](value)
    # What is dropped is zero; what is kept is scaled.
    expected = expected * (inner != 0) / (1 - dropout) if dropout else expected
    assert_near(inner, expected.detach())
    (d_expected,) = torch.autograd.grad(expected, exact, d_inner.double())
    sums = torch.zeros(3, whole, device=DEVICE)
    # A ReLU has left all that it needs.
    again_options = options | ({"seed": None} if kind == "relu" else {})
    for count in (1, 2):
        again, d_before = activation.backward(
            d_inner, before, None if kind == "relu" else bias, sums=sums, **again_options
        )
        assert torch.equal(inner, again)
        assert_near(d_before, d_expected)
        assert_near(sums.sum(0), count * d_expected.sum(0), terms=d_expected)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_rows_are_independent(dtype, dropout):
    inner = torch.ones(130, 300, device=DEVICE, dtype=dtype)
    kept = relu_dropout_(inner, None, dropout=dropout, seed=seed_of(7)) != 0
    spread = dropout * (1 - dropout)
    assert abs(kept.double().mean().item() - (1 - dropout)) < 4 * (spread / kept.numel()) ** 0.5
    # Rows are worked on in groups that share a counter; no two of them may share a mask.
    assert len({tuple(row) for row in kept.int().tolist()}) == len(kept)
    correlation = (kept[1:].double() - (1 - dropout)) * (kept[:-1].double() - (1 - dropout))
    assert abs(correlation.mean().item()) < 4 * spread / kept.numel() ** 0.5


def test_dropout_depends_on_the_seed_only():
    ones = torch.ones(40, 300, device=DEVICE)
    one, same, *others = (
        relu_dropout_(ones.clone(), None, dropout=0.5, seed=seed_of(seed))
        for seed in (3, 3, 4, 3 + 2**32)
    )
    assert torch.equal(one, same)
    assert not any(torch.equal(one, other) for other in others)


def test_nan_stays_nan():
    inner = torch.full((2, 3), torch.nan, device=DEVICE)
    assert relu_dropout_(inner, None, dropout=0.0, seed=None).isnan().all()


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
def test_the_gated_product_is_the_product_where_the_gate_is_open(shape, num_programs, monkeypatch):
    monkeypatch.setattr(activation, "fits", lambda *_: True)
    gradients, weights, gates = draw_product(*shape)
    sums, again = (torch.ones(num_programs, shape[2], device=DEVICE) for _ in range(2))
    launch = partial(activation.gated_product, gradients, weights, gates, dropout=0.2)
    found = launch(sums=sums)
    expected = gradients.double() @ weights.double() * 1.25 * (gates > 0)
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()
    assert not found[gates <= 0].any()
    total = sums.double().sum(0) - num_programs
    assert (total - expected.sum(0)).norm() <= 1e-5 * expected.norm()
    assert torch.equal(launch(sums=again), found)
    assert torch.equal(sums, again)


def test_the_gated_product_without_its_kernel_is_the_same(monkeypatch):
    gradients, weights, gates = draw_product(40, 32, 48)
    slow, fast = (torch.zeros(3, 48, device=DEVICE) for _ in range(2))
    assert not activation.fits(gradients, weights, gates)
    one = activation.gated_product(gradients, weights, gates, dropout=0.5, sums=slow)
    monkeypatch.setattr(activation, "fits", lambda *_: True)
    other = activation.gated_product(gradients, weights, gates, dropout=0.5, sums=fast)
    assert (one.double() - other.double()).norm() <= 5e-3 * one.double().norm()
    assert (slow.sum(0) - fast.sum(0)).norm() <= 5e-3 * fast.sum(0).norm()


def test_bulk_copies_begin_at_multiples_of_16_bytes():
    room = torch.zeros(256, dtype=torch.bfloat16)
    assert is_describable(room[:48].view(3, 16))
    assert not is_describable(room[:36].view(3, 12))
    assert not is_describable(room.view(16, 16).T[:, :8])
    assert not is_describable(room[1:97].view(3, 32))


@pytest.mark.parametrize("num_inputs", [16, 256, 512])
def test_tiles_fit_into_shared_memory(num_inputs):
    tiles = activation.tiles(num_inputs)
    gradient, weight = tiles["ROWS"] * tiles["INPUTS"], tiles["INPUTS"] * tiles["COLUMNS"]
    gate = tiles["ROWS"] * tiles["COLUMNS"]
    staged, once = (gate, weight) if tiles["KEEPS_WEIGHTS"] else (weight, gate)
    assert 2 * (once + activation.STAGES.value * (gradient + staged)) <= 227 * 1024
