"""Chooses tokens from logits, each row by itself, the same whatever the machine and the batch.

What a row gets depends on its logits, its recent tokens and one number between 0 and 1, and on
nothing else: not on the other rows, nor on anything drawn before. That number comes from the seed,
the row's number and the count of tokens the row has had, so there is no generator whose state has
to be carried; a stream that goes on elsewhere needs only to know how far it has come.

All is reckoned in float64, on the device of the logits. These can still differ in their last
digits between machines, and between batches of other sizes, as matrix products are summed in
another order. A token changes by that only if its draw falls into the gap between two roundings,
or if two tokens are equally likely to the last digit; with logits in float32 that is about once in
a million tokens, in float64 never in practice.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.filters import NOTHING, filtered, penalised

MANTISSA = 53
"""Bits of a float64 number between 0 and 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One token for each row, on the CPU."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    """Natural logarithm of the model's own probability of the token, before anything was changed
    or taken away."""


class Sampler:
    """Chooses tokens as a config asks. It remembers nothing."""

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
        """A token for each row; `rows` are their numbers, `count` the tokens they have had."""
        logits = logits.double()
        recent = recent.to(logits.device)
        check_logits(logits, rows)
        if self.config.temperature == 0:
            scores = penalised(logits, recent, penalty=self.config.repetition_penalty)
            tokens = scores.argmax(-1)
        else:
            draws = [uniform(seed=self.config.seed, row=row, count=count) for row in rows]
            tokens = pick(filtered(logits, recent, self.config), torch.tensor(draws).to(logits))
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return Choice(tokens=tokens.cpu(), logprobs=logprobs.cpu())

    def begin(self, prompts: Sequence[Sequence[int]]) -> Int[Tensor, "rows window"]:
        """The recent tokens of rows that have had nothing but their prompts."""
        window = self.config.repetition_window if self.config.repetition_penalty != 1.0 else 0
        recent = torch.full((len(prompts), window), NOTHING)
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
    """A number from 0 up to but not including 1, the same for the same three, everywhere.

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
    running = scores.softmax(-1).cumsum(-1)
    total = running[:, -1:]
    # A draw just under 1 may round up to the sum of all, which no token exceeds.
    highest = torch.nextafter(total, torch.zeros_like(total))
    found = torch.searchsorted(running, torch.minimum(draws[:, None] * total, highest), right=True)
    return found[:, 0]


def check_logits(logits: Float[Tensor, "rows vocab"], rows: Sequence[int]) -> None:
    """Refuse logits from which nothing can be chosen."""
    wrong = logits.isnan().any(-1) | logits.amax(-1).isinf()
    if wrong.any():
        row = rows[int(wrong.int().argmax())]
        raise ValueError(
            f"logits must be finite numbers, got NaN or infinity in row {row}; "
            "the model's weights or state are spoilt: load an earlier checkpoint"
        )
