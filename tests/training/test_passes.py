"""Updates in drawn numbers of passes: which are drawn, and that each is the update of its depth."""

from collections import Counter
from copy import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import lstm_recipe, metrics_of, small_recipe

from staircase_attention.evaluation import loss_and_wrong
from staircase_attention.models import at_depth
from staircase_attention.tasks import Lanes, training_source
from staircase_attention.training import load_run, train
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner, build_model
from staircase_attention.training.processes import Processes
from staircase_attention.training.recipe import PassesConfig

LADDER = {"name": "ladder", "num_passes": 2, "span": 6}
CACHED = {"name": "cached-staircase", "chunk_size": 3, "num_window_chunks": 5, "num_passes": 2}
AABB = {"order": "AABB"}
STAIRCASE = {"name": "staircase", "chunk_size": 3, "num_passes": 2}
DRAWN = {"training__passes__kind": "uniform", "training__passes__most": 4}


@given(seed=st.integers(0, 2**62), most=st.integers(1, 9), turn=st.integers(0, 10**6))
def test_numbers_of_a_range_take_turns(seed, most, turn):
    config = PassesConfig(kind="uniform", most=most)
    updates = range(turn * most, (turn + 1) * most)
    drawn = [config.draw(update, 10**7, seed=seed) for update in updates]
    assert sorted(drawn) == list(range(1, most + 1))
    assert drawn == [config.draw(update, 10**7, seed=seed) for update in updates]


def test_a_number_that_is_listed_twice_is_drawn_twice_as_often():
    config = PassesConfig(kind="list", choices=(1, 1, 4, 8))
    drawn = Counter(config.draw(update, 400, seed=3) for update in range(400))
    assert drawn == {1: 200, 4: 100, 8: 100}


@pytest.mark.parametrize("kind", ["uniform", "poisson"])
def test_a_number_is_held_for_as_many_updates_as_asked_for(kind):
    held, one = (PassesConfig(kind=kind, most=8, hold=hold) for hold in (5, 1))
    drawn = [held.draw(update, 200, seed=1) for update in range(200)]
    assert drawn[::5] == [one.draw(update, 200, seed=1) for update in range(40)]
    assert drawn == [number for number in drawn[::5] for _ in range(5)]


@pytest.mark.parametrize("kind", ["uniform", "poisson"])
@pytest.mark.parametrize("hold", [2, 5, 8])
def test_a_number_is_held_while_the_largest_one_grows(kind, hold):
    config = PassesConfig(kind=kind, most=8, mean=6.0, hold=hold, growth_part=0.5)
    drawn = [config.draw(update, 200, seed=1) for update in range(200)]
    assert drawn == [number for number in drawn[::hold] for _ in range(hold)]


def test_poisson_numbers_have_the_mean_that_is_asked_for():
    config = PassesConfig(kind="poisson", mean=4.0, most=64)
    drawn = [config.draw(update, 4000, seed=0) for update in range(4000)]
    assert min(drawn) == 1
    # Their variance is 3 + 9 (e^(1/4) - 1) = 5.6: the mean is within 0.15 with 4 deviations.
    assert sum(drawn) / len(drawn) == pytest.approx(4.0, abs=0.15)
    assert PassesConfig(kind="fixed").draw(0, 1, seed=0) is None


@pytest.mark.parametrize("kind", ["uniform", "poisson"])
def test_passes_grow_in_the_first_part_of_a_run(kind):
    config = PassesConfig(kind=kind, most=8, mean=6.0, growth_part=0.5)
    drawn = [config.draw(update, 2000, seed=0) for update in range(2000)]
    means = [sum(part) / 200 for part in (drawn[:200], drawn[1000:1200], drawn[1800:])]
    assert means[0] < 2.2 < means[1]
    assert means[1] == pytest.approx(means[2], abs=0.6)
    if kind == "uniform":
        assert max(drawn[:130]) == 1


def learner_of(recipe):
    data = build_dataset(recipe)
    torch.manual_seed(0)
    model = build_model(recipe, data).double()
    return Learner(recipe, model, torch.device("cpu"), Processes()), data


def batches_of(data, count):
    lanes = Lanes(source=training_source(data.task, 0), num_lanes=4, segment_length=7)
    position = lanes.first_position()
    for _ in range(count):
        batch, position = lanes.batch(position)
        yield batch


