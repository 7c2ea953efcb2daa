"""How good a trained model is."""

from staircase_attention.evaluation.evaluate import Score, autocast, evaluate, loss_and_wrong

__all__ = ["Score", "autocast", "evaluate", "loss_and_wrong"]
