"""The classical recurrent baseline, called as the family is: PyTorch's LSTM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.checks import input_error
from staircase_attention.layers.embedding import Embedding, check_tokens
from staircase_attention.models.state import STATE_RULE, TensorState, checked_mask, checked_rows


@dataclass(frozen=True, kw_only=True)
class LSTMState(TensorState):
    """Where the streams of a batch stand: two vectors per layer."""

    hidden: Float[Tensor, "layers batch width"]
    cell: Float[Tensor, "layers batch width"]

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return self.hidden.shape[1]

    @property
    def _tensors(self) -> Sequence[Tensor]:
        return (self.hidden, self.cell)

    def map(self, change: Callable[[Tensor], Tensor]) -> "LSTMState":
        """The same change made to both tensors."""
        return LSTMState(hidden=change(self.hidden), cell=change(self.cell))

    def select(self, rows: Sequence[int] | Int[Tensor, " rows"]) -> "LSTMState":
        """The state of a batch made of these rows, in this order."""
        index = torch.tensor(checked_rows(rows, self.batch_size), device=self.hidden.device)
        return self.map(lambda tensor: tensor.index_select(1, index))

    def reset(self, rows: Bool[Tensor, " batch"] | Sequence[bool]) -> "LSTMState":
        """Restart the rows that are True, as if nothing had come before."""
        restarted = checked_mask(rows, self.batch_size)[None, :, None]
        return self.map(lambda tensor: tensor.masked_fill(restarted.to(tensor.device), 0.0))

    @classmethod
    def join(cls, states: Sequence["LSTMState"]) -> "LSTMState":
        """The state of a batch made of these batches' rows, one after another."""
        if not states:
            raise input_error("states to join must be one or more", "none", "pass a list of states")
        return cls(
            hidden=torch.cat([state.hidden for state in states], dim=1),
            cell=torch.cat([state.cell for state in states], dim=1),
        )


class LSTMSequenceModel(nn.Module):
    """Embedding, LSTM layers, projection; on a GPU the LSTM is cuDNN's."""

    def __init__(
        self,
        *,
        vocab_size: int,
        output_size: int,
        width: int,
        num_layers: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.output_size = output_size
        self.dropout = dropout
        self.embedding = Embedding(vocab_size, width)
        # PyTorch warns of dropout between layers where there is only one.
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, num_layers, batch_first=True, dropout=between)
        self.output = nn.Linear(width, output_size)

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: LSTMState | None = None
    ) -> tuple[Float[Tensor, "batch time output"], LSTMState]:
        """Logits for every token, and the state from which the stream continues."""
        check_tokens(tokens, self.vocab_size)
        if state is not None:
            self._check_state(state, tokens)
        # PyTorch's LSTM refuses sequences without tokens.
        if tokens.shape[1] == 0:
            return self.output(self.embedding(tokens)), state or self.initial_state(len(tokens))
        before = None if state is None else (state.hidden, state.cell)
        hidden, (last_hidden, last_cell) = self.lstm(self.embedding(tokens), before)
        logits = self.output(functional.dropout(hidden, self.dropout, self.training))
        return logits, LSTMState(hidden=last_hidden, cell=last_cell)

    def _check_state(self, state: LSTMState, tokens: Int[Tensor, "batch time"]) -> None:
        own = "pass this model's own state, or none to restart"
        if not isinstance(state, LSTMState):
            raise input_error(STATE_RULE, type(state).__name__, own)
        state.check_placed(self.output.weight)
        layers, width = self.lstm.num_layers, self.lstm.hidden_size
        for tensor in (state.hidden, state.cell):
            if tensor.shape != (layers, tokens.shape[0], width):
                rule = f"a state must be {layers} layers x {tokens.shape[0]} rows x {width}"
                raise input_error(rule, tuple(tensor.shape), own)

    def initial_state(self, batch_size: int) -> LSTMState:
        """The state of streams that have not begun."""
        shape = (self.lstm.num_layers, batch_size, self.lstm.hidden_size)
        zeros = self.output.weight.new_zeros(shape)
        return LSTMState(hidden=zeros, cell=zeros)

    @property
    def signature(self) -> dict[str, Any]:
        """What a state of this model can be used with, as plain data."""
        size = {"width": self.lstm.hidden_size, "num_layers": self.lstm.num_layers}
        return {"schedule": {"name": "lstm"}, **size}

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(parameter.numel() for parameter in self.parameters())
