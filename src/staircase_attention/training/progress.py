"""Where a run stands, apart from its tensors."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from staircase_attention.training.checkpoint import CheckpointName
from staircase_attention.training.dataset import Dataset, LanePosition
from staircase_attention.training.divergence import Watch


@dataclass(slots=True)
class Progress:
    """All of a run that is plain data and changes from update to update."""

    position: LanePosition
    """Of the lanes in the training data."""
    update: int = 0
    """Updates done."""
    num_tokens: int = 0
    wall_seconds: float = 0.0
    num_rollbacks: int = 0
    rate_scale: float = 1.0
    """What the learning rate is multiplied by, after rollbacks."""
    watch: Watch = field(default_factory=Watch)
    best_update: int | None = None
    best_rollbacks: int = 0
    best_rank: tuple[float, ...] = (math.inf,)
    """What the best score on the validation data is compared by."""
    since_log: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Loss, wrong answers and answers since the last line of metrics."""

    def to_plain(self) -> dict[str, Any]:
        """Plain data, in which a score never seen is None."""
        return asdict(self) | {
            "position": self.position.as_plain(),
            "watch": self.watch.to_plain(),
            "best_rank": None if self.best_update is None else list(self.best_rank),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], data: Dataset) -> "Progress":
        """The inverse of `to_plain`."""
        known = {name: value for name, value in plain.items() if value is not None}
        known["position"] = data.position(plain["position"])
        known["watch"] = Watch.from_plain(plain["watch"])
        if "best_rank" in known:
            known["best_rank"] = tuple(known["best_rank"])
        return cls(**known)

    @property
    def name(self) -> CheckpointName:
        """What a checkpoint taken now is called."""
        return CheckpointName(num_rollbacks=self.num_rollbacks, update=self.update)

    @property
    def best(self) -> CheckpointName | None:
        """The checkpoint that did best on the validation data."""
        return self.best_in(
            {"best_update": self.best_update, "best_rollbacks": self.best_rollbacks}
        )

    @staticmethod
    def best_in(plain: Mapping[str, Any]) -> CheckpointName | None:
        """The best that a progress, as plain data, knows of."""
        if plain["best_update"] is None:
            return None
        return CheckpointName(num_rollbacks=plain["best_rollbacks"], update=plain["best_update"])

    def forget_best(self) -> None:
        """Let the next score be the best, as the checkpoint of the last one is gone."""
        self.best_update, self.best_rollbacks, self.best_rank = None, 0, (math.inf,)
