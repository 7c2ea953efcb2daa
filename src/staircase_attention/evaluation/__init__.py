"""How good a trained model is."""

from staircase_attention.evaluation.evaluate import (
    Score,
    ScoredBatch,
    autocast,
    evaluate,
    loss_and_wrong,
)

__all__ = ["Score", "ScoredBatch", "autocast", "evaluate", "loss_and_wrong"]
