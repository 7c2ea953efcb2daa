"""Dialogue with a model: its state holds all earlier turns."""

from collections.abc import Collection, Iterator, Sequence

import torch

from staircase_attention.generation.prompts import as_stop_tokens, new_state
from staircase_attention.generation.sampling import Sampler, SamplingConfig
from staircase_attention.generation.stepper import Model, accelerate, device_of, feed, inference
from staircase_attention.generation.stream import GenerationStatus, Plan, TokenStream
from staircase_attention.generation.text import Decode, Encode, TextStream, as_stop_strings


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
        stop_tokens: Collection[int] = (),
        sampling: SamplingConfig | None = None,
        max_tokens: int = 200,
    ) -> None:
        self.model = model
        self.encode, self.decode = encode, decode
        self.separator = separator
        self.plan = Plan(
            sampling=SamplingConfig() if sampling is None else sampling,
            max_tokens=max_tokens,
            stop_tokens=as_stop_tokens(stop_tokens, output_size=model.output_size),
        )
        accelerate(model)
        self.state = new_state(model, 1)
        self.unread: list[int] = []
        """Tokens of earlier turns that the model has not read yet."""
        self.num_turns = 0

    def reply(self, text: str) -> Iterator[str]:
        """The model's reply to a turn of the user's, as it is made.

        A caller that stops iterating cuts the reply off: the dialogue continues from there.
        """
        tokens = self._start([*self.unread, *self._encoded(f"{text}{self.separator}")])
        reply = TextStream(tokens, decode=self.decode, stops=as_stop_strings(self.separator))
        turn = self.num_turns
        try:
            for part in reply:
                if part.text:
                    yield part.text
        finally:
            self._end(tokens, has_separator=reply.finished.get(turn) == "stop_string")

    def _start(self, tokens: Sequence[int]) -> TokenStream:
        # Every turn has its own row number, so that equal words need not get equal replies.
        self.num_turns += 1
        device = device_of(self.model)
        if len(tokens) > 1:
            with inference(self.model):
                _, self.state = feed(self.model, torch.tensor([tokens[:-1]]), self.state)
        status = GenerationStatus(
            rows=(self.num_turns,),
            state=self.state,
            pending=torch.tensor([tokens[-1]], device=device),
            recent=Sampler(self.plan.sampling).begin([tokens]).to(device),
        )
        return TokenStream(self.model, self.plan, status)

    def _end(self, stream: TokenStream, *, has_separator: bool) -> None:
        """Keep the state; a reply that was cut off gets the separator it lacks."""
        self.state = stream.status.state
        last = int(stream.status.pending[0])
        self.unread = [] if last in self.plan.stop_tokens else [last]
        if not has_separator:
            self.unread += self._encoded(self.separator)

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self.encode(text)]
