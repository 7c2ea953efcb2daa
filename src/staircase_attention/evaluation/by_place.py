"""Where a model errs: in which episodes of a lane, or where in an episode."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, get_args

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
Sums: TypeAlias = dict[int, NDArray[np.float64]]
"""Of losses, wrong answers and answers, by the lower bound of a range of places."""


def score_by_place(
    model: nn.Module,
    episodes: Episodes,
    places: Sequence[Place],
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device | str,
    precision: torch.dtype = torch.float32,
) -> dict[Place, dict[int, Score]]:
    """For each kind of place the scores of the answers at places 0, 1, 2 or 3, 4 to 7, ...

    The key is the lower bound of each range. All answers are counted once, as `evaluate` counts
    them, so that the scores are parts of the whole.
    """
    if isinstance(places, str) or not {*places} <= {*get_args(Place)}:
        known = " or ".join(map(repr, get_args(Place)))
        raise ValueError(f"places must be a list of {known}, got {places!r}; use ['position']")
    device = torch.device(device)
    deal = partial(evaluation_batches, num_lanes=num_lanes, segment_length=segment_length)
    marked = [
        deal(replace(episodes, inputs=doubling(_numbers(place, episodes, num_lanes))))
        for place in places
    ]
    sums: dict[Place, Sums] = {place: {} for place in places}
    answers = answered(model, deal(episodes), device=device, precision=precision)
    for (batch, logits, targets), *marks in zip(answers, *marked, strict=True):
        for place, mark in zip(places, marks, strict=True):
            asked = mark.inputs[batch.targets != IGNORED]
            for first in np.unique(asked).tolist():
                here = torch.from_numpy(mark.inputs == first).to(device)
                loss, wrong = loss_and_wrong(logits, targets.where(here, IGNORED))
                found = np.array([loss.item(), wrong.item(), np.count_nonzero(asked == first)])
                sums[place][first] = sums[place].get(first, 0.0) + found
    return {place: _scores(found) for place, found in sums.items()}


def _numbers(place: Place, episodes: Episodes, num_lanes: int) -> NDArray[np.int64]:
    """The place of every token."""
    if place == "episode":
        return np.repeat(1 + np.arange(len(episodes)) // num_lanes, episodes.lengths)
    return np.arange(len(episodes.inputs)) - np.repeat(episodes.starts, episodes.lengths)


def _scores(sums: Sums) -> dict[int, Score]:
    totals = {first: sums[first].tolist() for first in sorted(sums)}
    return {
        first: Score.of(loss, wrong, round(count)) for first, (loss, wrong, count) in totals.items()
    }
