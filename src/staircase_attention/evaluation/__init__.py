"""How good a trained model is."""

from staircase_attention.evaluation.by_place import Place, score_by_place
from staircase_attention.evaluation.evaluate import (
    Score,
    ScoredBatch,
    autocast,
    evaluate,
    loss_and_wrong,
)
from staircase_attention.evaluation.language import (
    Mean,
    Reading,
    bits,
    loss_by_past,
    loss_by_position,
)

__all__ = [
    "Mean",
    "Place",
    "Reading",
    "Score",
    "ScoredBatch",
    "autocast",
    "bits",
    "evaluate",
    "loss_and_wrong",
    "loss_by_past",
    "loss_by_position",
    "score_by_place",
]
