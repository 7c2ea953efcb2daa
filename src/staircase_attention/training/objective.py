"""What an update makes smaller: a model's loss on a segment."""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from staircase_attention.batches import IGNORED
from staircase_attention.evaluation import loss_and_wrong
from staircase_attention.models import LSTMState, SequenceModel, State
from staircase_attention.training.build import Model

MANY_OUTPUTS = 4096
"""Symbols from which on the logits of a whole segment are not held at once."""

Carried = State | LSTMState | None
"""What goes from one segment to the next; None before the first."""


class Objective(nn.Module):
    """Summed loss, wrong answers, and the state to go on from."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Tensor, targets: Tensor, state: Carried
    ) -> tuple[Tensor, Tensor, State | LSTMState]:
        """Of one segment."""
        model = self.model
        if isinstance(model, SequenceModel) and self._is_large(model):
            assert not isinstance(state, LSTMState)
            hidden, state = model.hidden(inputs, state)
            loss, wrong = self._from_hidden(model, hidden, targets)
            return loss, wrong, state
        logits, state = model(inputs, state)
        return *loss_and_wrong(logits, targets), state

    @staticmethod
    def _is_large(model: SequenceModel) -> bool:
        has_kernels = model.output.weight.is_cuda and find_spec("triton") is not None
        return model.fuse and has_kernels and model.output_size >= MANY_OUTPUTS

    @staticmethod
    def _from_hidden(
        model: SequenceModel, hidden: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Triton is imported where it is used: it is not there on every machine.
        from staircase_attention.engine.kernels.cross_entropy import linear_cross_entropy

        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        return linear_cross_entropy(
            hidden.flatten(0, 1),
            model.output.weight,
            model.output.bias,
            targets.flatten(),
            ignore_index=IGNORED,
        )
