"""The fast engine on a GPU: the plain one's numbers, captured, and exact across an interruption."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_runs import Interrupting, KilledError, final_bytes, small_recipe

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    MemoryNetwork,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
    engine,
)
from staircase_attention.engine.capture import CapturedUpdates
from staircase_attention.experiments import find_recipe
from staircase_attention.experiments.results import read_lengths, score_lengths
from staircase_attention.schedules import make_schedule
from staircase_attention.training import FamilyModel, resume, train
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner, build_model
from staircase_attention.training.processes import Processes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
ALTERNATE = f"{Path(__file__).parents[1]}/examples/alternate.py:AlternateCached"
SCHEDULES = [
    Staircase(chunk_size=8, num_passes=4),
    CachedStaircase(chunk_size=4, num_window_chunks=8, num_passes=1),
    CachedStaircase(chunk_size=16, num_window_chunks=4, num_passes=2),
    Ladder(num_passes=3, span=40),
    Ladder(num_passes=2, span=20, order="AABB"),
    TransformerXL(span=80),
    UniversalTransformer(num_passes=4, span=32),
    FeedbackTransformer(span=16),
    MemoryNetwork(span=16),
    # Of which odd chunks are cached and even ones are not.
    make_schedule(ALTERNATE, {"chunk_size": 8, "num_window_chunks": 4, "num_passes": 2}),
]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)


MODERN = {
    "norm": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_key_value_heads": 2,
    "bias": False,
    "max_distance": None,
}
# Of which the last has more than the fused core itself computes.
CORES = [
    MODERN,
    MODERN | {"num_prelude_layers": 1, "num_coda_layers": 1, "injection": "gated"},
    {"feed_forward": "gelu", "num_prelude_layers": 1, "bias": False, "attention_dropout": 0.0}
    | {"injection": "normed"},
    MODERN | {"qk_norm": True, "injection": "add"},
]


def core_for(schedule, *, dropout=0.0, head_size=32, **settings):
    layers = 1 if isinstance(schedule, UniversalTransformer) else 2
    if getattr(schedule, "num_passes", 1) == 1:
        # There is no further pass to inject into.
        settings.pop("injection", None)
    core = CoreConfig(
        width=4 * head_size, num_layers=layers, num_heads=4, dropout=dropout, max_distance=60
    )
    return replace(core, **settings)


def results(model, tokens):
    half = tokens.shape[1] // 2
    first, state = model(tokens[:, :half])
    second, _ = model(tokens[:, half:], state.detach())
    logits = torch.cat([first, second], dim=1).float()
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(logits.shape, generator=generator).to(logits)
    gradients = torch.autograd.grad((logits * weights).sum(), list(model.parameters()))
    return [logits.detach(), *gradients]


def leave_the_kink(model):
    """Let half of the units always be on and half always off.

    A unit that is within rounding of its ReLU's kink may be on in one precision and off in another,
    which changes gradients by a thousand times what rounding does.
    """
    for layer in model.core.layers:
        bias = layer.feed_forward.expand.bias
        signs = torch.where(torch.arange(len(bias)) % 2 == 0, 1.0, -1.0)
        bias.data = 6 * signs.to(bias)


@each_schedule
@pytest.mark.parametrize("head_size", [32, 64, 128])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_fused_core_is_the_plain_one(schedule, precision, head_size):
    assert_fused_is_plain(core_for(schedule, head_size=head_size), schedule, precision)


@pytest.mark.parametrize("schedule", SCHEDULES[:5], ids=str)
@pytest.mark.parametrize("settings", CORES, ids=["modern", "outer", "gelu", "not fused"])
@pytest.mark.parametrize("head_size", [32, 128])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_fused_modern_core_is_the_plain_one(schedule, settings, precision, head_size):
    core = core_for(schedule, head_size=head_size, **settings)
    assert_fused_is_plain(core, schedule, precision)


def assert_fused_is_plain(core, schedule, precision):
    torch.manual_seed(0)
    model = engine.accelerate(SequenceModel(vocab_size=17, core=core, schedule=schedule).cuda())
    if precision == torch.float32 and core.feed_forward == "relu":
        leave_the_kink(model)
    tokens = torch.randint(17, (3, 128), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == torch.bfloat16):
        found = results(model, tokens)
        model.recompute = True
        again = results(model, tokens)
        model.recompute = False
        plain = results(engine.plain(model), tokens)
    expected = results(model.double(), tokens)
    names = ["logits", *(name for name, _ in model.named_parameters())]
    for name, exact, one, other, eager in zip(names, expected, found, again, plain, strict=True):
        error, usual = ((part.double() - exact).norm() / exact.norm() for part in (one, eager))
        # As exact as such numbers are: of the size of the plain core's own error.
        limit = max(4 * float(usual), 1e-5 if precision == torch.float32 else 2e-3)
        assert error <= limit, f"{name}: {error:.2e}, plain {usual:.2e}"
        assert torch.equal(one, other), name


def recipe_for(schedule, *, settings=None, **changes):
    core = core_for(schedule, dropout=0.1, **settings or {})
    model = FamilyModel(core=core, schedule=schedule)
    return replace(small_recipe(**changes), model=model)


ALONE = Processes()
# Gradients are exchanged with as many processes as the process group has.
IN_A_GROUP = Processes(count=2)


DRAWN = {"training__passes__kind": "list", "training__passes__choices": [1, 2, 3, 3]}


def loss_curve(recipe, num_updates, *, accelerate=True, capture=True, processes=ALONE):
    """The loss after every update, the learner, and what it reported."""
    data = build_dataset(recipe)
    torch.manual_seed(0)
    said = []
    learner = Learner(
        recipe, build_model(recipe, data), torch.device("cuda"), processes, report=said.append
    )
    if not accelerate:
        engine.plain(learner.model)
    if not capture:
        learner.step = learner._step
    config = recipe.training
    lanes = data.lanes(num_lanes=config.num_lanes, segment_length=config.segment_length)
    position, losses = lanes.first_position(), []
    for number in range(num_updates):
        if config.restart_every is not None and number % config.restart_every == 0:
            position = lanes.restarted(position)
            learner.restart()
        batch, position = lanes.batch(position)
        outcome = learner.update(
            batch,
            lanes=range(config.num_lanes),
            rate=3e-4,
            wants_stop=False,
            num_passes=config.passes.draw(number, num_updates, seed=0),
        )
        losses.append(outcome.loss / outcome.num_answers)
    return np.array(losses), learner, said


@each_schedule
def test_loss_curves_agree_with_the_plain_engine(schedule):
    recipe = recipe_for(
        schedule,
        training__precision="bfloat16",
        training__num_lanes=32,
        training__segment_length=64,
    ).override({"model.core.dropout": 0.0})
    fast, learner, said = loss_curve(recipe, 200)
    assert learner.step.graphs
    assert not said
    # Captured as well, which the next test shows to change nothing: else it takes minutes.
    plain, _, _ = loss_curve(recipe, 200, accelerate=False)
    recipe = recipe.override({"training.precision": "float32"})
    exact, _, _ = loss_curve(recipe, 200, accelerate=False)
    assert np.abs(fast - plain)[:20].max() < 0.005
    # Once the loss falls steeply, any rounding shifts it: by what bfloat16 does to the plain core.
    far, usual = (np.abs((one - plain).reshape(-1, 10).mean(1)).max() for one in (fast, exact))
    assert far < max(3 * usual, 0.01), (far, usual)


@pytest.fixture
def eager(monkeypatch):
    """The captured updates that ran each update that was run eagerly."""
    found, run = [], CapturedUpdates._run_eagerly

    def run_and_note(updates, inputs, states):
        found.append(updates)
        return run(updates, inputs, states)

    monkeypatch.setattr(CapturedUpdates, "_run_eagerly", run_and_note)
    return found


@each_schedule
@pytest.mark.parametrize("restart_every", [None, 1, 2, 7])
def test_a_captured_update_is_the_update(eager, schedule, restart_every):
    """With dropout: the same random numbers, and the same bits."""
    recipe = recipe_for(
        schedule,
        training__num_lanes=8,
        training__segment_length=32,
        training__restart_every=restart_every,
    )
    updates = assert_captured_is_eager(recipe).step
    num_eager = eager.count(updates)
    # An empty state, at most two that are not full yet, and a full one.
    assert num_eager <= min(restart_every or 4, 4)
    assert len(updates.graphs) == (1 if restart_every is None else num_eager)


@pytest.mark.parametrize("schedule", SCHEDULES[:5], ids=str)
@pytest.mark.parametrize("settings", CORES, ids=["modern", "outer", "gelu", "not fused"])
def test_a_captured_update_of_a_modern_core_is_the_update(schedule, settings):
    sizes = {"training__num_lanes": 8, "training__segment_length": 32}
    assert_captured_is_eager(recipe_for(schedule, settings=settings, **sizes))


@pytest.mark.parametrize("schedule", [*SCHEDULES[:1], *SCHEDULES[2:4]], ids=str)
def test_a_captured_update_with_a_loss_after_the_first_pass_is_the_update(schedule):
    sizes = {"training__num_lanes": 8, "training__segment_length": 32}
    assert_captured_is_eager(recipe_for(schedule, training__passes__loss="ends", **sizes))


@pytest.mark.parametrize("length", [28, 30])
@pytest.mark.parametrize("restart_every", [None, 7])
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
def test_a_captured_update_of_broken_chunks_is_the_update(eager, schedule, restart_every, length):
    recipe = recipe_for(
        schedule,
        training__num_lanes=8,
        training__segment_length=length,
        training__restart_every=restart_every,
    )
    updates = assert_captured_is_eager(recipe).step
    assert eager.count(updates) <= 5
    assert len(updates.graphs) > 1 or length % schedule.chunk_size == 0


@pytest.mark.parametrize(("kind", "fraction"), [("adamw", 1.0), ("muon", 1.0), ("muon", 0.25)])
def test_a_captured_update_is_the_update_of_every_optimiser(kind, fraction):
    recipe = recipe_for(
        Staircase(chunk_size=8, num_passes=4),
        training__num_lanes=8,
        training__segment_length=32,
        training__optimizer__kind=kind,
        training__optimizer__adamw_fraction=fraction,
        training__optimizer__weight_decay=0.1,
    )
    assert_captured_is_eager(recipe)


@pytest.mark.parametrize("gradient_passes", [None, 1])
@pytest.mark.parametrize(
    "schedule",
    [
        Staircase(chunk_size=8, num_passes=4),
        CachedStaircase(chunk_size=8, num_window_chunks=4, num_passes=2),
        Ladder(num_passes=3, span=40),
    ],
    ids=str,
)
def test_captured_updates_of_several_depths_are_the_updates(schedule, gradient_passes):
    """Each depth has graphs of its own; a state that goes from one to another is the same."""
    recipe = recipe_for(
        schedule,
        **DRAWN,
        training__passes__gradient_passes=gradient_passes,
        training__num_lanes=8,
        training__segment_length=32,
    )
    updates = assert_captured_is_eager(recipe, 48).step
    assert {signature[0] for signature in updates.graphs} == {(1,), (2,), (3,)}


def test_captured_updates_of_parts_with_depths_of_their_own_are_the_updates(eager):
    recipe = recipe_for(
        Ladder(num_passes=3, span=40),
        training__passes={"kind": "parts", "choices": [1, 4]},
        training__num_micro_batches=2,
        training__num_lanes=8,
        training__segment_length=32,
    )
    updates = assert_captured_is_eager(recipe).step
    assert {signature[0] for signature in updates.graphs} == {(1, 4)}
    # An empty state, one that is not full yet, and a full one.
    assert eager.count(updates) <= 3


def test_an_update_with_exchanged_gradients_is_captured():
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        schedule = Staircase(chunk_size=8, num_passes=4)
        captured, learner, said = loss_curve(recipe_for(schedule), 24, processes=IN_A_GROUP)
        assert learner.step.graphs
        assert not said
        alone, _, _ = loss_curve(recipe_for(schedule), 24)
        assert captured.tolist() == alone.tolist()
    finally:
        dist.destroy_process_group()


def assert_captured_is_eager(recipe, num_updates=24):
    """The same losses, weights and states with and without graphs, bit for bit.

    Gives back the learner that had them.
    """
    captured, learner, said = loss_curve(recipe, num_updates)
    assert learner.step.graphs
    assert not said
    eager, other, _ = loss_curve(recipe, num_updates, capture=False)
    assert captured.tolist() == eager.tolist()
    for one, two in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(learner.states[0].streams, other.states[0].streams, strict=True):
        assert one.position == two.position
        assert sorted(one.banks) == sorted(two.banks)
        for key, held in one.banks.items():
            assert all(torch.equal(*pair) for pair in zip(held, two.banks[key], strict=True))
        assert one.cached == two.cached
        for mine, theirs in zip(one.cache, two.cache, strict=True):
            assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
    return learner


@pytest.mark.parametrize("row", ["staircase-n4-c16", "cached-staircase-c4", "transformer-xl"])
def test_a_run_of_full_size_can_be_repeated(row):
    """Bit for bit: with so many tokens and so few symbols, some kernels add in any order."""
    recipe = find_recipe(f"random-walk-fast/{row}")
    (losses, learner, _), (others, other, _) = (loss_curve(recipe, 8) for _ in range(2))
    assert losses.tolist() == others.tolist()
    for one, two in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("changes", [{}, DRAWN], ids=["fixed", "drawn"])
@pytest.mark.parametrize("restart_every", [None, 6])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_run_under_graphs_equals_an_uninterrupted_one(
    tmp_path, precision, restart_every, changes
):
    recipe = recipe_for(
        Staircase(chunk_size=4, num_passes=3),
        **changes,
        training__num_updates=24,
        training__restart_every=restart_every,
        training__segment_length=16,
        training__precision=precision,
    )
    train(recipe, tmp_path / "whole")

    with pytest.raises(KilledError):
        train(recipe, tmp_path / "broken", progress=Interrupting(14))
    resume(tmp_path / "broken")
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


def test_the_length_of_training_has_the_score_of_the_result(tmp_path):
    """Both are scored by the engine; the plain core rounds in other places."""
    recipe = recipe_for(Ladder(num_passes=3, span=24), training__precision="bfloat16")
    result = train(recipe, tmp_path)
    length = recipe.task.options["length"]
    score_lengths(tmp_path, [length])
    assert read_lengths(tmp_path)[length].to_plain() == result.test
