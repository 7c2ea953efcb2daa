"""Training with a buffered cache: the plain core's results, and no copy of a window per step.

The kernels run through Triton's interpreter.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from building import random_tokens
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    GlobalCachedStaircase,
    MemoryNetwork,
    SequenceModel,
)
from staircase_attention.engine import accelerate, plain
from staircase_attention.layers import JoinedCache

VOCAB_SIZE = 7
SCHEDULES = {
    "once": CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1),
    "twice": CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2),
    "as it came": CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=0),
    "global": GlobalCachedStaircase(chunk_size=3, num_passes=1),
    "global, twice": GlobalCachedStaircase(chunk_size=2, num_passes=2),
    "feedback": FeedbackTransformer(span=4),
    "feedback, own keys": FeedbackTransformer(span=4, share_keys_values=False),
    "feedback, itself": FeedbackTransformer(
        span=3, share_keys_values=False, memory="top", attend_self=True
    ),
    "memory network": MemoryNetwork(span=4),
}
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
pytestmark = pytest.mark.usefixtures("with_kernels")


def build(schedule):
    torch.manual_seed(0)
    core = CoreConfig(width=16, num_layers=2, num_heads=1, feed_forward_width=8)
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return accelerate(model)


def tensors(state):
    """What a state holds; banks in their order."""
    return [
        part
        for stream in state.streams
        for held in (*(pair for _, pair in sorted(stream.banks.items())), *stream.cache)
        for part in held
    ]


def weighed(outcomes):
    """A number on which all of these have their own influence."""
    generator = torch.Generator().manual_seed(1)
    return sum((one * torch.randn(one.shape, generator=generator)).sum() for one in outcomes)


def run(model, lengths, *, batch_size=2, state=None, change=lambda state: state, **options):
    """Logits of some segments, and the last state; `change` is made to states between them."""
    tokens = random_tokens(batch_size, sum(lengths))
    outcomes = []
    for segment in torch.split(tokens, lengths, dim=1):
        logits, state = model(segment, None if state is None else change(state), **options)
        outcomes.append(logits)
    return [*outcomes, *tensors(state)], state


def results(model, lengths, **options):
    outcomes, _ = run(model, lengths, **options)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(weighed(outcomes), parameters, materialize_grads=True)
    return [*(one.detach() for one in outcomes), *gradients]


def joined(monkeypatch):
    """Let the fused core join, as it does where no gradients are kept."""
    from staircase_attention.engine.fused.core import FusedCore

    monkeypatch.setattr(
        FusedCore,
        "new_cache",
        lambda self, held, positions, *, num_new: JoinedCache(held, positions),
    )


def assert_equals_plain_core(model, lengths, **options):
    found = results(model, lengths, **options)
    expected = results(plain(model).double(), lengths, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)


@each_schedule
def test_gradients_flow_through_the_states_of_several_segments(schedule):
    assert_equals_plain_core(build(schedule), [5, 3, 4])


@each_schedule
def test_segments_of_detached_states_equal_the_plain_core(schedule):
    assert_equals_plain_core(build(schedule), [6, 6], change=lambda state: state.detach())


@pytest.mark.parametrize("name", ["once", "twice", "feedback"])
def test_chunk_order_equals_the_plain_core(name):
    assert_equals_plain_core(build(SCHEDULES[name]), [5, 4], order="chunk")


@pytest.mark.parametrize("name", ["once", "global", "feedback"])
def test_rows_that_are_reset_equal_the_plain_core(name):
    masks = iter(2 * [[True, False], [False, True]])

    def reset(state):
        """One row, and then the other one too: older tokens belong to nobody."""
        return state.reset(next(masks))

    assert_equals_plain_core(build(SCHEDULES[name]), [6, 3, 6], change=reset)


@pytest.mark.parametrize("name", ["once", "feedback"])
def test_a_cache_without_tokens_equals_the_plain_core(name):
    def reset(state):
        (stream,) = state.reset([True, False]).reset([False, True]).streams
        assert stream.cache
        assert len(stream.cached) == 0
        return replace(state, streams=(stream,))

    assert_equals_plain_core(build(SCHEDULES[name]), [6, 6], change=reset)


@each_schedule
def test_logits_and_states_are_those_of_joining_bit_for_bit(schedule, monkeypatch):
    model = build(schedule)
    found, _ = run(model, [5, 4])
    joined(monkeypatch)
    expected, _ = run(model, [5, 4])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["twice", "feedback"])
def test_backward_passes_over_one_graph_leave_nothing_to_the_next(name):
    model = build(SCHEDULES[name])
    parameters = list(model.parameters())
    outcomes, _ = run(model, [5, 4])
    total = weighed(outcomes)
    expected = torch.autograd.grad(total, parameters, retain_graph=True)
    torch.autograd.grad(total, model.embedding.weight, retain_graph=True)
    torch.autograd.grad(outcomes[0].sum(), model.output.weight, retain_graph=True)
    # From the middle: what comes later takes no part.
    torch.autograd.grad(outcomes[0][:, :3].sum(), parameters, retain_graph=True)
    found = torch.autograd.grad(total, parameters)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["once", "twice", "feedback", "memory network"])
def test_a_state_that_is_given_gets_its_gradients(name):
    model = build(SCHEDULES[name])
    with torch.no_grad():
        _, state = run(model, [7])

    def gradients():
        given = state.to(dtype=next(model.parameters()).dtype).detach()
        asked = [part.requires_grad_() for part in tensors(given)]
        logits, _ = model(random_tokens(2, 4), given)
        return torch.autograd.grad(weighed([logits]), asked, materialize_grads=True)

    found = gradients()
    model = plain(model).double()
    for one, other in zip(found, gradients(), strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)
    assert any(one.any() for one in found)


def test_frozen_parameters_are_no_hindrance():
    model = build(SCHEDULES["once"])
    for parameter in model.core.parameters():
        parameter.requires_grad_(False)
    found, _ = run(model, [5, 4])
    (gradient,) = torch.autograd.grad(weighed(found), model.embedding.weight)
    expected, _ = run(plain(model), [5, 4])
    (other,) = torch.autograd.grad(weighed(expected), model.embedding.weight)
    torch.testing.assert_close(gradient, other, **CLOSE)


@pytest.mark.parametrize("name", ["once", "feedback"])
def test_a_state_of_another_dtype_is_continued_as_by_joining(name, monkeypatch):
    model = build(SCHEDULES[name])
    with torch.no_grad():
        _, state = run(model, [6])

    def outcomes():
        with torch.autocast("cpu", torch.bfloat16):
            found, after = run(model, [3, 2], state=state)
        assert {part.dtype for part in after.streams[0].cache[0]} == {torch.float32}
        return found, torch.autograd.grad(weighed(found), list(model.parameters()))

    found, gradients = outcomes()
    joined(monkeypatch)
    expected, others = outcomes()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    for one, other in zip(gradients, others, strict=True):
        error = (one - other).norm().item()
        assert error <= 2e-2 * max(other.norm().item(), 0.1)


WINDOW, NUM_ROWS = 24, 2


def is_window(tensor):
    """Whether these are keys, values or gradients of nearly all tokens of a window."""
    return tensor.dim() >= 4 and tensor.shape[-2] >= WINDOW - 4


class LargeResults(TorchDispatchMode):
    """Counts operations whose results are as large as the cache of a window."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # Triton's interpreter wraps the kernels' arguments by `set_`.
        is_made = isinstance(result, torch.Tensor) and not function.is_view
        is_made = is_made and function is not torch.ops.aten.set_.source_Storage_storage_offset
        self.count += is_made and is_window(result)
        return result


@pytest.mark.parametrize(
    "schedule",
    [
        CachedStaircase(chunk_size=2, num_window_chunks=WINDOW // 2, num_passes=1),
        FeedbackTransformer(span=WINDOW),
    ],
    ids=lambda one: one.name,
)
def test_no_step_saves_or_makes_anything_of_the_size_of_a_window(schedule, monkeypatch):
    model = build(schedule)
    with torch.no_grad():
        _, state = run(model, [WINDOW + 2])
    saved = []

    def counted(num_tokens):
        saved.clear()
        with LargeResults() as large:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
            ):
                logits, _ = model(random_tokens(NUM_ROWS, num_tokens), state.detach())
            logits.sum().backward()
        return large.count

    assert counted(4) == counted(8)
    assert not any(is_window(tensor) for tensor in saved)
    joined(monkeypatch)
    assert counted(8) > counted(4)
    assert sum(is_window(tensor) for tensor in saved) >= 8
