"""Sampling: which token follows, given logits.

A row's token depends on its logits, its recent tokens and one number between 0 and 1, and on
nothing else: neither on the other rows nor on earlier draws. That number is a hash of the seed, the
row's number and the count of tokens made for the row. There is no generator whose state would have
to be saved: a stream resumes from its count alone.

All arithmetic is float64, on the device of the logits. Logits still differ in their last digits
between machines and batch sizes, because matrix products are summed in another order. A token
changes only if its draw falls between two such roundings, or if two tokens are equally likely to
the last digit: with float32 logits about once in a million tokens, with float64 practically never.

The filters work on scores: softmax turns them into probabilities, -inf is probability zero. Of
tokens with equal scores the one with the lower id comes first, so that results are deterministic.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from staircase_attention.checks import check_integer, check_number, input_error

# Fills a row of recent tokens before there are enough of them.
EMPTY = -1
# Bits of a float64 between 0 and 1.
MANTISSA = 53


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How the next token is sampled. Fields are in the order in which they apply.

    The penalty changes logits, the temperature scales them, then top-k, top-p and min-p each drop
    tokens from what the previous filter kept.
    """

    repetition_penalty: float = 1.0
    """Above 1 makes recent tokens less likely; 1 changes nothing."""
    repetition_window: int = 256
    """How many of a row's latest tokens, prompt included, count as recent."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token, without a random draw."""
    top_k: int | None = None
    """Keep the k likeliest tokens."""
    top_p: float | None = None
    """Nucleus sampling: keep the smallest set of tokens with total probability p."""
    min_p: float | None = None
    """Drop tokens below p times the probability of the likeliest."""
    seed: int = 0
    """Random seed; see `uniform`."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, minimum=0, example=0.8)
        check_integer("repetition_window", self.repetition_window, minimum=1, example=256)
        check_integer("seed", self.seed, minimum=0, example=0)
        if self.top_k is not None:
            check_integer("top_k", self.top_k, minimum=1, example=40)
        check_number("repetition_penalty", self.repetition_penalty, minimum=0, example=1.2)
        if self.repetition_penalty == 0:
            raise input_error("repetition_penalty must be above 0", 0, "use 1 for no penalty")
        for name, example in (("top_p", 0.9), ("min_p", 0.05)):
            value = getattr(self, name)
            if value is None:
                continue
            check_number(name, value, minimum=0, example=example)
            if value > 1 or (name == "top_p" and value == 0):
                rule = f"{name} must be a probability" + " above 0" * (name == "top_p")
                raise input_error(rule, value, f"use for example {name}={example}")

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One token per row, on the CPU."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    """Log-probabilities of the tokens under the model itself, before penalty and filters."""


class Sampler:
    """Samples tokens as a config says. It has no state of its own."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config

    def choose(
        self,
        logits: Float[Tensor, "rows vocab"],
        recent: Int[Tensor, "rows window"],
        *,
        rows: Sequence[int],
        count: int,
    ) -> Choice:
        """One token per row. `rows` are the rows' numbers, `count` the tokens made so far."""
        logits = logits.double()
        recent = recent.to(logits.device)
        check_logits(logits, rows)
        if self.config.temperature == 0:
            scores = penalised(logits, recent, penalty=self.config.repetition_penalty)
            tokens = scores.argmax(-1)
        else:
            draws = [uniform(seed=self.config.seed, row=row, count=count) for row in rows]
            tokens = pick(filtered(logits, recent, self.config), torch.tensor(draws).to(logits))
        # Of the logits themselves: what the model believes, not what was drawn from.
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return Choice(tokens=tokens.cpu(), logprobs=logprobs.cpu())

    def begin(self, prompts: Sequence[Sequence[int]]) -> Int[Tensor, "rows window"]:
        """The recent tokens of rows that have only their prompts."""
        # Without a penalty nobody reads the window, so it has no columns.
        window = self.config.repetition_window if self.config.repetition_penalty != 1.0 else 0
        recent = torch.full((len(prompts), window), EMPTY)
        for row, prompt in enumerate(prompts):
            latest = prompt[max(0, len(prompt) - window) :]
            recent[row, window - len(latest) :] = torch.tensor(latest, dtype=torch.int64)
        return recent

    def remember(
        self, recent: Int[Tensor, "rows window"], tokens: Int[Tensor, " rows"]
    ) -> Int[Tensor, "rows window"]:
        """The recent tokens after one more."""
        if recent.shape[1] == 0:
            return recent
        return torch.cat([recent[:, 1:], tokens[:, None].to(recent.device)], dim=1)


