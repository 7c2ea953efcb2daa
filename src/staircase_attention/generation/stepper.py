"""Takes a stream one token on: by a decoder where one fits, by the model itself elsewhere."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.engine.decoding import Decoder, Weights
from staircase_attention.generation.drive import Carried, Model, device_of, feed
from staircase_attention.models import SequenceModel, State

_weights: WeakKeyDictionary[SequenceModel, Weights] = WeakKeyDictionary()
"""The latest of each model, made ready for decoders: all its streams share them."""


class Stepper:
    """A model and where it stands, for tokens that come one by one.

    A decoder keeps the state in a form of its own; `state` asks it for an ordinary one, which is
    made only then.
    """

    def __init__(self, model: Model, state: Carried) -> None:
        self.model = model
        self._state = state
        self._decoder: Decoder | None = None
        self._heard: Int[Tensor, " rows"] | None = None
        """Rows of the decoder that go on; None where all do."""
        self._is_ahead = False
        self._is_broken = False

    @property
    def state(self) -> Carried:
        """Where the model stands."""
        if self._is_ahead:
            assert self._decoder is not None
            state = self._decoder.state()
            self._state = state if self._heard is None else state.select(self._heard)
            self._is_ahead = False
        return self._state

    def keep(self, places: Sequence[int]) -> None:
        """Let all rows but these end.

        A decoder costs more to make than to run with rows that nobody listens to, until they are
        the more.
        """
        if self._decoder is None or 2 * len(places) < self._decoder.batch_size:
            self._state = self.state.select(places)
            self._drop_decoder()
            return
        if not self._is_ahead:
            self._state = self._state.select(places)
        index = torch.tensor(places, device=device_of(self.model))
        self._heard = index if self._heard is None else self._heard[index]

    def _drop_decoder(self) -> None:
        self._decoder, self._heard, self._is_ahead = None, None, False

    @contextmanager
    def step(self, tokens: Int[Tensor, " rows"]) -> Iterator[Float[Tensor, "rows vocab"]]:
        """Logits after one more token of each row, which is taken in if the block succeeds."""
        decoder = self._ready()
        if decoder is None:
            logits, state = feed(self.model, tokens[:, None], self.state)
            yield logits[:, -1]
            self._state = state
            return
        logits = decoder.step(self._fed(tokens, decoder.batch_size))
        try:
            yield logits if self._heard is None else logits[self._heard]
        except BaseException:
            decoder.undo()
            raise
        self._is_ahead = True

    def _fed(self, tokens: Int[Tensor, " rows"], batch_size: int) -> Int[Tensor, " batch"]:
        """A token for every row of the decoder; what ended rows get does not matter."""
        if self._heard is None:
            return tokens
        fed = tokens.new_zeros(batch_size, device=self._heard.device)
        fed[self._heard] = tokens.to(fed.device)
        return fed

    def _ready(self) -> Decoder | None:
        """A decoder that stands where the stream does; None where there can be none."""
        model = self.model
        if not isinstance(model, SequenceModel) or not is_worthwhile(model):
            return None
        if self._decoder is not None and self._decoder.weights.are_of(model):
            return self._decoder
        state = self.state
        self._drop_decoder()
        if not self._is_broken and isinstance(state, State) and Decoder.fits(model, state):
            self._decoder = self._make(model, state)
        return self._decoder

    def _make(self, model: SequenceModel, state: State) -> Decoder | None:
        try:
            decoder = Decoder(model, state, weights=_weights.get(model))
        except Exception as error:  # A compiler may be missing, or memory; the model needs neither.
            self._is_broken = True
            warnings.warn(f"tokens are made without a decoder: {error}", stacklevel=2)
            return None
        _weights[model] = decoder.weights
        return decoder


def is_worthwhile(model: Model) -> bool:
    """Whether a decoder is quicker than the model: where the kernels are compiled."""
    return device_of(model).type == "cuda"
