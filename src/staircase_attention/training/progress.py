"""Where a run is, apart from its tensors, and whether its loss is healthy."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from staircase_attention.training.checkpoint import CheckpointName
from staircase_attention.training.dataset import Dataset, Position
from staircase_attention.training.recipe import DivergenceConfig


@dataclass(slots=True)
class LossWatch:
    """Detects divergence: a loss that jumps and stays high, or gradients that are not finite."""

    smoothed: float = math.nan
    num_seen: int = 0
    """Losses that went into the smoothed one."""
    lowest: float = math.inf
    """The lowest smoothed loss."""
    num_high: int = 0
    """Consecutive updates with the smoothed loss far above its lowest."""
    num_skipped: int = 0
    """Consecutive updates skipped because their gradients were not finite."""

    def see(self, loss: float, config: DivergenceConfig) -> None:
        """Add the loss of one update.

        The first losses are averaged. Until there are as many as the smoothing spans, their mean is
        no reference: with lanes in step, one update has the easy starts of all episodes.
        """
        self.num_seen += 1
        share = max(1 - config.smoothing, 1 / self.num_seen)
        past = loss if math.isnan(self.smoothed) else self.smoothed
        self.smoothed = (1 - share) * past + share * loss
        if self.num_seen * (1 - config.smoothing) >= 1:
            self.lowest = min(self.lowest, self.smoothed)
        is_high = self.smoothed > config.jump_factor * max(self.lowest, config.loss_floor)
        self.num_high = self.num_high + 1 if is_high else 0
        self.num_skipped = 0

    def forget(self) -> None:
        """Restart the smoothing when the data changes, unless the loss is high.

        A diverging run must not be measured by the losses that it diverged to.
        """
        if self.num_high == 0:
            self.smoothed, self.num_seen, self.lowest = math.nan, 0, math.inf

    @property
    def is_healthy(self) -> bool:
        """Whether a checkpoint taken now is one to roll back to."""
        return self.num_high == 0 and self.num_skipped == 0

    def has_diverged(self, config: DivergenceConfig) -> bool:
        """Whether the run has been unhealthy for long enough to act."""
        return self.num_high >= config.patience or self.num_skipped >= config.max_skips

    def to_plain(self) -> dict[str, Any]:
        """Plain data; a loss that was never seen is None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "LossWatch":
        """The inverse of `to_plain`."""
        return cls(**{name: value for name, value in plain.items() if value is not None})


@dataclass(slots=True)
class TrainingProgress:
    """Everything of a run that is plain data and changes from update to update."""

    position: Position
    update: int = 0
    """Updates done."""
    num_tokens: int = 0
    wall_seconds: float = 0.0
    num_rollbacks: int = 0
    rate_scale: float = 1.0
    """Factor of the learning rate, lowered by rollbacks."""
    watch: LossWatch = field(default_factory=LossWatch)
    best_update: int | None = None
    best_rollbacks: int = 0
    best_rank: tuple[float, ...] = (math.inf,)
    """The best validation score, as the dataset ranks scores."""
    since_log: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Loss, wrong answers and answers since the last line of metrics."""

    def to_plain(self) -> dict[str, Any]:
        """Plain data; a score that was never seen is None."""
        return asdict(self) | {
            "position": self.position.as_plain(),
            "watch": self.watch.to_plain(),
            "best_rank": None if self.best_update is None else list(self.best_rank),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], data: Dataset) -> "TrainingProgress":
        """The inverse of `to_plain`."""
        known = {name: value for name, value in plain.items() if value is not None}
        known["position"] = data.position(plain["position"])
        known["watch"] = LossWatch.from_plain(plain["watch"])
        if "best_rank" in known:
            known["best_rank"] = tuple(known["best_rank"])
        return cls(**known)

    @property
    def name(self) -> CheckpointName:
        """The name of a checkpoint taken now."""
        return CheckpointName(num_rollbacks=self.num_rollbacks, update=self.update)

    @property
    def best(self) -> CheckpointName | None:
        """The checkpoint with the best validation score."""
        return best_checkpoint(
            {"best_update": self.best_update, "best_rollbacks": self.best_rollbacks}
        )

    def forget_best(self) -> None:
        """Let the next score be the best, because the checkpoint of the last one is gone."""
        self.best_update, self.best_rollbacks, self.best_rank = None, 0, (math.inf,)


def best_checkpoint(progress: Mapping[str, Any]) -> CheckpointName | None:
    """The checkpoint with the best validation score, by a progress as plain data."""
    if progress["best_update"] is None:
        return None
    return CheckpointName(num_rollbacks=progress["best_rollbacks"], update=progress["best_update"])
