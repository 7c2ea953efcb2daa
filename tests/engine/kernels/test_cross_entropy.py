"""Cross-entropy in chunks against the one that keeps all logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from staircase_attention.engine.kernels import cross_entropy
from staircase_attention.engine.kernels.cross_entropy import linear_cross_entropy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IGNORED = -1
SHAPES = ((1, 1, 1), (7, 3, 5), (130, 17, 23), (7, 8, 300), (5, 8, 5001))


@pytest.fixture(params=["fused", "plain"], autouse=True)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows are scored either way, and whatever is not written is not a number."""
    if request.param == "plain":
        monkeypatch.setattr(cross_entropy, "_fuses", lambda hidden: False)
    empty, empty_like = torch.empty, torch.empty_like

    def poisoned(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 77)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poisoned(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poisoned(empty_like(*a, **k)))
    return request.param


def arguments(
    rows: int, width: int, size: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + size)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator).to(DEVICE, dtype).requires_grad_()
        for shape in ((rows, width), (size, width), (size,))
    )
    targets = torch.randint(size, (rows,), generator=generator)
    targets[1::3] = IGNORED
    return hidden, weight, bias, targets.to(DEVICE)


def expected(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> list[Tensor]:
    """Loss, wrong answers and the gradients of what is given, in float64."""
    leaves = [
        part.detach().double().requires_grad_()
        for part in (hidden, weight, bias)
        if part is not None
    ]
    logits = functional.linear(*leaves)
    loss = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    wrong = ((logits.argmax(-1) != targets) & (targets != IGNORED)).sum()
    return [loss.detach(), wrong, *torch.autograd.grad(loss, leaves)]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert (actual.double() - expected).norm() <= tolerance * (expected.norm() + 0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_rows", [None, 3])
@pytest.mark.parametrize("has_bias", [True, False])
def test_float32(shape, chunk_rows, has_bias):
    hidden, weight, bias, targets = arguments(*shape)
    given = bias if has_bias else None
    chunk_rows = chunk_rows if shape[0] < 100 or chunk_rows is None else 50
    loss, num_wrong = linear_cross_entropy(
        hidden, weight, given, targets, ignore_index=IGNORED, chunk_rows=chunk_rows
    )
    answer, wrong, *gradients = expected(hidden, weight, given, targets)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert (num_wrong.dtype, num_wrong.shape) == (torch.int64, ())
    assert not num_wrong.requires_grad
    assert_near(loss, answer)
    assert num_wrong == wrong
    (loss / 7).backward()
    parts = (hidden, weight, bias) if has_bias else (hidden, weight)
    for part, gradient in zip(parts, gradients, strict=True):
        assert_near(part.grad, gradient / 7)


@pytest.mark.parametrize("kept_whole", [True, False])
def test_bfloat16(kept_whole):
    hidden, weight, bias, targets = arguments(130, 17, 23, torch.bfloat16)
    if kept_whole:
        weight, bias = (part.detach().float().requires_grad_() for part in (weight, bias))
    loss, num_wrong = linear_cross_entropy(
        hidden, weight, bias, targets, ignore_index=IGNORED, chunk_rows=50
    )
    answer, wrong, *gradients = expected(hidden, weight, bias, targets)
    assert loss.dtype == torch.float32
    assert_near(loss, answer, 1e-2)
    assert abs(num_wrong - wrong) <= 2
    loss.backward()
    for part, gradient in zip((hidden, weight, bias), gradients, strict=True):
        assert part.grad.dtype == part.dtype
        assert_near(part.grad, gradient, 1e-2)


def test_float64():
    hidden, weight, bias, targets = arguments(7, 3, 5, torch.float64)
    loss, _ = linear_cross_entropy(
        hidden, weight, bias, targets, ignore_index=IGNORED, chunk_rows=3
    )
    assert loss.dtype == torch.float64
    answer, _, *gradients = expected(hidden, weight, bias, targets)
    assert_near(loss, answer, 1e-12)
    for actual, gradient in zip(
        torch.autograd.grad(loss, (hidden, weight, bias)), gradients, strict=True
    ):
        assert_near(actual, gradient, 1e-12)


def test_first_of_equal_maxima_is_the_choice():
    hidden = torch.ones(3, 1, device=DEVICE)
    weight = torch.zeros(2500, 1, device=DEVICE)
    weight[[3, 2, 2400]] = 1.0
    targets = torch.tensor([2, 3, 2400], device=DEVICE)
    _, num_wrong = linear_cross_entropy(hidden, weight, None, targets, ignore_index=IGNORED)
    assert num_wrong == 2


def test_large_logits_and_minus_infinity():
    hidden = torch.ones(2, 1, device=DEVICE)
    weight = torch.zeros(5, 1, device=DEVICE)
    bias = torch.tensor([1e4, -1e4, float("-inf"), 1e4, 0.0], device=DEVICE)
    targets = torch.tensor([0, 4], device=DEVICE)
    loss, num_wrong = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    halves = 2 * torch.tensor(2.0, device=DEVICE, dtype=torch.float64).log()
    assert_near(loss, 1e4 + halves)
    assert num_wrong == 1


def test_all_rows_ignored():
    hidden, weight, bias, targets = arguments(7, 3, 5)
    loss, num_wrong = linear_cross_entropy(
        hidden, weight, bias, torch.full_like(targets, IGNORED), ignore_index=IGNORED
    )
    assert loss == 0
    assert num_wrong == 0
    loss.backward()
    assert not any(part.grad.any() for part in (hidden, weight, bias))


def test_no_rows():
    hidden, weight, bias, targets = arguments(7, 3, 5)
    loss, num_wrong = linear_cross_entropy(
        hidden[:0], weight, bias, targets[:0], ignore_index=IGNORED
    )
    assert loss == 0
    assert num_wrong == 0
    loss.backward()
    assert not weight.grad.any()


def test_only_what_is_wanted():
    hidden, weight, bias, targets = arguments(7, 3, 5)
    *_, expected_weight, _ = expected(hidden, weight, bias, targets)
    hidden, bias = hidden.detach(), bias.detach()
    loss, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    loss.backward()
    assert_near(weight.grad, expected_weight)
    assert hidden.grad is None
    with torch.no_grad():
        quiet, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    assert not quiet.requires_grad
    assert torch.equal(quiet, loss.detach())


def test_without_gradients_no_product_is_made_for_them(monkeypatch):
    hidden, weight, bias, targets = arguments(7, 3, 5)

    def refuse(*_: Tensor) -> None:
        raise AssertionError

    monkeypatch.setattr(cross_entropy, "add_product", refuse)
    with torch.no_grad():
        linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    with pytest.raises(AssertionError):
        linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)


def test_backward_twice_and_exactly_again():
    hidden, weight, bias, targets = arguments(130, 17, 23)
    results = []
    for _ in range(2):
        loss, _ = linear_cross_entropy(
            hidden, weight, bias, targets, ignore_index=IGNORED, chunk_rows=50
        )
        for _ in range(2):
            results.append(torch.autograd.grad(loss, (hidden, weight, bias), retain_graph=True))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_autocast_changes_nothing():
    hidden, weight, bias, targets = arguments(7, 3, 5)
    plain, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        loss, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    assert torch.equal(plain, loss)


@pytest.mark.parametrize("size", [1, 5, 100, 2050])
def test_what_lies_between_rows_is_of_no_account(size):
    logits = torch.full((7, size + 9), float("nan"), device=DEVICE)[:, :size]
    logits.copy_(torch.randn(7, size))
    targets = torch.tensor([0, IGNORED, 0, size - 1, size // 2, 0, 0], device=DEVICE)
    results = []
    for score in (cross_entropy._score_rows, cross_entropy._score_rows_fused):
        slopes = logits.clone() if score is cross_entropy._score_rows else logits
        losses, wrong = torch.empty(7, device=DEVICE), torch.empty(7, device=DEVICE).char()
        score(slopes, targets, losses, wrong, ignore_index=IGNORED, overwrites=True)
        results.append((slopes.double(), losses.double(), wrong.double()))
    for plain, fused in zip(*results, strict=True):
        assert_near(fused, plain)


def test_chunks_are_of_about_64_mebibytes():
    assert cross_entropy._default_chunk(50_257, 2) == 640
    assert cross_entropy._default_chunk(10**9, 4) == cross_entropy.ROW_MULTIPLE
