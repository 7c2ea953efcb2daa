"""A model is an ordinary module to PyTorch: hooks, torch.func, the meta device, compilation."""

import copy
import traceback

import pytest
import torch
from torch.func import functional_call, grad

from building import EXACT, build, example_models, name_of, random_tokens
from staircase_attention import CachedStaircase, Staircase
from staircase_attention.attention import products

each_model = pytest.mark.parametrize("model", example_models(), ids=name_of)


@each_model
def test_torch_func_gives_autograds_gradients_through_a_state(model):
    batch = random_tokens(2, 11)
    parameters = dict(model.named_parameters())

    def loss(weights):
        _, state = functional_call(model, weights, (batch[:, :6],))
        logits, _ = functional_call(model, weights, (batch[:, 6:], state))
        return logits.square().sum()

    expected = torch.autograd.grad(loss(parameters), parameters.values(), allow_unused=True)
    found = grad(loss)({name: weight.detach() for name, weight in parameters.items()})
    for (name, one), other in zip(found.items(), expected, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, **EXACT, msg=name)


@each_model
def test_forward_hooks_of_every_layer_fire_at_every_pass(model):
    calls = []
    handles = [
        layer.register_forward_hook(lambda layer, given, made: calls.append((layer, made[0].shape)))
        for layer in model.core.layers
    ]
    try:
        model(random_tokens(2, 9))
    finally:
        for handle in handles:
            handle.remove()
    steps = list(model.schedule.steps(range(9), num_layers=len(model.core.layers), order="window"))
    assert len(calls) == sum(len(step.layers) for step in steps)
    assert {layer for layer, _ in calls} == set(model.core.layers)


@each_model
def test_a_model_on_the_meta_device_gives_shapes(model):
    hollow = copy.deepcopy(model).to("meta")
    batch = torch.zeros(2, 7, dtype=torch.int64, device="meta")
    _, state = hollow(batch)
    logits, state = hollow(batch, state)
    assert logits.shape == (2, 7, model.output_size)
    assert logits.is_meta
    assert state.num_bytes == model(random_tokens(2, 14))[1].num_bytes


def test_a_hook_may_change_what_a_layer_gives():
    model = build(Staircase(chunk_size=3, num_passes=2))
    batch = random_tokens(2, 9)
    before, _ = model(batch)
    hook = model.core.layers[0].register_forward_hook(lambda _, __, made: (made[0] * 2, made[1]))
    assert not torch.allclose(model(batch)[0], before)
    hook.remove()
    torch.testing.assert_close(model(batch)[0], before, **EXACT)


def test_few_frames_lie_between_a_call_and_attention(monkeypatch):
    depths = []

    def softmax(scores, view):
        stack = traceback.extract_stack()
        depths.append(sum("/staircase_attention/" in frame.filename for frame in stack))
        return scores.softmax(-1)

    monkeypatch.setattr(products, "softmax_over_visible", softmax)
    build(CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1))(random_tokens(1, 5))
    assert set(depths) == {8}
