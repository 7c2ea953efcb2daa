"""Batches for training and evaluation: one segment of every lane."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The target where there is no answer.
IGNORED = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One segment of every lane, each array (num_lanes, segment_length)."""

    inputs: NDArray[np.int64]
    """Input symbols; 0 where a lane has no token left, which never happens in training."""
    targets: NDArray[np.int64]
    """Answers, or the next tokens; IGNORED where there is none, and at padding."""

    @property
    def num_answers(self) -> int:
        """Number of targets: what a sum of losses is divided by."""
        return int(np.count_nonzero(self.targets != IGNORED))

    def rows(self, lanes: range) -> "Batch":
        """The part of the batch in these lanes, as views."""
        # A slice gives views where a list of rows would copy.
        here = slice(lanes.start, lanes.stop, lanes.step)
        return Batch(inputs=self.inputs[here], targets=self.targets[here])
