"""What makes some tokens likelier and others impossible: each a function of its own.

Scores are logits in the making: softmax turns them into probabilities, and -inf is a probability
of zero. All functions work on any number of rows at once, each row by itself. Of tokens with equal
scores the one with the lower number comes first, so that the outcome is always one and the same.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from staircase_attention.generation.config import SamplingConfig

NOTHING = -1
"""Stands in a row of recent tokens where there was no token yet."""


def filtered(
    logits: Float[Tensor, "rows vocab"],
    recent: Int[Tensor, "rows window"],
    config: SamplingConfig,
) -> Float[Tensor, "rows vocab"]:
    """Scores to draw from, by all that the config asks for; its temperature must not be 0."""
    scores = penalised(logits, recent, penalty=config.repetition_penalty)
    scores = tempered(scores, temperature=config.temperature)
    if config.top_k is not None:
        scores = top_k(scores, k=config.top_k)
    if config.top_p is not None:
        scores = top_p(scores, p=config.top_p)
    if config.min_p is not None:
        scores = min_p(scores, p=config.min_p)
    return scores


def penalised(
    logits: Float[Tensor, "rows vocab"], recent: Int[Tensor, "rows window"], *, penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Keskar et al. 2019: a recent token's logit x becomes x / penalty if x > 0, else x · penalty.

    How often a token is among the recent ones does not matter. Unlike all else here this depends
    on where the logits' zero lies, which softmax does not know of; it is what is in common use.
    """
    if penalty == 1.0:
        return logits
    seen = seen_among(recent, vocab_size=logits.shape[-1])
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def seen_among(
    recent: Int[Tensor, "rows window"], *, vocab_size: int
) -> Bool[Tensor, "rows vocab"]:
    """Which tokens each row has had; inputs that are no outputs, and `NOTHING`, are left aside."""
    is_output = (recent >= 0) & (recent < vocab_size)
    places = recent.masked_fill(~is_output, vocab_size)
    seen = torch.zeros(len(recent), vocab_size + 1, dtype=torch.bool, device=recent.device)
    return seen.scatter_(1, places, value=True)[:, :vocab_size]


def tempered(
    scores: Float[Tensor, "rows vocab"], *, temperature: float
) -> Float[Tensor, "rows vocab"]:
    """Scores over temperature; the highest becomes 0, so that no temperature overflows."""
    return (scores - scores.amax(-1, keepdim=True)) / temperature


def top_k(scores: Float[Tensor, "rows vocab"], *, k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the k highest scores; all, where there are no more than k."""
    if k >= scores.shape[-1]:
        return scores
    lowest = scores.topk(k, dim=-1).values[:, -1:]
    higher, equal = scores > lowest, scores == lowest
    room = k - higher.sum(-1, keepdim=True)
    keep = higher | (equal & (equal.cumsum(-1) <= room))
    return scores.masked_fill(~keep, -torch.inf)


def top_p(scores: Float[Tensor, "rows vocab"], *, p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the fewest of the likeliest tokens whose probabilities sum to at least p.

    A token stays if those likelier than it have less than p together; the likeliest always does.
    """
    if p == 1.0:
        return scores
    order = scores.argsort(dim=-1, descending=True, stable=True)
    sums = scores.softmax(-1).gather(-1, order).cumsum(-1)
    likelier = functional.pad(sums[:, :-1], (1, 0))
    drop = torch.empty_like(scores, dtype=torch.bool).scatter_(-1, order, likelier >= p)
    return scores.masked_fill(drop, -torch.inf)


def min_p(scores: Float[Tensor, "rows vocab"], *, p: float) -> Float[Tensor, "rows vocab"]:
    """Keep tokens whose probability is at least p times that of the likeliest."""
    fraction = (scores - scores.amax(-1, keepdim=True)).exp()
    return scores.masked_fill(fraction < p, -torch.inf)
