"""A run notices when it has lost its way, goes back, and says so."""

import math
from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Interrupting, KilledError, final_bytes, kill, metrics_of, small_recipe

from staircase_attention.evaluation import Score
from staircase_attention.tasks import Episodes
from staircase_attention.training import DivergenceConfig, resume, train
from staircase_attention.training.checkpoint import LossWatch
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.processes import StopRequested
from staircase_attention.training.recipe import OptimizerConfig

CONFIG = DivergenceConfig(jump_factor=1.5, patience=5, smoothing=0.5, max_skips=3)


FALLING = [2.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (FALLING, "healthy"),
        ([*FALLING, 4.0, 4.0], "high"),
        ([*FALLING, 4.0, 4.0, 0.5, 0.5, 0.5, 0.4], "healthy"),
        ([*FALLING, *[4.0] * 5], "diverged"),
        # Near zero, noise is many times the lowest loss.
        ([1.0, 1e-6, *[1e-3] * 50], "healthy"),
        (["skip"] * 2, "high"),
        (["skip"] * 3, "diverged"),
        (["skip"] * 3 + [1.0], "healthy"),
        # Longer episodes have higher losses.
        ([*FALLING, "grow", *[4.0] * 20], "healthy"),
        ([*FALLING, 4.0, 4.0, "grow", *[4.0] * 3], "diverged"),
    ],
)
def test_a_loss_that_jumps_and_stays_high_is_divergence(events, expected):
    watch = LossWatch()
    for event in events:
        if event == "skip":
            watch.num_skipped += 1
        elif event == "grow":
            watch.forget()
        else:
            watch.num_skipped = 0
            watch.see(event, CONFIG)
    assert watch.is_healthy == (expected == "healthy")
    assert watch.has_diverged(CONFIG) == (expected == "diverged")


def test_the_first_losses_are_averaged_and_no_measure_yet():
    config = replace(CONFIG, smoothing=0.75)
    watch = LossWatch()
    for loss in [1.0, 9.0, 5.0]:
        watch.see(loss, config)
    assert watch.smoothed == pytest.approx(5.0)
    assert watch.lowest == math.inf
    watch.see(5.0, config)
    assert watch.lowest == watch.smoothed == pytest.approx(5.0)


def test_a_loss_far_above_a_uniform_guess_is_divergence_from_the_first_update_on():
    watch, unaware = LossWatch(), LossWatch()
    for _ in range(CONFIG.patience):
        watch.see(45.0, CONFIG, uniform=0.7)
        unaware.see(45.0, CONFIG)
    assert watch.has_diverged(CONFIG)
    assert not unaware.has_diverged(CONFIG)


def test_a_run_that_is_bad_from_the_start_does_not_end_as_if_nothing_had_happened(
    tmp_path, monkeypatch
):
    true_update = Learner.update

    def update(self, batch, **options):
        outcome = true_update(self, batch, **options)
        return replace(outcome, loss=45.0 * outcome.num_answers)

    monkeypatch.setattr(Learner, "update", update)
    result = train(RECIPE, tmp_path / "run")
    assert (result.status, result.outcome, result.num_rollbacks) == ("diverged", "diverged", 2)


@given(share=st.floats(0.5, 0.95), answers=st.integers(100, 10_000))
def test_a_model_has_learnt_if_its_error_is_below_the_best_constant_answer(share, answers):
    """The best constant answer is the commonest; chance may help a little."""
    data = build_dataset(small_recipe())
    targets = np.where(np.arange(answers) < share * answers, 1, 0)
    episodes = Episodes(inputs=np.zeros(answers, int), targets=targets, starts=np.array([0]))
    guess = float(np.mean(targets == 0))
    chance = 3 * math.sqrt(guess * (1 - guess) / answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(data), "episodes", lambda *_: episodes)
        for error, expected in ((guess, False), (guess - 0.9 * chance, False), (0.0, True)):
            score = Score(loss=0.1, error=error, num_answers=answers)
            assert data.beats_constant("test", score) is (expected and guess > chance)


