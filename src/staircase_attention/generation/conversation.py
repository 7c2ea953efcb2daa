"""Turns of talk with a model: what was said is in its state, however long ago."""

from collections.abc import Collection, Iterator, Sequence

import torch

from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.drive import Model, answering, device_of, feed, fresh_state
from staircase_attention.generation.prompts import as_stop_tokens
from staircase_attention.generation.sampler import Sampler
from staircase_attention.generation.stop import as_stop_strings
from staircase_attention.generation.stream import Plan, Progress, TokenStream
from staircase_attention.generation.text import Decode, Encode, TextStream


class Conversation:
    """A talk in which each turn ends with the same separator.

    Nothing is read twice: a turn goes on from the state in which the one before it ended, so that
    its cost does not grow with the talk.
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
        self.sampling = SamplingConfig() if sampling is None else sampling
        self.plan = Plan(
            sampling=self.sampling,
            max_tokens=max_tokens,
            stop_tokens=as_stop_tokens(stop_tokens, output_size=model.output_size),
        )
        self.state = fresh_state(model, 1)
        self.unread: list[int] = []
        """Tokens that have been said and that the model has not read yet."""
        self.num_turns = 0

    def reply(self, text: str) -> Iterator[str]:
        """Say something, and hear the answer as it is made.

        Who stops listening has cut the answer off: the talk goes on from what was made of it.
        """
        tokens = [*self.unread, *self._encoded(f"{text}{self.separator}")]
        stream = self._begin(tokens)
        said = TextStream(stream, decode=self.decode, stops=as_stop_strings(self.separator))
        turn = self.num_turns
        try:
            for part in said:
                if part.text:
                    yield part.text
        finally:
            self._end(stream, ended_by_itself=said.finished.get(turn) == "stop_string")

    def _begin(self, tokens: Sequence[int]) -> TokenStream:
        # Every turn is a row of its own number, so that equal words do not get equal answers.
        self.num_turns += 1
        with answering(self.model):
            if len(tokens) > 1:
                head = torch.tensor([tokens[:-1]], dtype=torch.int64)
                _, self.state = feed(self.model, head, self.state)
            recent = Sampler(self.sampling).begin([list(tokens)])
        place = device_of(self.model)
        progress = Progress(
            rows=(self.num_turns,),
            state=self.state,
            pending=torch.tensor([tokens[-1]], device=place),
            recent=recent.to(place),
        )
        return TokenStream(self.model, self.plan, progress)

    def _end(self, stream: TokenStream, *, ended_by_itself: bool) -> None:
        """Keep the state; a reply that was cut off gets the separator that it lacks."""
        self.state = stream.progress.state
        self.unread = [int(stream.progress.pending[0])]
        if self.unread[0] in self.plan.stop_tokens:
            self.unread = []
        if not ended_by_itself:
            self.unread += self._encoded(self.separator)

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self.encode(text)]
