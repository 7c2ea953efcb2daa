"""Cross-entropy in chunks against the one that keeps all logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from staircase_attention.engine.kernels import cross_entropy
from staircase_attention.engine.kernels.cross_entropy import linear_cross_entropy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IGNORED = -1
# CPUs without bfloat16 say so once.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


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


def expected(targets: Tensor, *parts: Tensor) -> list[Tensor]:
    """Loss, wrong answers and the gradients of what is given, in float64."""
    leaves = [part.detach().double().requires_grad_() for part in parts]
    logits = functional.linear(*leaves)
    loss = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    wrong = ((logits.argmax(-1) != targets) & (targets != IGNORED)).sum()
    return [loss.detach(), wrong, *torch.autograd.grad(loss, leaves)]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert (actual.double() - expected).norm() <= tolerance * (expected.norm() + 0.1)


@pytest.mark.parametrize(
    ("shape", "chunk_rows"),
    [
        ((1, 1, 1), None),
        ((7, 3, 5), 3),
        ((130, 17, 23), 50),
        ((7, 8, 300), None),
        ((5, 8, 5001), 3),
    ],
)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("has_bias", [True, False])
def test_loss_and_gradients_equal_float64(shape, chunk_rows, dtype, has_bias, monkeypatch):
    if chunk_rows is not None:
        monkeypatch.setattr(cross_entropy, "_rows_per_chunk", lambda *_: chunk_rows)
    hidden, weight, bias, targets = arguments(*shape, dtype)
    parts = [hidden, weight, *([bias] if has_bias else [])]
    loss, num_wrong = linear_cross_entropy(
        hidden, weight, bias if has_bias else None, targets, ignore_index=IGNORED
    )
    answer, wrong, *gradients = expected(targets, *parts)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert (num_wrong.dtype, num_wrong.shape) == (torch.int64, ())
    assert not num_wrong.requires_grad
    assert_near(loss, answer, CLOSE[dtype])
    assert abs(num_wrong - wrong) <= (2 if dtype == torch.bfloat16 else 0)
    (loss / 7).backward()
    for part, gradient in zip(parts, gradients, strict=True):
        assert part.grad.dtype == dtype
        assert_near(part.grad, gradient / 7, CLOSE[dtype])


def test_weights_in_float32_keep_their_gradients_in_float32():
    hidden, weight, bias, targets = arguments(130, 17, 23, torch.bfloat16)
    weight, bias = (part.detach().float().requires_grad_() for part in (weight, bias))
    loss, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    loss.backward()
    *_, d_weight, d_bias = expected(targets, hidden, weight, bias)
    for part, gradient in ((weight, d_weight), (bias, d_bias)):
        assert part.grad.dtype == torch.float32
        assert_near(part.grad, gradient, 1e-2)


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


@pytest.mark.parametrize("num_rows", [7, 0])
def test_rows_that_are_all_ignored_or_missing_give_zeros(num_rows):
    hidden, weight, bias, targets = arguments(7, 3, 5)
    targets = torch.full_like(targets, IGNORED)[:num_rows]
    loss, num_wrong = linear_cross_entropy(
        hidden[:num_rows], weight, bias, targets, ignore_index=IGNORED
    )
    assert loss == 0
    assert num_wrong == 0
    loss.backward()
    assert not any(part.grad.any() for part in (hidden, weight, bias))


def test_only_gradients_that_are_needed_are_computed(monkeypatch):
    hidden, weight, bias, targets = arguments(7, 3, 5)
    *_, d_weight, _ = expected(targets, hidden, weight, bias)
    hidden, bias = hidden.detach(), bias.detach()
    loss, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    loss.backward()
    assert_near(weight.grad, d_weight)
    assert hidden.grad is None

    monkeypatch.setattr(cross_entropy, "add_product", None)
    with torch.no_grad():
        quiet, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
    assert not quiet.requires_grad
    assert torch.equal(quiet, loss.detach())
    with pytest.raises(TypeError):
        linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)


def test_backward_twice_again_and_under_autocast_is_exactly_the_same(monkeypatch):
    monkeypatch.setattr(cross_entropy, "_rows_per_chunk", lambda *_: 50)
    hidden, weight, bias, targets = arguments(130, 17, 23)
    results = []
    for autocasts in (False, True):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=autocasts):
            loss, _ = linear_cross_entropy(hidden, weight, bias, targets, ignore_index=IGNORED)
        for _ in range(2):
            gradients = torch.autograd.grad(loss, (hidden, weight, bias), retain_graph=True)
            results.append((loss, *gradients))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("size", [1, 5, 100, 2050])
def test_what_lies_between_rows_is_not_counted(size):
    logits = torch.full((7, size + 9), torch.nan, device=DEVICE)[:, :size]
    logits.copy_(torch.randn(7, size, generator=torch.Generator().manual_seed(size)))
    targets = torch.tensor([0, IGNORED, 0, size - 1, size // 2, 0, 0], device=DEVICE)
    exact = logits.double().requires_grad_()
    options = {"ignore_index": IGNORED, "reduction": "none"}
    expected = functional.cross_entropy(exact, targets, **options)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    is_wrong = (exact.argmax(-1) != targets) & (targets != IGNORED)
    losses, wrong = torch.empty(7, device=DEVICE), torch.empty(7, device=DEVICE).char()
    cross_entropy.score_rows(logits, targets, losses, wrong, ignore_index=IGNORED, overwrites=True)
    assert_near(logits, slopes)
    assert_near(losses, expected.detach())
    assert torch.equal(wrong.bool(), is_wrong)


def test_chunks_have_about_64_mebibytes():
    assert cross_entropy._rows_per_chunk(50_257, 2) == 640
    assert cross_entropy._rows_per_chunk(10**9, 4) == cross_entropy.ROW_MULTIPLE
