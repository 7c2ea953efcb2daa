"""Where a model errs: in which episodes of a lane, or where in an episode."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from staircase_attention.evaluation.doublings import doubling
from staircase_attention.evaluation.evaluate import Score, answered, loss_and_wrong
from staircase_attention.tasks import IGNORED, Episodes, evaluation_batches

Place = Literal["episode", "position"]
"""Of an answer: the number of its episode in the lane, from 1 on, or of the tokens before it there.

First episodes of a lane begin with an empty state.
"""


def score_by_place(
    model: nn.Module,
    episodes: Episodes,
    place: Place,
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> dict[int, Score]:
    """The scores of the answers at places 0, 1, 2 or 3, 4 to 7, ...

    The key is the lower bound of each range. All answers are counted once, as `evaluate` counts
    them, so that the scores are parts of the whole.
    """
    if place == "episode":
        places = np.repeat(1 + np.arange(len(episodes)) // num_lanes, episodes.lengths)
    else:
        places = np.arange(len(episodes.inputs)) - np.repeat(episodes.starts, episodes.lengths)
    marked = replace(episodes, inputs=doubling(places))
    batches, marks = (
        evaluation_batches(one, num_lanes=num_lanes, segment_length=segment_length)
        for one in (episodes, marked)
    )
    sums: dict[int, NDArray[np.float64]] = {}
    for (batch, logits, targets), mark in zip(
        answered(model, batches, device=device, precision=precision), marks, strict=True
    ):
        asked = mark.inputs[batch.targets != IGNORED]
        for first in np.unique(asked).tolist():
            here = torch.from_numpy(mark.inputs == first).to(device)
            loss, wrong = loss_and_wrong(logits, targets.where(here, IGNORED))
            found = np.array([loss.item(), wrong.item(), np.count_nonzero(asked == first)])
            sums[first] = sums.get(first, 0.0) + found
    totals = {first: sums[first].tolist() for first in sorted(sums)}
    return {
        first: Score.of(loss, wrong, round(count)) for first, (loss, wrong, count) in totals.items()
    }
