"""The training loop: update, log, evaluate, save; and what is done when things go wrong."""

import math
import time
from typing import Any

import torch

from staircase_attention.evaluation import Score, evaluate
from staircase_attention.tasks import lanes_of_process
from staircase_attention.training.build import Model, build_dataset, build_model, precision_of
from staircase_attention.training.checkpoint import (
    WEIGHTS,
    Checkpoint,
    CheckpointName,
    DamagedCheckpointError,
)
from staircase_attention.training.dataset import (
    Dataset,
    LanePosition,
    SplitName,
    TrainingBatch,
    TrainingLanes,
)
from staircase_attention.training.display import Display
from staircase_attention.training.learner import Learner, Outcome
from staircase_attention.training.metrics import MetricsLog
from staircase_attention.training.processes import Processes
from staircase_attention.training.progress import Progress
from staircase_attention.training.rate import learning_rate
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import RunFolder
from staircase_attention.training.signals import StopRequested, Wish
from staircase_attention.training.snapshot import restore_snapshot, write_snapshot


class Trainer:
    """One run, from wherever it stands to its end."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        *,
        device: torch.device,
        processes: Processes,
        display: Display,
        wish: Wish,
    ) -> None:
        self.recipe, self.config, self.folder = recipe, recipe.training, folder
        self.device, self.processes, self.display, self.wish = device, processes, display, wish
        self.own_lanes = lanes_of_process(processes.rank, processes.count, self.config.num_lanes)
        if len(self.own_lanes) % self.config.num_micro_batches:
            raise ValueError(
                "training.num_micro_batches must divide the lanes of a process, got "
                f"{self.config.num_micro_batches} for {len(self.own_lanes)}; change one of them"
            )
        self.data: Dataset = build_dataset(recipe)
        # The same initial weights in every process; dropout then differs between them.
        torch.manual_seed(recipe.seed)
        self.learner = Learner(
            recipe,
            build_model(recipe, self.data),
            device,
            processes,
            carries_state=self.data.carries_state,
            say=display.say,
        )
        torch.manual_seed(recipe.seed + processes.rank)
        self.lanes: TrainingLanes = self.data.lanes(
            num_lanes=self.config.num_lanes, segment_length=self.config.segment_length
        )
        self.progress = Progress(position=self.lanes.first_position())
        self.speed = 0.0
        """Tokens a second, smoothed over some updates."""
        self.log: MetricsLog | None = None
        self._ahead: tuple[LanePosition, tuple[TrainingBatch, LanePosition]] | None = None
        """A position, the batch there, and the position after it."""

    def run(self) -> None:
        """Train to the end; a run that was stopped goes on where it stood."""
        num_bytes = self._take_up()
        if self.processes.is_first:
            self.log = MetricsLog(self.folder, num_bytes=num_bytes, update=self.progress.update)
        self.display.begin(self.recipe.name, self.progress.update, self.config.num_updates)
        last = self.config.growth.longest(self.config.num_updates - 1)
        if last is not None:
            self.display.say(
                f"episodes are cut to {last} tokens to the end of training; "
                "with a lower training.growth.double_every (or first_updates) they become whole"
            )
        try:
            if not self.folder.checkpoints.names():
                self._save()
            while self._must_go_on():
                self._advance()
        finally:
            self.display.end()
            if self.log is not None:
                self.log.close()

    def score(self, split: SplitName) -> Score:
        """The model as it is now, on one split."""
        return score_split(
            self.learner.model, self.data, split, recipe=self.recipe, device=self.device
        )

    def describe(self, split: SplitName) -> dict[str, Any]:
        """The model's score on one split, with all that it means, as plain data."""
        score = self.score(split)
        return score.to_plain() | self.data.facts(split, score)

    def load_best_weights(self) -> None:
        """Put the best checkpoint's weights into the model; if it is damaged, let these be it."""
        self.folder.require_own()
        name = self.progress.best
        assert name is not None
        try:
            checkpoint = self.folder.checkpoints.read(name)
        except DamagedCheckpointError as error:
            self.display.say(
                f"damaged checkpoint: {error}; it was the best, and the weights of update "
                f"{self.progress.update:,} are scored in its place"
            )
            self._set_aside(name)
            self.progress.forget_best()
            if self._is_best(self.score("valid")):
                self._save()
        else:
            self.learner.model.load_state_dict(checkpoint.tensors[WEIGHTS])

    def _take_up(self) -> int:
        """Go to the latest checkpoint that is whole; the length of the metrics up to it."""
        for name in reversed(self.folder.checkpoints.names()):
            try:
                checkpoint = self.folder.checkpoints.read(name)
            except DamagedCheckpointError as error:
                self.display.say(f"damaged checkpoint: {error}; falling back to the one before it")
                self._set_aside(name)
                continue
            self._restore(checkpoint)
            num_bytes: int = checkpoint.trainer["metrics_bytes"]
            return num_bytes
        return 0

    def _set_aside(self, name: CheckpointName) -> None:
        if self.processes.is_first:
            self.folder.checkpoints.set_aside(name)

    def _restore(self, checkpoint: Checkpoint) -> None:
        restore_snapshot(checkpoint, self.learner)
        self.progress = Progress.from_plain(checkpoint.trainer["progress"], self.data)
        if self.progress.best not in self.folder.checkpoints.names():
            self.progress.forget_best()

    def _must_go_on(self) -> bool:
        """Whether there is more to do; a run that has diverged first goes back."""
        while self.progress.watch.has_diverged(self.config.divergence):
            self._roll_back()
        return self.progress.update < self.config.num_updates

    def _advance(self) -> None:
        """One update, and all that is due after it."""
        began = time.perf_counter()
        progress, config = self.progress, self.config
        batch, position = self._batch_at(progress.position)
        rate = progress.rate_scale * learning_rate(
            config.optimizer, progress.update, config.num_updates
        )
        outcome = self.learner.update(
            batch,
            lanes=self.own_lanes,
            rate=rate,
            wants_stop=bool(self.wish.number),
            meanwhile=lambda: self._make_ahead(position),
        )
        progress.position = position
        progress.update += 1
        if self._restarts_after(progress.update):
            self.learner.restart()
        progress.num_tokens += batch.inputs.size
        self._watch(outcome)
        seconds = time.perf_counter() - began
        progress.wall_seconds += seconds
        latest = batch.inputs.size / seconds
        self.speed = latest if not self.speed else 0.95 * self.speed + 0.05 * latest
        self._log_if_due(outcome, rate)
        is_last = progress.update == config.num_updates
        is_better = False
        if is_last or progress.update % config.evaluate_every == 0:
            is_better = self._evaluate()
        if is_better or is_last or progress.update % config.checkpoint_every == 0:
            self._save()
        # Processes that train together stop after an update of which all knew before it began.
        if outcome.wants_stop or (self.wish.number and self.processes.count == 1):
            self._stop()

    def _batch_at(self, position: LanePosition) -> tuple[TrainingBatch, LanePosition]:
        """The batch at a position, and the position after it."""
        if self._ahead is not None and self._ahead[0] is position:
            return self._ahead[1]
        batch, after = self.lanes.batch(position)
        if self._restarts_after(after.update):
            after = self.lanes.restarted(after)
        return batch, after

    def _restarts_after(self, update: int) -> bool:
        """Whether lanes begin anew after so many updates."""
        every = self.config.restart_every
        return every is not None and update % every == 0

    def _make_ahead(self, position: LanePosition) -> None:
        """Make the next batch while a device is at work on this one."""
        if self.device.type == "cuda" and self.progress.update + 1 < self.config.num_updates:
            self._ahead = (position, self._batch_at(position))

    def _watch(self, outcome: Outcome) -> None:
        progress = self.progress
        if self.config.growth.grows_at(progress.update - 1):
            progress.watch.forget()
        if not outcome.was_applied:
            progress.watch.skip()
            self._write("skipped", num_in_a_row=progress.watch.num_skipped)
            return
        if outcome.num_answers:
            loss = outcome.loss / outcome.num_answers
            progress.watch.see(loss, self.config.divergence)
        seen = (outcome.loss, float(outcome.num_wrong), float(outcome.num_answers))
        progress.since_log = [old + new for old, new in zip(progress.since_log, seen, strict=True)]

    def _log_if_due(self, outcome: Outcome, rate: float) -> None:
        progress = self.progress
        facts = {}
        if progress.update % self.config.log_every == 0 and progress.since_log[2]:
            loss, wrong, answers = progress.since_log
            facts = {"loss": loss / answers, "error": wrong / answers}
            self._write(
                "train",
                **facts,
                learning_rate=rate,
                gradient_norm=outcome.gradient_norm,
                num_tokens=progress.num_tokens,
            )
            progress.since_log = [0.0, 0.0, 0.0]
            self._write_timing()
        self.display.advance(progress.update, **facts, tokens_per_second=self.speed)

    def _evaluate(self) -> bool:
        """Score the validation data; whether that is the best so far."""
        began = time.perf_counter()
        score, progress = self.score("valid"), self.progress
        progress.wall_seconds += time.perf_counter() - began
        self._write_timing()
        facts = self.data.facts("valid", score)
        self._write("valid", loss=score.loss, error=score.error, **facts)
        name, value = next(iter(facts.items()), ("error", score.error))
        self.display.advance(progress.update, **{f"valid_{name}": value})
        return self._is_best(score)

    def _is_best(self, score: Score) -> bool:
        """Whether a score on the validation data is the best so far, which is then noted."""
        progress, rank = self.progress, self.data.rank(score)
        is_first = progress.best_update is None
        is_better = math.isfinite(score.loss) and (is_first or rank < progress.best_rank)
        # All processes do as the first one says: a last digit must not part them.
        if not self.processes.agree(is_better):
            return False
        progress.best_rank = rank
        progress.best_update = progress.update
        progress.best_rollbacks = progress.num_rollbacks
        return True

    def _write(self, kind: str, **values: Any) -> None:  # noqa: ANN401
        if self.log is not None:
            self.log.write(kind, self.progress.update, **values)

    def _write_timing(self) -> None:
        if self.log is not None:
            self.log.write_timing(
                self.progress.update,
                tokens_per_second=self.speed,
                wall_seconds=self.progress.wall_seconds,
            )

    def _save(self, *, is_due: bool = True) -> None:
        """Write a checkpoint, then drop those that nothing needs any more.

        One that is not due, but asked for, is none to go back to after a divergence: a run that
        is stopped and resumed does as one that is not.
        """
        self.folder.require_own()
        trainer = {
            "progress": self.progress.to_plain(),
            "metrics_bytes": 0 if self.log is None else self.log.num_bytes,
            "is_calm": is_due and self.progress.watch.is_calm,
        }
        write_snapshot(self.folder.checkpoints, self.progress.name, self.learner, trainer)
        if self.processes.is_first:
            self._prune()

    def _prune(self) -> None:
        """Keep the latest two, the latest good one, the best they know of, and every k-th."""
        every = self.config.keep_every
        notes = self.folder.checkpoints.notes()
        calm = [name for name, note in notes.items() if note["is_calm"]]
        # A run may go on from any of these, and must then find the best that it knew.
        kept = {*list(notes)[-2:], *calm[-1:]}
        known = [Progress.best_in(notes[name]["progress"]) for name in kept]
        kept |= {name for name in known if name is not None}
        for name in notes:
            is_kth = every is not None and name.update % every == 0
            if name not in kept and not is_kth:
                self.folder.checkpoints.remove(name)

    def _latest_calm(self) -> Checkpoint:
        """The latest checkpoint that is whole and was taken while nothing was wrong."""
        for name, note in reversed(self.folder.checkpoints.notes().items()):
            if note["is_calm"]:
                try:
                    return self.folder.checkpoints.read(name)
                except DamagedCheckpointError as error:
                    self.display.say(f"damaged checkpoint: {error}; going further back")
        raise DivergedError(
            f"diverged at update {self.progress.update:,}, with no good checkpoint left"
        )

    def _stop(self) -> None:
        if self.folder.checkpoints.names()[-1:] != [self.progress.name]:
            self._save(is_due=False)
        raise StopRequested(
            self.wish.number or 15,
            f"stopped at update {self.progress.update:,}, saved; "
            f"go on with: {self.folder.resume_command}",
        )

    def _roll_back(self) -> None:
        """Return to the latest good checkpoint, at a lower learning rate."""
        limits, before = self.config.divergence, self.progress
        if before.num_rollbacks >= limits.max_rollbacks:
            raise DivergedError(
                f"diverged at update {before.update:,} after {before.num_rollbacks} rollbacks"
            )
        self._restore(self._latest_calm())
        progress = self.progress
        progress.rate_scale = before.rate_scale * limits.rate_factor
        progress.num_rollbacks = before.num_rollbacks + 1
        progress.wall_seconds = before.wall_seconds
        progress.num_tokens = before.num_tokens
        facts = {"from_update": before.update, "rate_scale": progress.rate_scale}
        self._write("rollback", **facts, num_rollbacks=progress.num_rollbacks)
        self.display.say(
            f"diverged at update {before.update:,}: back to update {progress.update:,} "
            f"with the learning rate times {progress.rate_scale:g}"
        )
        self.processes.wait()
        self._save()


def score_split(
    model: Model, data: Dataset, split: SplitName, *, recipe: Recipe, device: torch.device
) -> Score:
    """A model's score on one split of its data."""
    config = recipe.training
    return evaluate(
        model,
        data.batches(
            split, num_lanes=config.evaluation_lanes, segment_length=config.segment_length
        ),
        device=device,
        precision=precision_of(recipe),
        carries_state=data.carries_state,
    )


class DivergedError(RuntimeError):
    """A run that diverged more often than its recipe allows."""
