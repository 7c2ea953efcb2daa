"""What generation needs of a model: one interface to the family and to the LSTM."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from staircase_attention.models import LSTMSequenceModel, LSTMState, SequenceModel, State

Model = SequenceModel | LSTMSequenceModel
Carried = State | LSTMState

NUM_SAMPLES = 4096
"""Numbers of each weight that go into a fingerprint."""


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """Without gradients and dropout; the model is left in the mode it came in."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if was_training:
            model.train()


def feed(
    model: Model, tokens: Int[Tensor, "rows time"], state: Carried
) -> tuple[Float[Tensor, "rows time vocab"], Carried]:
    """Logits for these tokens, and the state after them."""
    logits: Tensor
    carried: Carried
    logits, carried = model(tokens.to(device_of(model)), state)
    return logits, carried


def fresh_state(model: Model, num_rows: int) -> Carried:
    """The state of rows that have not begun."""
    if isinstance(model, SequenceModel):
        return model.initial_state(num_rows)
    shape = (model.lstm.num_layers, num_rows, model.lstm.hidden_size)
    zeros = model.output.weight.new_zeros
    return LSTMState(hidden=zeros(shape), cell=zeros(shape))


def with_new_rows(model: Model, state: Carried, num_rows: int) -> Carried:
    """The state with more rows after the others, which begin where the others stand.

    In the family that must be where a chunk begins. The new rows are then in one stream with the
    others: copies of a row that are reset, from which what came before is hidden.
    """
    if isinstance(state, LSTMState):
        return join_states([state, fresh_state(model, num_rows)])
    old = state.batch_size
    copies = state.select([*range(old), *[0] * num_rows])
    return copies.reset([False] * old + [True] * num_rows)


def join_states(states: Sequence[Carried]) -> Carried:
    """The rows of several states, one after another."""
    family = [state for state in states if isinstance(state, State)]
    return State.join(family) if family else LSTMState.join([*states])  # type: ignore[list-item]


def chunk_length(model: Model) -> int:
    """Rows that begin a multiple of this apart can share a stream."""
    return model.schedule.chunk_length if isinstance(model, SequenceModel) else 1


def device_of(model: Model) -> torch.device:
    """Where the model is."""
    return model.output.weight.device


def identity(model: Model) -> dict[str, Any]:
    """A model's shape as plain data."""
    if isinstance(model, SequenceModel):
        shape = model.signature
    else:
        lstm = model.lstm
        schedule = {"name": "lstm"}
        shape = {"schedule": schedule, "width": lstm.hidden_size, "num_layers": lstm.num_layers}
    return {**shape, "vocab_size": model.vocab_size, "output_size": model.output_size}


def fingerprint(model: Model) -> str:
    """What tells a model's weights from others of the same shape.

    A checksum of every weight's name, kind and shape, and of up to 4,096 of its numbers at even
    distances: the same on every machine, and quick however large the model.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        numbers = weight.detach().flatten()
        stride = -(-numbers.numel() // NUM_SAMPLES) or 1
        digest.update(numbers[::stride].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
