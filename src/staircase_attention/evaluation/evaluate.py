"""How good a model is on a split: every answer counted once, state carried through every lane."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.batches import IGNORED


class ScoredBatch(Protocol):
    """Inputs and targets of one segment of every lane, each (lanes, segment)."""

    @property
    def inputs(self) -> NDArray[np.int64]:
        """Input symbols."""

    @property
    def targets(self) -> NDArray[np.int64]:
        """Answers; IGNORED where none is asked."""

    @property
    def num_answers(self) -> int:
        """How many are asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Loss and error over some answers."""

    loss: float
    """Mean negative log-likelihood of an answer, in nats."""
    error: float
    """Fraction of answers that were not the model's first choice."""
    num_answers: int

    @classmethod
    def of(cls, loss: float, num_wrong: float, num_answers: int) -> "Score":
        """From sums over the answers."""
        count = max(num_answers, 1)
        return cls(loss=loss / count, error=num_wrong / count, num_answers=num_answers)

    @classmethod
    def together(cls, parts: Iterable["Score"]) -> "Score":
        """Of all answers of which there are scores.

        >>> Score.together([Score.of(2.0, 1, 1), Score.of(2.0, 0, 3)])
        Score(loss=1.0, error=0.25, num_answers=4)
        """
        known = list(parts)
        return cls.of(
            sum(part.loss * part.num_answers for part in known),
            sum(part.error * part.num_answers for part in known),
            sum(part.num_answers for part in known),
        )

    def to_plain(self) -> dict[str, Any]:
        """The score as plain data."""
        return asdict(self)


def evaluate(
    model: nn.Module,
    batches: Iterable[ScoredBatch],
    *,
    device: torch.device | str,
    precision: torch.dtype = torch.float32,
    carries_state: bool = True,
) -> Score:
    """Score a model on batches that follow one another; it is left in the mode it came in.

    Without `carries_state` every batch begins anew, as episodes that fill their segments do.
    """
    device = torch.device(device)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    num_answers = 0
    answers = answered(
        model, batches, device=device, precision=precision, carries_state=carries_state
    )
    for batch, logits, targets in answers:
        totals += torch.stack([part.double() for part in loss_and_wrong(logits, targets)])
        num_answers += batch.num_answers
    if num_answers == 0:
        raise ValueError(
            "batches to be scored must ask for an answer, got none that do; make them again where "
            "they have been gone through before"
        )
    loss, wrong = totals.tolist()
    return Score.of(loss, wrong, num_answers)


@torch.no_grad()
def answered(
    model: nn.Module,
    batches: Iterable[ScoredBatch],
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    carries_state: bool = True,
) -> Iterator[tuple[ScoredBatch, Tensor, Tensor]]:
    """Each batch with the model's logits and the targets, both on the device."""
    was_training = model.training
    model.eval()
    state = None
    try:
        for batch in batches:
            inputs, targets = (
                torch.from_numpy(part).to(device) for part in (batch.inputs, batch.targets)
            )
            with autocast(device, precision):
                logits, state = model(inputs, state if carries_state else None)
            yield batch, logits, targets
    finally:
        model.train(was_training)


def loss_and_wrong(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss over the answers that are asked, and how many of them are wrong."""
    flat = logits.flatten(0, 1)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    loss = functional.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    asked = targets != IGNORED
    wrong = ((logits.argmax(-1) != targets) & asked).sum()
    return loss, wrong


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Matrix products in a shorter kind of numbers, where one is asked for."""
    enabled = precision != torch.float32
    return torch.autocast(device.type, dtype=precision if enabled else None, enabled=enabled)
