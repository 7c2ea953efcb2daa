"""The fused core is the plain one: every model, outputs and gradients, through the interpreter."""

import pytest
import torch

from building import random_tokens
from examples.alternate import AlternateCached
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.engine import accelerate, plain
from staircase_attention.engine.backend import FusedBackend
from staircase_attention.engine.fused.core import FusedCore

VOCAB_SIZE = 7
# Those that cache are in test_fused_cache.
SCHEDULES = [
    Staircase(chunk_size=3, num_passes=3),
    Ladder(num_passes=2, span=5),
    Ladder(num_passes=2, span=5, order="AABB"),
    TransformerXL(span=5),
    UniversalTransformer(num_passes=2, span=5),
    AlternateCached(chunk_size=2, num_window_chunks=4, num_passes=2),
]
CACHED = CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2)
FEEDBACK = FeedbackTransformer(span=4)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)


def build(schedule, *, dropout=0.0):
    torch.manual_seed(0)
    layers = 1 if isinstance(schedule, UniversalTransformer) else 2
    core = CoreConfig(
        width=32, num_layers=layers, num_heads=2, feed_forward_width=24, dropout=dropout
    )
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return accelerate(model)


def results(model, *, keeps_graph):
    """Logits and gradients of two segments."""
    tokens = random_tokens(1, 9)
    first, state = model(tokens[:, :5])
    second, _ = model(tokens[:, 5:], state if keeps_graph else state.detach())
    logits = torch.cat([first, second], dim=1)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(logits.shape, generator=generator).to(logits.dtype)
    gradients = torch.autograd.grad((logits * weights).sum(), list(model.parameters()))
    return [logits.detach(), *gradients]


@each_schedule
def test_outputs_and_gradients_are_those_of_the_plain_core(schedule, with_kernels):
    model = build(schedule)
    keeps_graph = not isinstance(schedule, TransformerXL)
    found = results(model, keeps_graph=keeps_graph)
    expected = results(plain(model).double(), keeps_graph=keeps_graph)
    names = ["logits", *(name for name, _ in model.named_parameters())]
    for name, exact, one in zip(names, expected, found, strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("schedule", "dropout"),
    [(SCHEDULES[1], 0.0), (CACHED, 0.3), (FEEDBACK, 0.3)],
)
def test_recomputation_changes_not_a_bit(schedule, dropout, with_kernels):
    model = build(schedule, dropout=dropout)
    twice = []
    for model.recompute in (False, True):
        torch.manual_seed(0)
        twice.append(results(model, keeps_graph=False))
    for one, other in zip(*twice, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("schedule", [CACHED, FEEDBACK])
def test_gradients_with_dropout_are_slopes(schedule, with_kernels):
    model = build(schedule, dropout=0.3)
    tokens = random_tokens(2, 7)

    def loss():
        """With the same units and weights dropped each time."""
        torch.manual_seed(5)
        logits, _ = model(tokens)
        return logits.log_softmax(-1)[:, :, 0].mean()

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    length = sum(one.square().sum() for one in gradients).sqrt()
    ends = []
    with torch.no_grad():
        for step in (1e-3, -2e-3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter += step * gradient / length
            ends.append(loss())
    slope = (ends[0] - ends[1]) / 2e-3
    torch.testing.assert_close(slope, length, rtol=1e-2, atol=0.0)


def test_second_derivatives_are_refused(with_kernels):
    model = build(TransformerXL(span=5))
    logits, _ = model(random_tokens(1, 4))
    (gradient,) = torch.autograd.grad(logits.sum(), model.embedding.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


def test_hooks_and_replaced_modules_are_honoured_by_the_plain_core(with_kernels):
    model = build(TransformerXL(span=5))
    hidden = torch.zeros(1, 2, 32)

    def is_fused():
        return isinstance(FusedBackend().runner(model.core, hidden, recompute=False), FusedCore)

    assert is_fused()
    for module in (model.core.layers[0], model.core.layers[0].attention.query):
        called = []
        handle = module.register_forward_hook(lambda *_, called=called: called.append(1))
        assert not is_fused()
        model(random_tokens(1, 2))
        assert called
        handle.remove()
    assert is_fused()
    torch.nn.utils.parametrizations.weight_norm(model.core.layers[1].feed_forward.expand)
    assert not is_fused()


@pytest.mark.parametrize("schedule", [SCHEDULES[0], CACHED, FEEDBACK])
def test_weights_that_changed_since_the_forward_pass_are_an_error(schedule, with_kernels):
    """As PyTorch raises where a tensor that it saved has changed."""
    model = build(schedule)
    optimizer = torch.optim.SGD(model.core.parameters(), lr=0.1)
    tokens = random_tokens(1, 8)
    first, state = model(tokens[:, :4])
    first.sum().backward(retain_graph=True)
    optimizer.step()
    second, _ = model(tokens[:, 4:], state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.sum().backward()


def test_micro_batches_and_accumulated_gradients_are_no_change_of_weights(with_kernels):
    model = build(TransformerXL(span=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(2):
            model(random_tokens(1, 4))[0].sum().backward()
        optimizer.step()


def test_transformations_of_functions_take_the_plain_core(with_kernels):
    model = build(TransformerXL(span=5))
    parameters = dict(model.named_parameters())

    def loss(parameters):
        logits, _ = torch.func.functional_call(model, parameters, (random_tokens(1, 4),))
        return logits.square().sum()

    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
