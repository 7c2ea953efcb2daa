"""Evaluation: loss and error of a trained model, in total and by place."""

from staircase_attention.evaluation.scores import (
    Place,
    Score,
    autocast,
    evaluate,
    loss_and_wrong,
    score_by_place,
    score_by_position,
    title,
)

__all__ = [
    "Place",
    "Score",
    "autocast",
    "evaluate",
    "loss_and_wrong",
    "score_by_place",
    "score_by_position",
    "title",
]
