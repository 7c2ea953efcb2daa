"""One update: a segment of every lane forward and backward, and the weights changed."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from staircase_attention.engine.updates import Engine
from staircase_attention.evaluation import autocast
from staircase_attention.models import LSTMSequenceModel
from staircase_attention.training.build import Model, precision_of
from staircase_attention.training.dataset import TrainingBatch
from staircase_attention.training.objective import Carried, Objective
from staircase_attention.training.optimizer import Optimizer
from staircase_attention.training.processes import Processes
from staircase_attention.training.recipe import Recipe


class NoRoomError(RuntimeError):
    """Memory ran out where an update cannot be begun again."""


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
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.recipe = recipe
        self.carries_state = carries_state
        self.device = device
        self.processes = processes
        self.model = model.to(device).train()
        self.parallel = processes.wrap(Objective(self.model), device)
        self.optimizer = Optimizer(self.model, recipe.training.optimizer)
        self.engine = Engine(why_not=self._why_not_captured(), say=say)
        self.restart()

    @property
    def states(self) -> list[Carried]:
        """Where the lanes stand, in as many parts as there are micro-batches."""
        return self.engine.states

    @states.setter
    def states(self, states: list[Carried]) -> None:
        self.engine.states = states

    def restart(self) -> None:
        """Let every lane begin anew, with an empty state."""
        self.states = [None] * self.recipe.training.num_micro_batches

    def update(
        self,
        batch: TrainingBatch,
        *,
        lanes: range,
        rate: float,
        wants_stop: bool,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Learn from one segment of this process's lanes.

        `meanwhile` is called when all has been handed to the device, which is then busy for a
        while.
        """
        own = batch.rows(lanes)
        # Averaging over processes is undone, so that every answer of the batch weighs the same.
        share = self.processes.count / max(1, batch.num_answers)
        numbers = np.array([share, rate, wants_stop], dtype=np.float64)
        inputs = (own.inputs, own.targets, numbers)
        with torch.cuda.device_of(next(self.model.parameters())):  # type: ignore[no-untyped-call]
            results = self.engine.run(self._work, tuple(self._on_device(part) for part in inputs))
        # A graph changes weights behind PyTorch's back; whoever keeps copies must hear of it.
        torch.autograd.graph.increment_version(list(self.model.parameters()))
        meanwhile()
        return self._outcome(results, batch.num_answers)

    def _outcome(self, results: Tensor, num_answers: int) -> Outcome:
        loss, wrong, stops, norm = results.tolist()
        was_applied = math.isfinite(norm)
        if not was_applied:
            # A state that is not finite would spoil every later segment.
            self.restart()
        return Outcome(
            loss=loss,
            num_wrong=round(wrong),
            num_answers=num_answers,
            gradient_norm=norm,
            was_applied=was_applied,
            wants_stop=stops > 0,
        )

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        # A copy by PyTorch would wake a thread for every core, and wait for the last of them.
        np.copyto(pinned.numpy(), array)
        return pinned.to(self.device, non_blocking=True)

    def _work(
        self, inputs: Tensor, targets: Tensor, numbers: Tensor, states: list[Carried]
    ) -> tuple[Tensor, list[Carried]]:
        """The device's part of an update: loss, wrong answers, wishes to stop, gradient norm."""
        share, rate, wants_stop = numbers
        self.optimizer.zero_grad()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        parts = zip(inputs.chunk(len(states)), targets.chunk(len(states)), states, strict=True)
        after: list[Carried] = []
        for number, part in enumerate(parts):
            is_last = number == len(states) - 1
            with self._gradient_exchange(is_last):
                with autocast(self.device, precision_of(self.recipe)):
                    loss, wrong, state = self.parallel(*part)
                torch.autograd.backward(loss * share.to(loss.dtype))
            totals += torch.stack([loss.detach().double(), wrong.double()])
            # The one place where a stream is cut for gradients.
            after.append(state.detach() if self.carries_state else None)
        results = self.processes.total(torch.stack([*totals, wants_stop]))
        norm = self._clip()
        try:
            self.optimizer.step(rate, is_finite=torch.isfinite(norm))
        except torch.OutOfMemoryError as error:
            # Not to be begun again: some weights may have changed.
            raise NoRoomError(
                "memory ran out while weights were changed; train with fewer lanes, more "
                "training.num_micro_batches or training.recompute, and go on from the latest "
                f"checkpoint ({error})"
            ) from error
        return torch.stack([*results, norm.double()]), after

    def _why_not_captured(self) -> str | None:
        """What stands in the way of capturing whole updates; None: nothing that is known."""
        if self.recipe.training.engine == "plain" or self.device.type != "cuda":
            return ""
        if isinstance(self.model, LSTMSequenceModel):
            # A few large kernels of cuDNN, which keeps the random numbers of dropout to itself.
            return ""
        if self.processes.count > 1:
            return "several processes train together"
        return None

    def _gradient_exchange(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.parallel, nn.parallel.DistributedDataParallel) and not is_last:
            return self.parallel.no_sync()
        return contextlib.nullcontext()

    def _clip(self) -> Tensor:
        limit = self.recipe.training.optimizer.gradient_clip
        return nn.utils.clip_grad_norm_(
            self.model.parameters(), float("inf") if limit is None else limit
        )