def test_longer_episodes_make_no_divergence(tmp_path, monkeypatch):
    """With the true loss of each length, four times as high after every doubling."""
    true_update = Learner.update
    losses = iter(0.04 * 4.0 ** (number // 20) for number in range(60))

    def update(self, batch, **options):
        outcome = true_update(self, batch, **options)
        return replace(outcome, loss=next(losses) * outcome.num_answers)

    monkeypatch.setattr(Learner, "update", update)
    recipe = small_recipe(
        training__num_updates=60,
        training__divergence__smoothing=0.5,
        training__divergence__patience=5,
        training__growth__first_tokens=3,
        training__growth__double_every=20,
        training__growth__num_doublings=2,
    )
    assert train(recipe, tmp_path / "run").num_rollbacks == 0


def diverging(monkeypatch, *, heals_below):
    """Let the loss leap at update 9 of any run whose rate is too high."""
    true_update = Learner.update

    def update(self, batch, *, rate, **options):
        outcome = true_update(self, batch, rate=rate, **options)
        self.seen = getattr(self, "seen", 0) + 1
        if rate < heals_below or self.seen < 9:
            return outcome
        return replace(outcome, loss=100.0 * outcome.num_answers)

    monkeypatch.setattr(Learner, "update", update)


def test_an_update_without_answers_ends_a_series_of_skipped_ones(tmp_path, monkeypatch):
    true_update, are_applied = Learner.update, cycle([False, True])

    def update(self, *arguments, **options):
        outcome = true_update(self, *arguments, **options)
        return replace(outcome, was_applied=next(are_applied), num_answers=0)

    monkeypatch.setattr(Learner, "update", update)
    recipe = small_recipe(training__divergence__max_skips=2)
    assert train(recipe, tmp_path / "run").num_rollbacks == 0


RECIPE = small_recipe(
    training__num_updates=20,
    training__divergence__patience=3,
    training__divergence__smoothing=0.0,
    training__divergence__max_rollbacks=2,
)


def test_a_run_that_diverges_where_episodes_grow_goes_back_all_the_same(tmp_path, monkeypatch):
    """The loss leaps one update before a doubling, and stays up after it."""
    diverging(monkeypatch, heals_below=6e-3)
    growth = {"training.growth.first_tokens": 3, "training.growth.double_every": 10}
    result = train(RECIPE.override(growth), tmp_path / "run")
    assert (result.status, result.num_rollbacks) == ("finished", 1)


def test_a_diverged_run_goes_back_to_a_good_checkpoint_at_a_lower_rate(tmp_path, monkeypatch):
    diverging(monkeypatch, heals_below=0.009)
    result = train(RECIPE, tmp_path / "run")
    assert result.status == "finished"
    assert result.num_rollbacks == 1
    assert result.num_updates == 20
    [event] = [line for line in metrics_of(tmp_path / "run") if line["kind"] == "rollback"]
    assert event["from_update"] == 11
    assert event["update"] == 8
    assert event["rate_scale"] == 0.5
    after = [line for line in metrics_of(tmp_path / "run") if line["kind"] == "train"][-1]
    assert after["learning_rate"] == pytest.approx(0.005)


def test_a_run_that_keeps_diverging_gives_up_and_keeps_its_best(tmp_path, monkeypatch):
    diverging(monkeypatch, heals_below=0.0)
    result = train(RECIPE, tmp_path / "run")
    assert result.status == "diverged"
    assert result.num_rollbacks == 2
    assert result.best_update is not None
    assert result.test["error"] <= 1.0
    assert resume(tmp_path / "run") == result


def test_a_rollback_survives_a_restart(tmp_path, monkeypatch):
    """What is saved right after a rollback is the lower rate, not the run before it."""
    diverging(monkeypatch, heals_below=0.009)
    train(RECIPE, tmp_path / "whole")

    class Stop(Interrupting):
        def advance(self, update, **facts):
            if self.said:
                kill()

    with pytest.raises(KilledError):
        train(RECIPE, tmp_path / "broken", progress=Stop())
    resume(tmp_path / "broken")
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


def test_a_run_that_was_stopped_goes_back_as_far_as_one_that_was_not(tmp_path, monkeypatch):
    """A checkpoint that a stop asked for is not one that the whole run would have had."""
    diverging(monkeypatch, heals_below=0.009)
    recipe = RECIPE.override({"training.checkpoint_every": 20})
    train(recipe, tmp_path / "whole")
    diverges = Learner.update

    def update(self, batch, *, wants_stop, **options):
        self.seen = getattr(self, "seen", first)
        return diverges(self, batch, wants_stop=wants_stop or self.seen == 6, **options)

    monkeypatch.setattr(Learner, "update", update)
    first = 0
    with pytest.raises(StopRequested):
        train(recipe, tmp_path / "stopped")
    first = 7
    resume(tmp_path / "stopped")
    assert final_bytes(tmp_path / "stopped") == final_bytes(tmp_path / "whole")


@pytest.mark.parametrize(("decay", "end"), [("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)])
def test_the_rate_warms_up_then_keeps_its_course(decay, end):
    config = OptimizerConfig(learning_rate=1.0, warm_up=10, decay=decay, final_fraction=0.1)
    rates = [learning_rate(config, update, 100) for update in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[100] == pytest.approx(end)
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))
