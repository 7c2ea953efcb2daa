"""How good a model is on a split: every answer counted once, state carried through every lane."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.tasks import IGNORED, Episodes, evaluation_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Loss and error over some answers."""

    loss: float
    """Mean negative log-likelihood of an answer, in nats."""
    error: float
    """Fraction of answers that were not the model's first choice."""
    num_answers: int
    num_tokens: int

    def to_plain(self) -> dict[str, Any]:
        """The score as plain data."""
        return {
            "loss": self.loss,
            "error": self.error,
            "num_answers": self.num_answers,
            "num_tokens": self.num_tokens,
        }


@torch.no_grad()
def evaluate(
    model: nn.Module,
    episodes: Episodes,
    *,
    num_lanes: int,
    segment_length: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> Score:
    """Score a model on all episodes; the model is left in the mode it came in."""
    was_training = model.training
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    num_answers, state = 0, None
    lanes = min(num_lanes, len(episodes))
    for batch in evaluation_batches(episodes, num_lanes=lanes, segment_length=segment_length):
        inputs, targets = (
            torch.from_numpy(part).to(device) for part in (batch.inputs, batch.targets)
        )
        with autocast(device, precision):
            logits, state = model(inputs, state)
        totals += torch.stack([part.double() for part in loss_and_wrong(logits, targets)])
        num_answers += batch.num_answers
    model.train(was_training)
    loss, wrong = totals.tolist()
    return Score(
        loss=loss / max(num_answers, 1),
        error=wrong / max(num_answers, 1),
        num_answers=num_answers,
        num_tokens=episodes.num_tokens,
    )


def loss_and_wrong(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss over the answers that are asked, and how many of them are wrong."""
    flat = logits.flatten(0, 1).float() if logits.dtype == torch.bfloat16 else logits.flatten(0, 1)
    loss = functional.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    asked = targets != IGNORED
    wrong = ((logits.argmax(-1) != targets) & asked).sum()
    return loss, wrong


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Matrix products in a shorter kind of numbers, where one is asked for."""
    enabled = precision != torch.float32
    return torch.autocast(device.type, dtype=precision if enabled else None, enabled=enabled)
