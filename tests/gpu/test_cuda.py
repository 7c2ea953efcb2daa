"""The family on a GPU: the same function as on the CPU, and training that resumes there."""

import pytest
import torch
from small_runs import final_bytes, small_recipe

from building import example_models, feed, name_of, random_tokens
from staircase_attention import CoreConfig, Ladder, SequenceModel, load_state, save_state
from staircase_attention.models import with_exits
from staircase_attention.training import resume, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
each_model = pytest.mark.parametrize("model", example_models(), ids=name_of)


@pytest.fixture
def on_gpu(model):
    yield model.cuda()
    model.cpu()


@each_model
def test_logits_and_gradients_agree_with_the_cpu_in_float64(model):
    batch = random_tokens(2, 23)
    results = []
    for device in ("cpu", "cuda"):
        model.to(device)
        logits, _ = model(batch.to(device))
        gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        results.append([one.cpu() for one in (logits, *gradients)])
    model.cpu()
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@each_model
def test_a_stream_moves_between_devices(model, tmp_path):
    batch = random_tokens(2, 20)
    whole, _ = model(batch)
    _, state = model(batch[:, :8])
    model.cuda()
    middle, state = model(batch[:, 8:14].cuda(), state.to("cuda"))
    save_state(state, tmp_path / "state.safetensors")
    model.cpu()
    end, _ = model(batch[:, 14:], load_state(tmp_path / "state.safetensors"))
    found = torch.cat([middle.cpu(), end], dim=1)
    torch.testing.assert_close(found, whole[:, 8:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ["confidence", "change"])
@torch.no_grad()
def test_exits_agree_in_bfloat16_autocast(rule):
    core = CoreConfig(width=32, num_layers=2, num_heads=2)
    model = SequenceModel(vocab_size=10, core=core, schedule=Ladder(num_passes=3, span=5)).cuda()
    # Nothing is as sure as that, and every change is at least as large.
    other = with_exits(model, rule, {"confidence": 1.0, "change": 0.0}[rule])
    batch = random_tokens(2, 20).cuda() % 10
    exact, _ = model(batch)
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = feed(other, list(batch.split(7, dim=1)))
    assert (found - exact).norm() / exact.norm() < 4e-2


@each_model
def test_one_token_at_a_time_agrees_in_bfloat16_autocast(on_gpu):
    model = on_gpu.float()
    batch = random_tokens(2, 20).cuda()
    with torch.no_grad():
        exact, _ = model(batch)
        with torch.autocast("cuda", torch.bfloat16):
            by_token, _ = feed(model, list(batch.split(1, dim=1)))
    model.double()
    error = (by_token.float() - exact).norm() / exact.norm()
    assert error < 3e-2


def test_training_on_a_gpu_resumes_where_it_stood(tmp_path):
    recipe = small_recipe(model__core__dropout=0.0, training__num_updates=20)
    train(recipe, tmp_path / "whole")

    class Stop:
        def begin(self, *_): ...
        def say(self, text): ...
        def end(self): ...
        def advance(self, update, **facts):
            if update == 11:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(recipe, tmp_path / "broken", progress=Stop())
    resume(tmp_path / "broken")
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")
