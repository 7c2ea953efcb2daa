"""The training loop: batch, update, log, evaluate, save; roll back when the loss diverges."""

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from staircase_attention import files
from staircase_attention.batches import Batch
from staircase_attention.checks import input_error
from staircase_attention.display import Display, counted
from staircase_attention.evaluation import Score, displayed, evaluate, title
from staircase_attention.tasks import Lanes, lanes_of_process
from staircase_attention.training.checkpoint import (
    WEIGHTS,
    Checkpoint,
    CheckpointName,
    DamagedCheckpointError,
    TrainingProgress,
)
from staircase_attention.training.dataset import Dataset, Position, SplitName, build_dataset
from staircase_attention.training.learner import Learner, Outcome, build_model, precision_of
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.processes import Processes, StopRequest, StopRequested
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import MetricsLog, RunFolder, RunResult, device_name

# The splits that a run's result has scores of.
SCORED: tuple[SplitName, ...] = ("valid", "test")


class DivergedError(RuntimeError):
    """A run that diverged more often than its recipe allows."""


@dataclass(eq=False)
class Trainer:
    """One run, from wherever it is to its result."""

    recipe: Recipe
    folder: RunFolder
    device: torch.device
    processes: Processes
    display: Display
    stop: StopRequest

    def __post_init__(self) -> None:
        self.config, recipe, processes = self.recipe.training, self.recipe, self.processes
        self.own_lanes = lanes_of_process(processes.rank, processes.count, self.config.num_lanes)
        if (fewest := self.config.num_lanes // processes.count) < self.config.num_micro_batches:
            rule = "training.num_micro_batches must be at most the lanes of every process"
            received = f"{self.config.num_micro_batches} for {fewest}"
            raise input_error(rule, received, "change one of them")
        self.data: Dataset = build_dataset(recipe)
        # The same initial weights in every process; dropout then differs between them.
        torch.manual_seed(recipe.seed)
        self.learner = Learner(
            recipe,
            build_model(recipe, self.data),
            self.device,
            processes,
            carries_state=self.data.carries_state,
            report=self.display.say,
        )
        torch.manual_seed(recipe.seed + processes.rank)
        # Positions belong to lanes of the same kind, which mypy cannot see.
        self.lanes: Any = self.data.lanes(
            num_lanes=self.config.num_lanes, segment_length=self.config.segment_length
        )
        self.progress = TrainingProgress(position=self.lanes.first_position())
        self.speed = 0.0
        """Tokens per second, smoothed over some updates."""
        self.log: MetricsLog | None = None
        self._prefetched: tuple[Position, tuple[Batch, Position]] | None = None
        """A position, the batch there, and the position after it."""

    def run(self) -> RunResult:
        """Train to the last update, then score the best weights."""
        config, status = self.config, "finished"
        try:
            self._start()
            while self._has_updates_left():
                started, progress = time.perf_counter(), self.progress
                batch, position = self._batch_at(progress.position)
                rate = progress.rate_scale * learning_rate(
                    config.optimizer, progress.update, config.num_updates
                )
                outcome = self.learner.update(
                    batch,
                    lanes=self.own_lanes,
                    rate=rate,
                    wants_stop=bool(self.stop.number),
                    num_passes=config.passes.draw(
                        progress.update, config.num_updates, seed=self.recipe.seed
                    ),
                    meanwhile=partial(self._prefetch, position),
                )
                self._record(outcome, batch, position, time.perf_counter() - started)
                self._log_if_due(outcome, rate)
                is_last = progress.update == config.num_updates
                is_scored = is_last or progress.update % config.evaluate_every == 0
                is_best = is_scored and self._evaluate()
                if is_best or is_last or progress.update % config.checkpoint_every == 0:
                    self._save()
                # Several processes stop after an update before which all knew of the request.
                if outcome.wants_stop or (self.stop.number and self.processes.count == 1):
                    self._stop()
        except DivergedError as error:
            status = "diverged"
            self.display.say(str(error))
        finally:
            self.folder.checkpoints.end()
            self.display.end()
            if self.log is not None:
                self.log.close()
        return self._finish(status)

    def score(
        self, split: SplitName, display: Display | None = None
    ) -> tuple[Score, dict[str, float]]:
        """The score of the present weights on one split, and its further measures."""
        score = score_split(
            self.learner.objective,
            self.data,
            split,
            recipe=self.recipe,
            device=self.device,
            num_tokens=self._num_tokens(split),
            display=display,
        )
        self.learner.reshard()
        return score, self.data.facts(split, score, self._num_tokens(split))

    def _num_tokens(self, split: SplitName) -> int | None:
        """How many tokens of a corpus are scored: of the test, which is scored once, all."""
        return None if split == "test" else self.config.evaluation_tokens

    def _start(self) -> None:
        """Restore the latest checkpoint that is whole, and continue the metrics from there."""
        metrics: dict[str, Any] = {"num_bytes": 0}
        if self.processes.is_first:
            # What killed processes have left unfinished.
            self.folder.checkpoints.abandon()
            for path in self.folder.path.glob(f".*{files.PARTIAL}"):
                path.unlink()
        # Nobody writes before the rest of an earlier process is gone.
        self.processes.wait()
        for name in reversed(self.folder.checkpoints.names()):
            checkpoint = self._read(name, otherwise="falling back to the one before it")
            if checkpoint is not None:
                metrics = self._restore(checkpoint)
                break
        progress, config = self.progress, self.config
        if self.processes.is_first:
            self.log = MetricsLog(self.folder, update=progress.update, **metrics)
        self.display.begin(self.recipe.name, progress.update, config.num_updates)
        longest = config.growth.longest(config.num_updates - 1)
        first = np.arange(config.num_lanes)
        # By the length of the first episodes: others may not have been drawn.
        if longest is not None and self.lanes.source.find(first)[0].lengths.max() > longest:
            self.display.say(
                f"episodes are cut to {counted(longest, 'tokens')} to the end of training; "
                "with a lower training.growth.double_every (or first_updates) they become whole"
            )
        valid = title("valid", self.data.extent("valid", config.evaluation_tokens))
        if valid != "valid":
            self.display.say(f"during training, scores are of {valid}")
        # From here on a run that is killed has something to resume from, and to roll back to. All
        # follow the first process: it may still have to set a damaged checkpoint aside.
        if self.processes.agree(not self.folder.checkpoints.names()):
            self._save()

    def _restore(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Continue from a checkpoint; the extent of the metrics when it was taken."""
        remedy = "delete it, and the run resumes from the one before it"
        with files.as_written("a checkpoint", self.folder.checkpoints.path, remedy):
            checkpoint.restore(self.learner)
            self.progress = TrainingProgress.from_plain(
                checkpoint.trainer["progress"], type(self.progress.position)
            )
            noted = checkpoint.trainer
            return {"num_bytes": int(noted["metrics_bytes"]), "sha256": noted.get("metrics_sha256")}

    def _read(self, name: CheckpointName, *only: str, otherwise: str) -> Checkpoint | None:
        """A checkpoint, or only these files of it; a damaged one is reported and set aside."""
        try:
            return self.folder.checkpoints.read(name, only=only)
        except DamagedCheckpointError as error:
            self.display.say(f"damaged checkpoint: {error}; {otherwise}")
            # Other processes may still be reading it: to them, too, it is damaged or gone.
            if self.processes.is_first:
                self.folder.checkpoints.set_aside(name)
            return None

    def _has_updates_left(self) -> bool:
        """Whether there is more to train; a run that has diverged is rolled back first."""
        while self.progress.watch.has_diverged(self.config.divergence):
            self._roll_back()
        return self.progress.update < self.config.num_updates

    def _batch_at(self, position: Position) -> tuple[Batch, Position]:
        """The batch at a position, and the position after it."""
        if self._prefetched is not None and self._prefetched[0] is position:
            return self._prefetched[1]
        batch, after = self.lanes.batch(position)
        # Text continues even where states are reset.
        if self._restarts_after(after.update) and isinstance(self.lanes, Lanes):
            after = self.lanes.restarted(after)
        return batch, after

    def _prefetch(self, position: Position) -> None:
        """Make the next batch while the GPU works on this one."""
        if self.device.type == "cuda" and self.progress.update + 1 < self.config.num_updates:
            # On a CPU it would take time from the update itself.
            self._prefetched = (position, self._batch_at(position))

    def _restarts_after(self, update: int) -> bool:
        """Whether lanes restart after this update."""
        every = self.config.restart_every
        return every is not None and update % every == 0

    def _record(self, outcome: Outcome, batch: Batch, position: Position, seconds: float) -> None:
        """Note one update in the progress."""
        progress = self.progress
        progress.position = position
        progress.update += 1
        if self._restarts_after(progress.update):
            self.learner.restart()
        progress.num_tokens += batch.inputs.size
        progress.wall_seconds += seconds
        # The first update includes compiling and warming up, so it fades out.
        latest = batch.inputs.size / seconds
        self.speed = latest if not self.speed else 0.95 * self.speed + 0.05 * latest
        # Before this update's loss is seen: it is the first of longer episodes.
        if self.config.growth.grows_at(progress.update - 1):
            progress.watch.forget()
        if not outcome.was_applied:
            progress.watch.num_skipped += 1
            self._write("skipped", num_in_a_row=progress.watch.num_skipped)
            return
        progress.watch.num_skipped = 0
        if outcome.num_answers:
            uniform = math.log(self.data.num_outputs)
            progress.watch.see(outcome.loss / outcome.num_answers, self.config.divergence, uniform)
        seen = (outcome.loss, float(outcome.num_wrong), float(outcome.num_answers))
        progress.since_log = [old + new for old, new in zip(progress.since_log, seen, strict=True)]

    def _log_if_due(self, outcome: Outcome, rate: float) -> None:
        progress, facts = self.progress, {}
        is_last = progress.update == self.config.num_updates
        is_due = is_last or progress.update % self.config.log_every == 0
        if is_due and progress.since_log[2]:
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
        """Score the validation data; whether that is the best score so far, which is then noted."""
        started = time.perf_counter()
        (score, facts), progress = self.score("valid"), self.progress
        progress.wall_seconds += time.perf_counter() - started
        self._write_timing()
        self._write("valid", loss=score.loss, error=score.error, **facts)
        name, value = next(iter(facts.items()), ("error", score.error))
        self.display.advance(progress.update, **{f"valid_{name}": value})
        rank, is_first = self.data.rank(score), progress.best_update is None
        is_better = math.isfinite(score.loss) and (is_first or rank < progress.best_rank)
        # All processes follow the first one, so that rounding cannot make them disagree.
        is_best = self.processes.agree(is_better)
        if is_best:
            progress.best_rank, progress.best_update = rank, progress.update
            progress.best_rollbacks = progress.num_rollbacks
        return is_best

    def _write(self, kind: str, **values: Any) -> None:  # noqa: ANN401
        if self.log is not None:
            self.log.write(kind, self.progress.update, **values)

    def _write_timing(self) -> None:
        if self.log is not None:
            self.log.write_timing(self.progress.update, self.speed, self.progress.wall_seconds)

    def _save(self, *, is_due: bool = True) -> None:
        """Write a checkpoint, then delete those that are no longer needed.

        One that is not due, because a stop was requested, is not rolled back to: a run that was
        stopped and resumed does the same as one that was not.
        """
        trainer = {
            "progress": asdict(self.progress),
            **({} if self.log is None else self.log.extent),
            "is_healthy": is_due and self.progress.watch.is_healthy,
        }
        self.folder.checkpoints.save(self.progress.name, self.learner, trainer, self._prune)

    def _prune(self) -> None:
        """Keep the latest two, the latest healthy one, the best that they know, and every k-th."""
        every = self.config.keep_every
        notes = self.folder.checkpoints.notes()
        healthy = [name for name, note in notes.items() if note["is_healthy"]]
        # A run may resume from any of these, and must then find its best checkpoint.
        kept = {*list(notes)[-2:], *healthy[-1:]}
        kept |= {notes[name]["best"] for name in kept}
        if every is not None:
            kept |= {name for name in notes if name.update % every == 0}
        self.folder.checkpoints.remove([name for name in notes if name not in kept])

    def _stop(self) -> None:
        self.folder.checkpoints.wait(self.processes)
        if self.folder.checkpoints.names()[-1:] != [self.progress.name]:
            self._save(is_due=False)
            self.folder.checkpoints.wait(self.processes)
        # Without a number, another process received the signal: SIGTERM stands for it.
        raise StopRequested(
            self.stop.number or 15,
            f"stopped at update {self.progress.update:,}, saved; "
            f"resume with: {self.folder.resume_command}",
        )

    def _roll_back(self) -> None:
        """Return to the latest healthy checkpoint, at a lower learning rate."""
        limits, before = self.config.divergence, self.progress
        if before.num_rollbacks >= limits.max_rollbacks:
            raise DivergedError(
                f"diverged at update {before.update:,} after {before.num_rollbacks} rollbacks"
            )
        self.folder.checkpoints.wait(self.processes)
        self._restore(self._latest_healthy())
        progress = self.progress
        progress.rate_scale = before.rate_scale * limits.rate_factor
        progress.num_rollbacks = before.num_rollbacks + 1
        # Time and tokens are spent, whatever became of them.
        progress.wall_seconds = before.wall_seconds
        progress.num_tokens = before.num_tokens
        facts = {"from_update": before.update, "rate_scale": progress.rate_scale}
        self._write("rollback", **facts, num_rollbacks=progress.num_rollbacks)
        self.display.say(
            f"diverged at update {before.update:,}: back to update {progress.update:,} "
            f"with the learning rate times {progress.rate_scale:g}"
        )
        # All must have read the old checkpoint before the first process prunes it.
        self.processes.wait()
        self._save()

    def _latest_healthy(self) -> Checkpoint:
        """The latest checkpoint that is whole and was taken while the loss was healthy."""
        for name, note in reversed(self.folder.checkpoints.notes().items()):
            checkpoint = note["is_healthy"] and self._read(name, otherwise="going further back")
            if checkpoint:
                return checkpoint
        raise DivergedError(
            f"diverged at update {self.progress.update:,}, with no healthy checkpoint left"
        )

    def _finish(self, status: str) -> RunResult:
        """Score the best weights and write the result."""
        self.folder.checkpoints.wait(self.processes)
        progress, scores = self.progress, {}
        ending: Literal["learnt", "did not learn", "diverged"] = "diverged"
        best_update = progress.best_update
        if progress.best is not None:
            now = f"the weights of update {progress.update:,} are scored instead"
            otherwise = f"it was the best, and {now}"
            checkpoint = self._read(progress.best, WEIGHTS, otherwise=otherwise)
            if checkpoint is not None:
                self.learner.load_weights(checkpoint.tensors[WEIGHTS])
            else:
                best_update = progress.update
            # Test data are scored once, with the weights that validation chose.
            for split in SCORED:
                extent = self.data.extent(split, self._num_tokens(split))
                if extent:
                    self.display.say(f"scoring {split}: {counted(extent['num_tokens'], 'tokens')}")
                score, facts = self.score(split, self.display)
                scores[split] = score.to_plain() | facts | extent
            if status == "finished":
                ending = "learnt" if self.data.beats_constant("test", score) else "did not learn"
        result = RunResult(
            recipe=self.recipe.name,
            seed=self.recipe.seed,
            status="diverged" if ending == "diverged" else "finished",
            num_updates=progress.update,
            num_tokens=progress.num_tokens,
            num_parameters=self.learner.model.num_parameters,
            wall_seconds=round(progress.wall_seconds, 3),
            device=device_name(self.device),
            num_rollbacks=progress.num_rollbacks,
            best_update=best_update,
            valid=scores.get("valid"),
            test=scores.get("test"),
            outcome=ending,
        )
        if self.processes.is_first:
            # With the checksum of the metrics that led to it.
            contents = {self.folder.result.name: asdict(result)}
            self.folder.write(contents, also=[self.folder.metrics.name])
        if self.stop.number:
            message = f"stopped after {self.folder.path} was {result.status}"
            raise StopRequested(self.stop.number, message)
        return result


def score_split(
    model: nn.Module,
    data: Dataset,
    split: SplitName,
    *,
    recipe: Recipe,
    device: torch.device,
    num_tokens: int | None = None,
    display: Display | None = None,
) -> Score:
    """A model's score on one split of its data, or on the first tokens of it.

    A display shows how much of a corpus is scored.
    """
    config = recipe.training
    batches = data.batches(
        split,
        num_lanes=config.evaluation_lanes,
        segment_length=config.segment_length,
        num_tokens=num_tokens,
    )
    extent = data.extent(split, num_tokens)
    if display is not None and extent:
        batches = displayed(batches, extent["num_tokens"], display)
    return evaluate(
        model,
        batches,
        device=device,
        precision=precision_of(recipe, device),
        carries_state=data.carries_state,
    )
