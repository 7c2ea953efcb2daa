"""Sampling: which token follows, given logits.

A row's token depends on its logits, its recent tokens and one number between 0 and 1, and on
nothing else: neither on the other rows nor on earlier draws. That number is a hash of the seed, the
row's number and the count of tokens made for the row. There is no generator whose state would have
to be saved: a stream resumes from its count alone.

All arithmetic is float64, on the device of the logits. Logits still differ in their last digits
between machines and batch sizes, because matrix products are summed in another order. A token
changes only if its draw falls between two such roundings, or if two tokens are equally likely to
the last digit: with float32 logits about once in a million tokens, with float64 practically never.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from staircase_attention.checks import check_fields, input_error

# Bits of a float64 between 0 and 1.
MANTISSA = 53
# In place of a token, where the logits are damaged.
UNUSABLE = -1
EXAMPLES = {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How the next token is sampled. Fields are in the order in which they apply.

    The penalty changes logits, the temperature scales them, then top-k, top-p and min-p each drop
    tokens from what the previous filter kept.
    """

    # Beyond these bounds logits overflow, soonest those of float16.
    repetition_penalty: float = field(default=1.0, metadata={"minimum": 1e-3, "maximum": 1e3})
    """Above 1 makes recent tokens less likely; 1 changes nothing."""
    repetition_window: int = 256
    """How many of a row's latest tokens, prompt included, count as recent."""
    temperature: float = field(default=1.0, metadata={"minimum": 0})
    """Logits are divided by it; 0 takes the likeliest token, without a random draw."""
    top_k: int | None = None
    """Keep the k likeliest tokens."""
    top_p: float | None = field(default=None, metadata={"above": 0, "maximum": 1})
    """Nucleus sampling: keep the smallest set of tokens with total probability p."""
    min_p: float | None = field(default=None, metadata={"minimum": 0, "maximum": 1})
    """Drop tokens below p times the probability of the likeliest."""
    seed: int = field(default=0, metadata={"minimum": 0})
    """Random seed; see `uniform`."""

    def __post_init__(self) -> None:
        check_fields(self, examples=EXAMPLES)


