"""Runs a model one token at a time: with the engine's decoder where it fits, else as it is."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from staircase_attention import engine
from staircase_attention.models import LSTMSequenceModel, LSTMState, SequenceModel, State

if TYPE_CHECKING:
    from staircase_attention.engine.decoding.weights import Weights

Model = SequenceModel | LSTMSequenceModel
ModelState = State | LSTMState

# The decoder weights of each model, shared by all its streams.
_weights: "WeakKeyDictionary[SequenceModel, Weights]" = WeakKeyDictionary()


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Without gradients and dropout; afterwards the model is in its former mode again."""
    was_training = model.training
    # `eval` walks over all modules, too slow to do for every token without need.
    if was_training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if was_training:
            model.train()


def device_of(model: Model) -> torch.device:
    """The device of the model."""
    return model.output.weight.device


def feed(
    model: Model, tokens: Int[Tensor, "rows time"], state: ModelState
) -> tuple[Float[Tensor, "rows time vocab"], ModelState]:
    """The logits of these tokens, and the state after them."""
    return model(tokens.to(device_of(model)), state)  # type: ignore[no-any-return]


def is_worthwhile(model: Model) -> bool:
    """Whether the engine is faster than the plain model: where its kernels are compiled."""
    return device_of(model).type == "cuda"


def accelerate(model: Model) -> bool:
    """Let the engine run this model, where that is faster; whether it is."""
    if is_faster := is_worthwhile(model):
        engine.accelerate(model)
    return is_faster


def placed(model: Model, device: torch.device) -> Model:
    """The model on a device, run by the engine where that is faster."""
    accelerate(model.to(device))
    return model