def uniform(*, seed: int, row: int, count: int) -> float:
    """A number in [0, 1), the same for the same three arguments on every machine.

    >>> uniform(seed=0, row=0, count=0)
    0.14489232750326442
    """
    name = f"staircase_attention {seed} {row} {count}".encode()
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return float((int.from_bytes(digest, "big") >> (64 - MANTISSA)) / (1 << MANTISSA))


def pick(
    scores: Float[Tensor, "rows vocab"], draws: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Draw from softmax(scores): the first token at which the running sum exceeds the draw."""
    # Inverse of the cumulative distribution; [rows, vocab], summed in float64.
    running = scores.softmax(-1).cumsum(-1)
    # Rounding leaves the sum near 1, not at it: draws are scaled to what it is.
    total = running[:, -1:]
    # A draw just under 1 may round up to the whole sum, which no token exceeds.
    highest = torch.nextafter(total, torch.zeros_like(total))
    found = torch.searchsorted(running, torch.minimum(draws[:, None] * total, highest), right=True)
    return found[:, 0]


def filtered(
    logits: Float[Tensor, "rows vocab"],
    recent: Int[Tensor, "rows window"],
    config: SamplingConfig,
) -> Float[Tensor, "rows vocab"]:
    """The scores to draw from; the config's temperature must not be 0."""
    scores = penalised(logits, recent, penalty=config.repetition_penalty)
    # The highest score becomes 0, so that no temperature overflows.
    scores = (scores - scores.amax(-1, keepdim=True)) / config.temperature
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

    How often a token is recent does not matter. Unlike the filters this depends on the zero point
    of the logits, which softmax ignores; it is the definition in common use.
    """
    if penalty == 1.0:
        return logits
    seen = seen_among(recent, vocab_size=logits.shape[-1])
    # Dividing a negative logit would make the token likelier, so it is multiplied.
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def seen_among(
    recent: Int[Tensor, "rows window"], *, vocab_size: int
) -> Bool[Tensor, "rows vocab"]:
    """Which tokens are recent in each row; `EMPTY` and ids that are inputs only are ignored."""
    is_output = (recent >= 0) & (recent < vocab_size)
    # All that is no output goes into one extra column, which is cut off again.
    columns = recent.masked_fill(~is_output, vocab_size)
    seen = torch.zeros(len(recent), vocab_size + 1, dtype=torch.bool, device=recent.device)
    return seen.scatter_(1, columns, value=True)[:, :vocab_size]


def top_k(scores: Float[Tensor, "rows vocab"], *, k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the k highest scores."""
    if k >= scores.shape[-1]:
        return scores
    lowest = scores.topk(k, dim=-1).values[:, -1:]
    higher, equal = scores > lowest, scores == lowest
    # Of tokens that tie for the last places, those with the lowest ids are kept.
    room = k - higher.sum(-1, keepdim=True)
    keep = higher | (equal & (equal.cumsum(-1) <= room))
    return scores.masked_fill(~keep, -torch.inf)


def top_p(scores: Float[Tensor, "rows vocab"], *, p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least p.

    A token is kept if the tokens likelier than it sum to less than p.
    """
    if p == 1.0:
        return scores
    order = scores.argsort(dim=-1, descending=True, stable=True)
    sums = scores.softmax(-1).gather(-1, order).cumsum(-1)
    # The sum before each token; the likeliest has 0 before it and always stays.
    likelier = functional.pad(sums[:, :-1], (1, 0))
    drop = torch.empty_like(scores, dtype=torch.bool).scatter_(-1, order, likelier >= p)
    return scores.masked_fill(drop, -torch.inf)


def min_p(scores: Float[Tensor, "rows vocab"], *, p: float) -> Float[Tensor, "rows vocab"]:
    """Keep tokens whose probability is at least p times that of the likeliest."""
    # exp(score - highest) is the ratio of probabilities: no normalisation needed.
    fraction = (scores - scores.amax(-1, keepdim=True)).exp()
    return scores.masked_fill(fraction < p, -torch.inf)


def check_logits(logits: Float[Tensor, "rows vocab"], rows: Sequence[int]) -> None:
    """Refuse logits from which nothing can be sampled."""
    wrong = logits.isnan().any(-1) | logits.amax(-1).isinf()
    if wrong.any():
        row = rows[int(wrong.int().argmax())]
        raise input_error(
            "logits must be finite",
            f"NaN or infinity in row {row}",
            "the model's weights or state are damaged: load an earlier checkpoint",
        )