def choose(
    config: SamplingConfig,
    logits: Float[Tensor, "rows vocab"],
    recent: Sequence[Sequence[int]],
    *,
    rows: Sequence[int],
    count: int,
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """One token per row and its log-probability under the model itself, both on the CPU.

    `recent` are each row's latest tokens, `rows` the rows' numbers, `count` the tokens made so far.
    """
    draws = [uniform(seed=config.seed, row=row, count=count) for row in rows]
    tokens = choose_by(draws, config, logits, recent)
    # One copy to the host.
    facts = torch.stack([tokens.double(), logprobs_of(tokens, logits)]).cpu()
    check_tokens(facts[0].tolist(), rows)
    return facts[0].long(), facts[1]


def choose_by(
    draws: Sequence[float],
    config: SamplingConfig,
    logits: Float[Tensor, "rows vocab"],
    recent: Sequence[Sequence[int]],
) -> Int[Tensor, " rows"]:
    """One token per row by these draws, in place of the config's seed; on the logits' device.

    UNUSABLE where nothing can be sampled: the host, which may be ahead of the device, looks later.
    """
    if config.temperature == 0:
        tokens = likeliest(config, logits, recent)
    else:
        scores = scores_to_draw(config, logits, recent)
        tokens = pick(scores, at_once(draws, scores))
    return usable(tokens, logits)


def at_once(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Numbers with the dtype and on the device of a tensor, without a wait for that device."""
    # From pinned memory: any other copy waits for all that the device was given.
    host = torch.tensor(numbers, dtype=like.dtype, pin_memory=like.is_cuda)
    return host.to(like.device, non_blocking=True)


def likeliest(
    config: SamplingConfig, logits: Float[Tensor, "rows vocab"], recent: Sequence[Sequence[int]]
) -> Int[Tensor, " rows"]:
    """The tokens at temperature 0."""
    return penalised(config, logits, recent).argmax(-1)


def scores_to_draw(
    config: SamplingConfig, logits: Float[Tensor, "rows vocab"], recent: Sequence[Sequence[int]]
) -> Float[Tensor, "rows vocab"]:
    """Whose softmax a token is drawn from, in float64; the temperature must not be 0."""
    return filtered(penalised(config, logits.double(), recent), config)


def uniform(*, seed: int, row: int, count: int, purpose: str = "") -> float:
    """A number in [0, 1), the same for the same arguments on every machine.

    >>> uniform(seed=0, row=0, count=0)
    0.14489232750326442
    """
    name = f"staircase_attention {seed} {row} {count}{purpose}".encode()
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


def penalised(
    config: SamplingConfig, logits: Float[Tensor, "rows vocab"], recent: Sequence[Sequence[int]]
) -> Float[Tensor, "rows vocab"]:
    """Keskar et al. 2019: a recent token's logit x becomes x / penalty if x > 0, else x · penalty.

    How often a token is recent does not matter. Unlike the filters this depends on the zero point
    of the logits, which softmax ignores; it is the definition in common use.
    """
    penalty, window = config.repetition_penalty, config.repetition_window
    if penalty == 1.0:
        return logits
    scores = logits.clone()
    for row, tokens in zip(scores, recent, strict=True):
        # Ids that are inputs only have no logit.
        seen = [token for token in set(tokens[-window:]) if token < len(row)]
        # Dividing a negative logit would make the token likelier, so it is multiplied.
        row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return scores


def filtered(
    scores: Float[Tensor, "rows vocab"], config: SamplingConfig
) -> Float[Tensor, "rows vocab"]:
    """The scores to draw from, -inf where a token is dropped; the temperature must not be 0."""
    # The highest score becomes 0, so that no temperature overflows, nor an integer as a divisor.
    shifted = (scores - scores.amax(-1, keepdim=True)) / float(config.temperature)
    if config.top_k is not None or config.top_p is not None:
        # Likeliest first; of tokens with equal scores the one with the lower id. Scores that differ
        # may be equal once they are shifted.
        order = scores.argsort(dim=-1, descending=True, stable=True)
        ranked = shifted.gather(-1, order)
        if config.top_k is not None:
            ranked[:, config.top_k :] = -torch.inf
        if config.top_p is not None and config.top_p < 1:
            # A token is dropped if the tokens likelier than it sum to p; the first has 0 before it.
            likelier = functional.pad(ranked.softmax(-1).cumsum(-1)[:, :-1], (1, 0))
            ranked[likelier >= config.top_p] = -torch.inf
        shifted = torch.empty_like(shifted).scatter_(-1, order, ranked)
    if config.min_p is not None:
        # exp(score - highest) is the ratio of probabilities: no normalisation needed.
        shifted = shifted.masked_fill(shifted.exp() < config.min_p, -torch.inf)
    return shifted


def usable(
    tokens: Int[Tensor, " rows"], logits: Float[Tensor, "rows vocab"]
) -> Int[Tensor, " rows"]:
    """Tokens, UNUSABLE where a logit is NaN or infinite (-inf is a token that is never drawn)."""
    return torch.where(logits.amax(-1).isfinite(), tokens, UNUSABLE)


def logprobs_of(
    tokens: Int[Tensor, " rows"], logits: Float[Tensor, "rows vocab"]
) -> Float[Tensor, " rows"]:
    """Of the logits themselves: what the model believes, not what was drawn from."""
    return logits.double().log_softmax(-1).gather(-1, tokens[:, None].clamp_min(0))[:, 0]


def reader_of(tokens: Int[Tensor, " rows"]) -> Callable[[], list[int]]:
    """What waits for these tokens, and for nothing given to the device after this call; checked."""
    copy, event = tokens, None
    if tokens.is_cuda:
        # Into pinned memory.
        copy, event = tokens.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()

    def read() -> list[int]:
        if event is not None:
            event.synchronize()
        found = copy.tolist()
        check_tokens(found, range(len(found)))
        return found

    return read


def check_tokens(tokens: Sequence[float], rows: Sequence[int]) -> None:
    """Refuse tokens of logits from which nothing can be sampled."""
    if UNUSABLE in tokens:
        received = f"NaN or infinity in row {rows[tokens.index(UNUSABLE)]}"
        remedy = "the model's weights or state are damaged: load an earlier checkpoint"
        raise input_error("logits must be finite", received, remedy)
