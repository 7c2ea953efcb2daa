"""Dialogues with a model."""

from collections.abc import Collection, Iterator

import torch

from staircase_attention.generation.prompts import read
from staircase_attention.generation.sampling import SamplingConfig
from staircase_attention.generation.stepper import Model, Stepper, accelerate, inference
from staircase_attention.generation.stream import Decode, Encode, TokenStream, as_stop_strings


class Conversation:
    """A dialogue in which each turn ends with the same separator.

    Nothing is read twice: a turn starts from the state in which the previous one ended, so its
    cost does not grow with the dialogue.
    """

    def __init__(
        self,
        model: Model,
        *,
        encode: Encode,
        decode: Decode,
        separator: str,
        start_token: int | None = None,
        stop_tokens: Collection[int] = (),
        sampling: SamplingConfig | None = None,
        max_tokens: int = 200,
    ) -> None:
        self.model = model
        self.encode, self.decode = encode, decode
        self.separator = separator
        self.stop_strings = as_stop_strings(separator)
        self.stop_tokens = tuple(stop_tokens)
        self.sampling = SamplingConfig() if sampling is None else sampling
        self.max_tokens = max_tokens
        accelerate(model)
        self.state = model.initial_state(1)
        self.unread = [] if start_token is None else [start_token]
        """Tokens that the model has not read yet."""
        self.num_turns = 0

    def read(self, turn: str) -> None:
        """Add a turn of either side as it stands."""
        # A tokeniser may give an array of numbers of its own kind.
        self.unread += map(int, self.encode(f"{turn}{self.separator}"))

    def reply(self, text: str) -> Iterator[str]:
        """The model's reply to a turn of the user's, as it is made.

        A caller that stops iterating cuts the reply off: the dialogue continues from there.
        """
        self.read(text)
        # Every turn has its own row number, so that equal words need not get equal replies.
        self.num_turns += 1
        with inference(self.model):
            self.state = read(self.model, torch.tensor([self.unread[:-1]]), self.state)
        tokens = TokenStream(
            stepper=Stepper(self.model, self.state),
            rows=(self.num_turns,),
            pending=torch.tensor(self.unread[-1:]),
            recent=[self.unread],
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop_tokens=self.stop_tokens,
            decode=self.decode,
            stop_strings=self.stop_strings,
        )
        try:
            for new in tokens:
                if new.text:
                    yield new.text
        finally:
            self.state, self.unread = tokens.stepper.state, tokens.unread
            # A reply that was cut off gets the separator it lacks.
            if "stop_string" not in tokens.finished.values():
                self.read("")