class Stepper:
    """A model with its state, for tokens that come one by one.

    A decoder keeps the state in its own layout. `state` converts it back, only when asked.
    """

    def __init__(
        self,
        model: Model,
        state: ModelState,
        *,
        slack: int = 0,
        grows: bool = False,
        draft_passes: int | None = None,
    ) -> None:
        self.model, self.slack, self.grows = model, slack, grows
        self.draft_passes = draft_passes
        if isinstance(model, SequenceModel) and draft_passes is not None:
            self._drafting = copy(model)
            """The same modules, which stop after a few passes."""
            self._drafting.draft_passes = draft_passes
        self._state = state
        self._decoder: engine.Decoder | None = None
        self._active: Int[Tensor, " rows"] | None = None
        """The decoder's rows that are still in use; None for all."""
        self._is_ahead = False
        """Whether the decoder has seen tokens that `_state` has not."""
        self._is_broken = False
        self._trail: list[tuple[Tensor, ModelState]] = []
        """Tokens ahead, and the states before them where there is no decoder."""

    @property
    def state(self) -> ModelState:
        """The model's state after all tokens so far."""
        if self._is_ahead:
            assert self._decoder is not None
            state = self._decoder.state()
            self._state = state if self._active is None else state.select(self._active)
            self._is_ahead = False
        return self._state

    @property
    def room(self) -> int | None:
        """Tokens that `ahead` can take before it settles: up to the end of a chunk; None: any."""
        if (decoder := self._current_decoder()) is not None:
            return decoder.room
        assert isinstance(self._state, State)
        assert isinstance(self.model, SequenceModel)
        chunk, streams = self._state.chunk_length, self._state.streams
        # Where tokens go up side by side, each sees a number of positions, and chunks have no end.
        has_chunks = chunk > 1 or self.model.schedule.attention_span is None
        return min(chunk - one.position % chunk for one in streams) if has_chunks else None

    def ahead(
        self, tokens: Int[Tensor, "rows time"], *, drafts: bool = False
    ) -> Float[Tensor, "rows time vocab"]:
        """The logits of tokens that `settle` may take back: one, or `slack` at most.

        Drafts make a few passes only, and have to be taken back.
        """
        decoder, before = self._current_decoder(), self._state
        if decoder is None:
            model = self._drafting if drafts else self.model
            logits, self._state = feed(model, tokens, before)
        else:
            logits = decoder.step(self._fed(tokens), self.draft_passes if drafts else None)
            self._is_ahead = True
            logits = logits if self._active is None else logits[self._active]
        self._trail.append((tokens, before))
        return logits

    def settle(self, number: int) -> None:
        """Keep this many of the tokens ahead: going back is keeping an old state."""
        extra = sum(tokens.shape[1] for tokens, _ in self._trail) - number
        if self._decoder is not None and extra:
            self._decoder.undo(extra)
        while self._decoder is None and extra > 0:
            tokens, self._state = self._trail.pop()
            extra -= tokens.shape[1]
            if extra < 0:
                _, self._state = feed(self.model, tokens[:, :-extra], self._state)
        self._trail.clear()

    def keep(self, places: Sequence[int]) -> None:
        """Drop all rows but these.

        Building a decoder costs more than running rows that nobody reads, so the old one is used
        until less than half of its rows are in use.
        """
        if self._decoder is None or 2 * len(places) < self._decoder.batch_size:
            self._state = self.state.select(places)
            self._drop_decoder()
            return
        # If the decoder is ahead, `state` selects the rows when it converts.
        if not self._is_ahead:
            self._state = self._state.select(places)
        index = torch.tensor(places, device=device_of(self.model))
        self._active = index if self._active is None else self._active[index]

    def add(self, states: Sequence[ModelState]) -> None:
        """Add states of one row behind the present rows, at the same place of a period."""
        if self._decoder is not None and self._active is not None:
            used, every = self._active.tolist(), [*range(self._decoder.batch_size)]
            free = sorted({*every} - {*used})
            rows = [state.streams[0] for state in states if isinstance(state, State)]
            if len(free) >= len(rows) and all(map(self._decoder.put, free, rows)):
                used += free[: len(rows)]
                self._active = None if used == every else self._active.new_tensor(used)
                self._is_ahead = True
                return
        # First with one another: to join the present rows copies all of them.
        join: Any = LSTMState.join
        if isinstance(self.state, State):
            join = partial(State.join, shifts=True)
        self._state = join([self.state, join(states)])
        self._drop_decoder()

    def _fed(self, tokens: Tensor) -> Tensor:
        """One row for each of the decoder's; what rows out of use are fed does not matter."""
        if self._decoder is None or self._active is None:
            return tokens
        shape = (self._decoder.batch_size, *tokens.shape[1:])
        fed = tokens.new_zeros(shape, device=self._active.device)
        fed[self._active] = tokens.to(fed.device)
        return fed

    def _drop_decoder(self) -> None:
        self._decoder, self._active, self._is_ahead = None, None, False

    def _current_decoder(self) -> "engine.Decoder | None":
        """A decoder in the stream's state; None where there can be none."""
        model = self.model
        if not isinstance(model, SequenceModel) or not is_worthwhile(model):
            # The model may have been moved.
            self._state = self.state
            self._drop_decoder()
            return None
        # Weights that have changed since, as in training, need a new decoder.
        if self._decoder is not None and self._decoder.weights.are_of(model):
            return self._decoder
        state = self.state
        self._drop_decoder()
        if not self._is_broken and engine.Decoder.fits(model, state):
            try:
                assert isinstance(state, State)
                num_used, active = state.batch_size, None
                if self.grows:
                    # Free rows, copies at first: a row that is added later needs no new decoder.
                    num_free = (1 << (num_used - 1).bit_length()) - num_used
                    state = state.select([*range(num_used), *[0] * num_free])
                    active = torch.arange(num_used, device=device_of(model)) if num_free else None
                # Packed weights are the largest part of a decoder; all streams share them.
                weights = _weights.get(model)
                self._decoder = engine.Decoder(model, state, weights=weights, slack=self.slack)
                self._active = active
                _weights[model] = self._decoder.weights
            # A compiler or memory may be missing; the model needs neither.
            except Exception as error:
                self._is_broken = True
                warnings.warn(f"generating without the fused decoder: {error}", stacklevel=2)
        return self._decoder
