"""The classical recurrent baseline, called as the family is: PyTorch's LSTM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.layers.embedding import Embedding
from staircase_attention.models.checks import check_sizes, check_tokens
from staircase_attention.models.state import checked_mask, checked_rows


@dataclass(frozen=True, kw_only=True)
class LSTMState:
    """Where the streams of a batch stand: two vectors a layer."""

    hidden: Float[Tensor, "layers batch width"]
    cell: Float[Tensor, "layers batch width"]

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return self.hidden.shape[1]

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "LSTMState":
        """The same state on another device, or in other numbers."""
        return self.map(lambda tensor: tensor.to(device=device, dtype=dtype))

    def detach(self) -> "LSTMState":
        """The same state, through which no gradient flows."""
        return self.map(torch.Tensor.detach)

    def map(self, change: Callable[[Tensor], Tensor]) -> "LSTMState":
        """The same change made to both."""
        return LSTMState(hidden=change(self.hidden), cell=change(self.cell))

    def select(self, rows: Sequence[int] | Int[Tensor, " rows"]) -> "LSTMState":
        """The state of a batch made of these rows, in this order."""
        index = torch.tensor(checked_rows(rows, self.batch_size), device=self.hidden.device)
        return self.map(lambda tensor: tensor.index_select(1, index))

    def reset(self, rows: Bool[Tensor, " batch"] | Sequence[bool]) -> "LSTMState":
        """Let the rows that are True begin anew, as if nothing had come before."""
        anew = checked_mask(rows, self.batch_size)[None, :, None]
        return self.map(lambda tensor: tensor.masked_fill(anew.to(tensor.device), 0.0))

    @classmethod
    def join(cls, states: Sequence["LSTMState"]) -> "LSTMState":
        """The state of a batch made of these batches' rows, one after another."""
        if not states:
            raise ValueError("states that are joined must be one or more, got none; give a list")
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
        check_sizes(
            vocab_size=vocab_size, output_size=output_size, width=width, num_layers=num_layers
        )
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
        """Logits for every token, and the state from which the stream goes on."""
        check_tokens(tokens, self.vocab_size)
        if state is not None:
            self._check_state(state, tokens)
        if tokens.shape[1] == 0 and state is not None:
            return self.output(self.embedding(tokens)), state
        before = None if state is None else (state.hidden, state.cell)
        hidden, (last_hidden, last_cell) = self.lstm(self.embedding(tokens), before)
        logits = self.output(functional.dropout(hidden, self.dropout, self.training))
        return logits, LSTMState(hidden=last_hidden, cell=last_cell)

    def _check_state(self, state: LSTMState, tokens: Int[Tensor, "batch time"]) -> None:
        if not isinstance(state, LSTMState):
            raise TypeError(
                f"state must be an LSTMState that a model gave back, got {type(state).__name__}; "
                "pass the second value of model(tokens), or leave it out to begin anew"
            )
        here = self.output.weight
        is_casting = torch.is_autocast_enabled(here.device.type)
        if not is_casting and {state.hidden.dtype, state.cell.dtype} != {here.dtype}:
            raise ValueError(
                f"state and model must be of one dtype, got {state.hidden.dtype} and "
                f"{here.dtype}; use state.to(dtype={here.dtype})"
            )
        lstm = self.lstm
        shape = (lstm.num_layers, tokens.shape[0], lstm.hidden_size)
        for tensor in (state.hidden, state.cell):
            if tensor.shape != shape:
                raise ValueError(
                    f"a state must have {lstm.num_layers} layers, {tokens.shape[0]} batch rows and "
                    f"a width of {lstm.hidden_size}, as model and tokens have, got "
                    f"{tuple(tensor.shape)}; pass this model's own state, or none to begin anew"
                )

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(parameter.numel() for parameter in self.parameters())