@pytest.mark.parametrize("schedule", [LADDER, CACHED, STAIRCASE], ids=lambda one: one["name"])
@pytest.mark.parametrize("depth", [1, 3, 4])
def test_an_update_in_a_drawn_number_of_passes_is_that_of_a_model_with_so_many(schedule, depth):
    """Loss, gradients and states in float64; the second update has a state from the first."""
    still = {"model__core__dropout": 0.0, "model__core__max_distance": 12}
    drawn, data = learner_of(small_recipe(**still, **DRAWN, model__schedule=schedule))
    fixed, _ = learner_of(small_recipe(**still, model__schedule=schedule | {"num_passes": depth}))
    fixed.model.load_state_dict(drawn.model.state_dict())
    common = {"lanes": range(4), "rate": 1e-2, "wants_stop": False}
    for batch in batches_of(data, 2):
        one = drawn.update(batch, **common, num_passes=depth)
        other = fixed.update(batch, **common)
        assert one == other
        for mine, theirs in zip(drawn.model.parameters(), fixed.model.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)
    assert drawn.states[0].model == fixed.states[0].model
    assert drawn.model.schedule.num_passes == 2


def test_parts_of_an_update_keep_a_depth_each(tmp_path):
    """The gradient is the sum over lanes that have always made their number of passes."""
    changes = {"model__core__dropout": 0.0, "model__schedule": LADDER}
    parts = {"training__passes": {"kind": "parts", "choices": [1, 3]}}
    learner, data = learner_of(small_recipe(**changes, **parts, training__num_micro_batches=2))
    alone, _ = learner_of(small_recipe(**changes))
    alone.model.load_state_dict(learner.model.state_dict())
    models = [alone.model.with_schedule(alone.model.schedule.with_passes(n)) for n in (1, 3)]
    states = [None, None]
    for batch in batches_of(data, 3):
        learner.update(batch, lanes=range(4), rate=0.0, wants_stop=False)
        alone.model.zero_grad()
        for part, model in enumerate(models):
            own = batch.rows(range(2 * part, 2 * part + 2))
            logits, state = model(torch.from_numpy(own.inputs), states[part])
            states[part] = state.detach()
            loss, _ = loss_and_wrong(logits, torch.from_numpy(own.targets))
            (loss / batch.num_answers).backward()
        torch.nn.utils.clip_grad_norm_(alone.model.parameters(), learner.gradient_clip)
        for mine, theirs in zip(learner.model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_lanes", [2, 3])
def test_micro_batches_of_drawn_passes_make_the_update_of_all_lanes(num_lanes):
    """A process may have a number of lanes that micro-batches cannot share equally."""
    changes = DRAWN | {"model__core__dropout": 0.0, "model__schedule": LADDER}
    parted, data = learner_of(small_recipe(**changes, training__num_micro_batches=2))
    whole, _ = learner_of(small_recipe(**changes))
    whole.model.load_state_dict(parted.model.state_dict())
    for depth, batch in zip((3, 1, 3), batches_of(data, 3), strict=True):
        common = {"lanes": range(num_lanes), "rate": 0.0, "wants_stop": False}
        one, other = (each.update(batch, **common, num_passes=depth) for each in (parted, whole))
        assert one.loss == pytest.approx(other.loss, rel=1e-12)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-9)
    assert [state.batch_size for state in parted.states] == [-(-num_lanes // 2), num_lanes // 2]


@pytest.mark.parametrize("core", [{}, {"num_coda_layers": 1, "num_prelude_layers": 1}])
@pytest.mark.parametrize(("loss_after", "cut"), [("every", None), ("every", 2), ("ends", None)])
def test_a_loss_at_every_pass_is_the_mean_over_models_of_so_many(core, loss_after, cut):
    """Loss and gradients in float64, from fresh lanes and from those that the update left."""
    changes = {f"model__core__{name}": value for name, value in core.items()}
    changes |= {"model__core__dropout": 0.0, "model__schedule": LADDER | {"num_passes": 3}}
    passes = {"loss": loss_after, "gradient_passes": cut}
    learner, data = learner_of(small_recipe(**changes, training__passes=passes))
    weights = list(learner.model.parameters())
    for batch in batches_of(data, 2):
        inputs, targets = map(torch.from_numpy, (batch.inputs, batch.targets))
        expected, found = 0.0, [torch.zeros_like(one) for one in weights]
        numbers = [1, 3] if loss_after == "ends" else [1, 2, 3] if cut is None else [2, 3]
        for number in numbers:
            model = learner.model.with_schedule(learner.model.schedule.with_passes(number))
            # The passes that are cut are the same at every depth: here, the first of three.
            model.gradient_passes = None if cut is None else number - 1
            state = learner.states[0] and at_depth(model, learner.states[0])
            loss = loss_and_wrong(model(inputs, state)[0], targets)[0] / len(numbers)
            expected += loss.item()
            parts = torch.autograd.grad(loss / batch.num_answers, weights, allow_unused=True)
            found = [
                one if part is None else one + part for one, part in zip(found, parts, strict=True)
            ]
        outcome = learner.update(batch, lanes=range(4), rate=0.0, wants_stop=False)
        assert outcome.loss == pytest.approx(expected, rel=1e-12)
        norm = torch.stack([one.norm() for one in found]).norm()
        assert outcome.gradient_norm == pytest.approx(norm.item(), rel=1e-9)
        scale = min(1.0, learner.gradient_clip / (norm.item() + 1e-6))
        for mine, theirs in zip(weights, found, strict=True):
            gradient = torch.zeros_like(mine) if mine.grad is None else mine.grad
            torch.testing.assert_close(gradient, theirs * scale, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("schedule", [STAIRCASE, CACHED])
def test_the_loss_after_the_first_pass_of_any_model_is_that_of_its_drafts(schedule):
    changes = {"model__core__dropout": 0.0, "model__schedule": schedule}
    learner, data = learner_of(small_recipe(**changes, training__passes__loss="ends"))
    drafting = copy(learner.model)
    drafting.draft_passes = 1
    state = None
    for batch in batches_of(data, 2):
        inputs, targets = map(torch.from_numpy, (batch.inputs, batch.targets))
        expected = 0.0
        for token, target in zip(inputs.split(1, dim=1), targets.split(1, dim=1), strict=True):
            drafted, _ = drafting(token, state)
            logits, state = learner.model(token, state)
            for one in (drafted, logits):
                expected += loss_and_wrong(one, target)[0].item() / 2
        outcome = learner.update(batch, lanes=range(4), rate=0.0, wants_stop=False)
        assert outcome.loss == pytest.approx(expected, rel=1e-12)


def test_a_run_of_many_depths_is_scored_at_its_schedule_and_loads(tmp_path):
    recipe = small_recipe(**DRAWN, training__passes__gradient_passes=1)
    result = train(recipe, tmp_path / "run")
    run = load_run(tmp_path / "run")
    # Its table reaches as far as the deepest: four chunks of three tokens.
    assert run.model.core.positions.table.shape[0] == 12
    assert run.model.with_schedule(run.model.schedule.with_passes(4)).schedule.num_passes == 4
    assert result.status == "finished"
    assert len([line for line in metrics_of(tmp_path / "run") if line["kind"] == "train"]) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__passes__most": 0}, "most must be an integer from 1 to 1024, got 0"),
        (
            {"training__passes__kind": "list"},
            r"choices are for kind = list or parts, .* got \[\] with list",
        ),
        ({"training__passes": {"kind": "parts", "choices": [1, 2]}}, r"must be 1 numbers, .* got"),
        ({"training__passes__deviation": 1e200}, "of at least 0 and of at most 10, got 1e"),
        (
            {"training__passes__mean": 1e30},
            r"mean must be a number over 1 and of at most 1024, got 1e\+30",
        ),
        ({"training__passes__choices": [2]}, r"got \[2\] with fixed"),
        ({"training__passes__kind": "rare"}, "training.passes.kind must be"),
        (
            DRAWN | {"model__schedule": {"name": "transformer-xl", "span": 4}},
            "with num_passes, got",
        ),
        (
            DRAWN | {"model__schedule": CACHED | {"num_window_chunks": 3}},
            r"\(M\) must be at most num_window_chunks",
        ),
        *(
            (
                {f"training__passes__{name}": value, "model__schedule": LADDER | AABB},
                "for layers in the order ABAB",
            )
            for name, value in (("gradient_passes", 1), ("loss", "every"))
        ),
    ],
)
def test_passes_that_a_model_cannot_make_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        small_recipe(**changes)
    assert "\n" not in str(caught.value)


def test_an_lstm_makes_no_passes():
    with pytest.raises(ValueError, match="for models that make passes, got lstm"):
        lstm_recipe(**DRAWN)


def test_a_short_table_of_positions_is_refused_before_a_run(tmp_path):
    with pytest.raises(ValueError, match="needs a position table of 12 rows, got one of 6"):
        train(small_recipe(**DRAWN, model__core__max_distance=6), tmp_path / "run")
    assert not (tmp_path / "run").exists()
