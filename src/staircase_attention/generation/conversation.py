"""Dialogues with a model."""

from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass

import torch

from staircase_attention.generation.prompts import read
from staircase_attention.generation.sampling import SamplingConfig
from staircase_attention.generation.stepper import Model, Stepper, accelerate, inference
from staircase_attention.generation.stream import Decode, Encode, TokenStream, as_stop_strings


@dataclass(eq=False)
class Conversation:
    """A dialogue in which each turn ends with the same separator.

    Nothing is read twice: a turn starts from the state in which the previous one ended, so its
    cost does not grow with the dialogue.
    """

    model: Model
    _: KW_ONLY
    encode: Encode
    decode: Decode
    separator: str
    start_token: int | None = None
    stop_tokens: Collection[int] = ()
    sampling: SamplingConfig | None = None
    max_tokens: int = 200

    def __post_init__(self) -> None:
        self.stop_strings = as_stop_strings(self.separator)
        accelerate(self.model)
        self.state = self.model.initial_state(1)
        self.unread = [] if self.start_token is None else [self.start_token]
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
            sampling=self.sampling or SamplingConfig(),
            max_tokens=self.max_tokens,
            stop_tokens=tuple(self.stop_tokens),
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
