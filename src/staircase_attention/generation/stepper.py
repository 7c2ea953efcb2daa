"""Takes a stream one token on: by a decoder where one fits, by the model itself elsewhere."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.generation.drive import Carried, Model, device_of, feed
from staircase_attention.models import SequenceModel, State
from staircase_attention.models.decoding import Decoder, Weights

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
        self._is_ahead = False
        self._is_broken = False

    @property
    def state(self) -> Carried:
        """Where the model stands."""
        if self._is_ahead:
            assert self._decoder is not None
            self._state = self._decoder.state()
            self._is_ahead = False
        return self._state

    def go_on_from(self, state: Carried) -> None:
        """Stand somewhere else, as with fewer rows."""
        self._state = state
        self._decoder, self._is_ahead = None, False

    @contextmanager
    def step(self, tokens: Int[Tensor, " rows"]) -> Iterator[Float[Tensor, "rows vocab"]]:
        """Logits after one more token of each row, which is taken in if the block succeeds."""
        decoder = self._ready()
        if decoder is None:
            logits, state = feed(self.model, tokens[:, None], self.state)
            yield logits[:, -1]
            self._state = state
            return
        logits = decoder.step(tokens)
        try:
            yield logits
        except BaseException:
            decoder.undo()
            raise
        self._is_ahead = True

    def _ready(self) -> Decoder | None:
        """A decoder that stands where the stream does; None where there can be none."""
        model = self.model
        if not isinstance(model, SequenceModel) or not is_worthwhile(model):
            return None
        if self._decoder is not None and self._decoder.weights.are_of(model):
            return self._decoder
        state = self.state
        self._decoder = None
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
