"""Evaluation: loss and error of a trained model, in total and by place."""

from staircase_attention.evaluation.language import Reading, bits, loss_by_past, loss_by_position
from staircase_attention.evaluation.scores import (
    Place,
    Score,
    autocast,
    evaluate,
    loss_and_wrong,
    score_by_place,
)

__all__ = [
    "Place",
    "Reading",
    "Score",
    "autocast",
    "bits",
    "evaluate",
    "loss_and_wrong",
    "loss_by_past",
    "loss_by_position",
    "score_by_place",
]
