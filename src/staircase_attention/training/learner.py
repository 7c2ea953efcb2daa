"""One update: a segment of every lane forward and backward, and the weights changed."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from staircase_attention.evaluation import autocast, loss_and_wrong
from staircase_attention.models import LSTMState, State
from staircase_attention.training.build import Model, precision_of
from staircase_attention.training.dataset import TrainingBatch
from staircase_attention.training.optimizer import Optimizer
from staircase_attention.training.processes import Processes
from staircase_attention.training.recipe import Recipe

Carried = State | LSTMState | None
"""What goes from one segment to the next; None before the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one update showed, over all processes."""

    loss: float
    """Summed over the answers."""
    num_wrong: int
    num_answers: int
    gradient_norm: float
    was_applied: bool
    """Whether the weights changed: not where a gradient was not finite."""
    wants_stop: bool
    """Whether some process was asked to stop."""


class Learner:
    """Model, optimiser and the lanes' states: all that an update changes."""

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        device: torch.device,
        processes: Processes,
        *,
        carries_state: bool = True,
    ) -> None:
        self.recipe = recipe
        self.carries_state = carries_state
        self.device = device
        self.processes = processes
        self.model = model.to(device).train()
        self.parallel = processes.wrap(self.model, device)
        self.optimizer = Optimizer(self.model, recipe.training.optimizer)
        self.states: list[Carried] = [None] * recipe.training.num_micro_batches

    def update(
        self, batch: TrainingBatch, *, lanes: range, rate: float, wants_stop: bool
    ) -> Outcome:
        """Learn from one segment of this process's lanes."""
        self.optimizer.zero_grad()
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        totals[2] = float(wants_stop)
        parts = self._micro_batches(batch.rows(lanes))
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            totals[:2] += self._backward(number, part, batch.num_answers, is_last=is_last)
        loss, wrong, stops = self.processes.total(totals).tolist()
        norm = self._clip()
        was_applied = bool(torch.isfinite(norm))
        if was_applied:
            self.optimizer.step(rate)
        else:
            # A state that is not finite would spoil every later segment.
            self.states = [None] * len(self.states)
        return Outcome(
            loss=loss,
            num_wrong=round(wrong),
            num_answers=batch.num_answers,
            gradient_norm=float(norm),
            was_applied=was_applied,
            wants_stop=stops > 0,
        )

    def _micro_batches(self, batch: TrainingBatch) -> Sequence[TrainingBatch]:
        share = len(batch.inputs) // len(self.states)
        return [
            batch.rows(range(number * share, (number + 1) * share))
            for number in range(len(self.states))
        ]

    def _backward(
        self, number: int, part: TrainingBatch, num_answers: int, *, is_last: bool
    ) -> Tensor:
        """Add the gradients of one micro-batch; its summed loss and wrong answers."""
        inputs, targets = (
            torch.from_numpy(array).to(self.device) for array in (part.inputs, part.targets)
        )
        with self._gradient_exchange(is_last):
            with autocast(self.device, precision_of(self.recipe)):
                logits, state = self.parallel(inputs, self.states[number])
            loss, wrong = loss_and_wrong(logits, targets)
            # Averaging over processes is undone, so that every answer of the batch weighs the same.
            share = loss * (self.processes.count / max(1, num_answers))
            torch.autograd.backward(share)
        # The one place where a stream is cut for gradients.
        self.states[number] = state.detach() if self.carries_state else None
        return torch.stack([loss.detach().double(), wrong.double()])

    def _gradient_exchange(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.parallel, nn.parallel.DistributedDataParallel) and not is_last:
            return self.parallel.no_sync()
        return contextlib.nullcontext()

    def _clip(self) -> Tensor:
        limit = self.recipe.training.optimizer.gradient_clip
        return nn.utils.clip_grad_norm_(
            self.model.parameters(), float("inf") if limit is None else limit
        )
