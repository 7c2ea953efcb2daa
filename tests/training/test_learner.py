"""One update is the same however its batch is cut, and gradients stop at segments only."""

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Interrupting, lstm_recipe, small_recipe

from staircase_attention.tasks import IGNORED, Lanes, training_source
from staircase_attention.training import train
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner, build_model
from staircase_attention.training.optimizer import Optimizer, is_hidden_matrix
from staircase_attention.training.processes import Processes

STILL = {"model__core__dropout": 0.0}


def learner_and_lanes(recipe):
    task = build_dataset(recipe)
    torch.manual_seed(0)
    model = build_model(recipe, task).double()
    learner = Learner(recipe, model, torch.device("cpu"), Processes())
    config = recipe.training
    lanes = Lanes(
        source=training_source(task.task, 0),
        num_lanes=config.num_lanes,
        segment_length=config.segment_length,
    )
    return learner, lanes


def weights_after(recipe, num_updates=3):
    learner, lanes = learner_and_lanes(recipe)
    position = lanes.first_position()
    for _ in range(num_updates):
        batch, position = lanes.batch(position)
        learner.update(batch, lanes=range(lanes.num_lanes), rate=1e-2, wants_stop=False)
    return dict(learner.model.named_parameters())


def assert_same_weights(one, other):
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_micro_batches_change_nothing(kind):
    changes = STILL | {"training__optimizer__kind": kind}
    whole = weights_after(small_recipe(**changes))
    cut = weights_after(small_recipe(**changes, training__num_micro_batches=2))
    assert_same_weights(whole, cut)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputation_repeats_the_same_numbers(dropout):
    recipe = small_recipe(model__core__dropout=dropout)
    again = recipe.override({"training.recompute": True})
    assert_same_weights(weights_after(recipe), weights_after(again))


def test_gradients_are_cut_between_segments_and_nowhere_else():
    """The gradient of the second segment is that of a state held fixed, computed by hand."""
    learner, lanes = learner_and_lanes(
        small_recipe(**STILL, training__optimizer__gradient_clip=None)
    )
    first, position = lanes.batch(lanes.first_position())
    second, _ = lanes.batch(position)
    model = learner.model
    _, state = model(torch.from_numpy(first.inputs))
    logits, _ = model(torch.from_numpy(second.inputs), state.detach())
    targets = torch.from_numpy(second.targets)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
    )
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for batch in (first, second):
        learner.update(batch, lanes=range(4), rate=0.0, wants_stop=False)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_an_update_whose_weights_were_changing_when_memory_ran_out_is_not_begun_again():
    learner, lanes = learner_and_lanes(small_recipe(**STILL))
    batch, _ = lanes.batch(lanes.first_position())

    def run_out(*_, **__):
        raise torch.OutOfMemoryError("no room")

    learner.optimizer.step = run_out
    with pytest.raises(RuntimeError, match=r"memory ran out while .* \(no room\)") as caught:
        learner.update(batch, lanes=range(4), rate=1e-2, wants_stop=False)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_gradients_that_are_not_finite_skip_the_update_and_free_the_state():
    learner, lanes = learner_and_lanes(small_recipe(**STILL))
    batch, _ = lanes.batch(lanes.first_position())
    learner.update(batch, lanes=range(4), rate=1e-2, wants_stop=False)
    before = {name: weight.clone() for name, weight in learner.model.named_parameters()}
    learner.states = [state.map(lambda tensor: tensor * torch.nan) for state in learner.states]
    outcome = learner.update(batch, lanes=range(4), rate=1e-2, wants_stop=False)
    assert not outcome.was_applied
    assert learner.states == [None]
    assert_same_weights(before, dict(learner.model.named_parameters()))
    assert learner.update(batch, lanes=range(4), rate=1e-2, wants_stop=False).was_applied


@pytest.mark.parametrize("make_recipe", [small_recipe, lstm_recipe])
def test_bfloat16_trains(tmp_path, make_recipe):
    display = Interrupting()
    recipe = make_recipe(training__precision="bfloat16")
    try:
        result = train(recipe, tmp_path / "run", device="cpu", progress=display)
    except ValueError as error:
        if "primitive" in str(error):
            pytest.skip("oneDNN has no LSTM in bfloat16 for this processor")
        raise
    assert result.status == "finished"
    assert any("training.precision=float32 may be faster" in text for text in display.said)
    weights = load_file(
        sorted((tmp_path / "run" / "checkpoints").glob("update-*"))[-1] / "weights.safetensors"
    )
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("num_steps", [0, 1])
@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_an_optimiser_is_restored_from_its_tensors(kind, num_steps):
    """Also to before its first step, when Adam has no tensors yet."""
    recipe = small_recipe(training__optimizer__kind=kind)
    model = build_model(recipe, build_dataset(recipe))
    optimizer = Optimizer(model, recipe.training.optimizer)

    def step(seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(torch.tensor(1e-2), is_finite=torch.tensor(True))
        return {name: weight.clone() for name, weight in model.state_dict().items()}

    for seed in range(num_steps):
        step(seed)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    tensors = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    expected = [step(2), step(3)]
    model.load_state_dict(weights)
    optimizer.load(tensors)
    for found, wanted in zip([step(2), step(3)], expected, strict=True):
        assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def test_muon_has_hidden_matrices_only():
    recipe = small_recipe()
    model = build_model(recipe, build_dataset(recipe))
    hidden = {
        name for name, parameter in model.named_parameters() if is_hidden_matrix(name, parameter)
    }
    assert "core.layers.0.attention.query.weight" in hidden
    assert not hidden & {"embedding.weight", "output.weight", "core.positions.table"}


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_beside_muon_adamw_has_a_fraction_of_the_rate(fraction):
    """AdamW's first step is as long as its rate, whatever the gradients; Muon's does not change."""
    recipe = small_recipe(
        training__optimizer__kind="muon", training__optimizer__adamw_fraction=fraction
    )
    usual = small_recipe(training__optimizer__kind="muon")
    moves = []
    for one in (recipe, usual):
        model = build_model(one, build_dataset(one))
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer = Optimizer(model, one.training.optimizer)
        optimizer.step(torch.tensor(1e-2), is_finite=torch.tensor(True))
        moves.append({name: weight - before[name] for name, weight in model.named_parameters()})
    for name, move in moves[0].items():
        is_muon_s = is_hidden_matrix(name, move)
        torch.testing.assert_close(
            move, moves[1][name] * (1.0 if is_muon_s else fraction), rtol=1e-3, atol=1e-6
        )
        if not is_muon_s:
            assert move.abs().mean().item() == pytest.approx(1e-2 * fraction, rel=1e-2)
