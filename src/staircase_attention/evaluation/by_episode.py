"""Where in a lane a model errs: in first episodes, which begin with an empty state, or later."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from staircase_attention.evaluation.doublings import doubling
from staircase_attention.evaluation.evaluate import Score, answered, loss_and_wrong
from staircase_attention.tasks import IGNORED, Episodes, evaluation_batches


def score_by_episode(
    model: nn.Module,
    episodes: Episodes,
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> dict[int, Score]:
    """The scores of the episodes that come first in their lane, second or third, fourth to seventh.

    The key is the lower bound of each range. All answers are counted once, as `evaluate` counts
    them, so that the scores are parts of the whole.
    """
    dealt = {"num_lanes": num_lanes, "segment_length": segment_length}
    batches = evaluation_batches(episodes, **dealt)
    sums: dict[int, NDArray[np.float64]] = {}
    for (batch, logits, targets), numbers in zip(
        answered(model, batches, device=device, precision=precision),
        _numbers(episodes, **dealt),
        strict=True,
    ):
        asked = numbers[batch.targets != IGNORED]
        for number in np.unique(asked).tolist():
            here = torch.from_numpy(numbers == number).to(device)
            loss, wrong = loss_and_wrong(logits, targets.where(here, IGNORED))
            found = np.array([loss.item(), wrong.item(), np.count_nonzero(asked == number)])
            sums[number] = sums.get(number, 0.0) + found
    return {
        number: Score.of(loss, wrong, round(count))
        for number, (loss, wrong, count) in sorted(sums.items())
    }


def _numbers(
    episodes: Episodes, *, num_lanes: int, segment_length: int
) -> Iterator[NDArray[np.int64]]:
    """For each batch, which episode of its lane a token belongs to: 1, 2, 4, 8, ... or more."""
    number = doubling(1 + np.arange(len(episodes)) // num_lanes)
    marked = replace(episodes, inputs=np.repeat(number, episodes.lengths))
    for batch in evaluation_batches(marked, num_lanes=num_lanes, segment_length=segment_length):
        yield batch.inputs
