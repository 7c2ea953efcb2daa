"""Where a model errs: in which episodes of a lane, and where in an episode."""

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

    The key is the lower bound of each range. First episodes begin with an empty state. All answers
    are counted once, as `evaluate` counts them, so that the scores are parts of the whole.
    """
    return _score_by(
        np.repeat(1 + np.arange(len(episodes)) // num_lanes, episodes.lengths),
        model,
        episodes,
        num_lanes=num_lanes,
        segment_length=segment_length,
        device=device,
        precision=precision,
    )


def score_by_position(
    model: nn.Module,
    episodes: Episodes,
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> dict[int, Score]:
    """The scores of the answers at tokens 1, 2 or 3, 4 to 7, ... after the first of their episode.

    The key is the lower bound of each range; an answer at the first token itself is under 0.
    """
    return _score_by(
        np.arange(len(episodes.inputs)) - np.repeat(episodes.starts, episodes.lengths),
        model,
        episodes,
        num_lanes=num_lanes,
        segment_length=segment_length,
        device=device,
        precision=precision,
    )


def _score_by(
    places: NDArray[np.int64],
    model: nn.Module,
    episodes: Episodes,
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device,
    precision: torch.dtype,
) -> dict[int, Score]:
    """The score taken apart by the place of each token, in ranges that double."""
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
        for place in np.unique(asked).tolist():
            here = torch.from_numpy(mark.inputs == place).to(device)
            loss, wrong = loss_and_wrong(logits, targets.where(here, IGNORED))
            found = np.array([loss.item(), wrong.item(), np.count_nonzero(asked == place)])
            sums[place] = sums.get(place, 0.0) + found
    totals = {place: sums[place].tolist() for place in sorted(sums)}
    return {
        place: Score.of(loss, wrong, round(count)) for place, (loss, wrong, count) in totals.items()
    }
