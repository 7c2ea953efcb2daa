"""Notices a run that has lost its way: a loss that jumps and stays up."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from staircase_attention.training.recipe import DivergenceConfig


@dataclass(slots=True)
class Watch:
    """The smoothed loss, its lowest value so far, and for how long it has been far above it."""

    smoothed: float = math.nan
    num_seen: int = 0
    """Losses that the smoothed one is made of."""
    lowest: float = math.inf
    num_high: int = 0
    """Updates in a row with the smoothed loss far above its lowest."""
    num_skipped: int = 0
    """Updates in a row that were skipped, as their gradients were not finite."""

    def see(self, loss: float, config: DivergenceConfig) -> None:
        """Take in the loss of one update.

        The first losses are averaged. Until there are as many as smoothing looks back on, their
        mean is no measure: with lanes in step, one update has the easy beginnings of all episodes.
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

    def skip(self) -> None:
        """Take in an update that was skipped."""
        self.num_skipped += 1

    def forget(self) -> None:
        """Begin anew, as past losses are no measure of what follows; not while the loss is high.

        A run that is losing its way would otherwise be measured by what it has come to.
        """
        if self.num_high == 0:
            self.smoothed, self.num_seen, self.lowest = math.nan, 0, math.inf

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wrong, so that a checkpoint taken now is one to return to."""
        return self.num_high == 0 and self.num_skipped == 0

    def has_diverged(self, config: DivergenceConfig) -> bool:
        """Whether it has been wrong for long enough to act."""
        return self.num_high >= config.patience or self.num_skipped >= config.max_skips

    def to_plain(self) -> dict[str, Any]:
        """Plain data, in which a loss never seen is None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Watch":
        """The inverse of `to_plain`."""
        return cls(**{name: value for name, value in plain.items() if value is not None})
