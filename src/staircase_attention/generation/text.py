"""Text: tokens decoded as they come, ended by stop strings; and dialogues made of it.

A stop string may start in one token and end inside another. So bytes that may start a stop string
are held back until it is clear that they do not; and the bytes of an incomplete character wait for
the rest of it.
"""

import codecs
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from staircase_attention.checks import input_error
from staircase_attention.generation.prompts import as_stop_tokens
from staircase_attention.generation.sampling import Sampler, SamplingConfig
from staircase_attention.generation.stepper import Model, accelerate, device_of, feed, inference
from staircase_attention.generation.stream import (
    Finish,
    GenerationStatus,
    NewToken,
    Plan,
    TokenStream,
    stream,
)

# Text to tokens.
Encode = Callable[[str], Sequence[int]]
# Tokens to bytes. It is called for single tokens: the bytes of several must be the bytes of each,
# concatenated, as in all byte-level tokenisers.
Decode = Callable[[Sequence[int]], bytes]


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Strings that end a text and are not part of it.

    The one that is complete first ends the text; of several that end at the same byte, the longest.
    So the result does not depend on how the bytes are split into tokens.
    """

    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(one, str) and one for one in self.strings):
            raise input_error(
                "a stop string must be a string of at least one character",
                list(self.strings),
                "leave out the others",
            )

    def find(self, text: bytes) -> int | None:
        """The start of the stop string that is complete first; None if none is complete."""
        found = []
        for stop in self._encoded():
            start = text.find(stop)
            if start >= 0:
                found.append((start + len(stop), start))
        # Pairs of end and start: the earliest end wins, then the earliest start.
        return min(found)[1] if found else None

    def undecided(self, text: bytes) -> int:
        """The number of bytes at the end that may start a stop string.

        >>> StopStrings(("END", "NDA")).undecided(b"the EN")
        2
        """
        longest = 0
        for stop in self._encoded():
            # A whole stop string was found before, so at most all bytes but one.
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _encoded(self) -> list[bytes]:
        return [stop.encode() for stop in self.strings]


class TextTail:
    """The end of a row's text that cannot be shown yet: a few bytes, however long the text.

    >>> tail = TextTail(StopStrings(("END",)))
    >>> tail.feed(b"the E"), tail.feed(b"ast E"), tail.feed(b"NDED")
    (('the ', False), ('East ', False), ('', True))
    """

    def __init__(self, stops: StopStrings, *, held: bytes = b"", partial: bytes = b"") -> None:
        self.stops = stops
        self.held = held
        """Bytes that may start a stop string."""
        # A model can make bytes that are not UTF-8; they appear as U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The decoder keeps the first bytes of a character; a saved stream has them.
        self._decoder.setstate((partial, 0))

    @property
    def partial(self) -> bytes:
        """The first bytes of an incomplete character."""
        return self._decoder.getstate()[0]

    def feed(self, new: bytes) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop string has ended it."""
        text = self.held + new
        start = self.stops.find(text)
        if start is not None:
            self.held = b""
            return self._decoder.decode(text[:start], final=True), True
        shown = len(text) - self.stops.undecided(text)
        self.held = text[shown:]
        return self._decoder.decode(text[:shown]), False

    def finish(self) -> str:
        """What was held back, after the last byte."""
        text = self._decoder.decode(self.held, final=True)
        self.held = b""
        return text


@dataclass(frozen=True, kw_only=True, slots=True)
class NewText:
    """Text that can be shown now."""

    row: int
    text: str
    finish: Finish | None = None
    """Why the row ended with this text; None if it continues."""


class TextStream(Iterator[NewText]):
    """The text of a token stream, as early as it can be shown.

    Characters appear whole. A stop string ends its row and does not appear, nor does a stop token.
    At most a stop string and a character are held back; they appear when the row ends.
    """

    def __init__(
        self,
        tokens: TokenStream,
        *,
        decode: Decode,
        stops: StopStrings,
        tails: Mapping[int, TextTail] | None = None,
    ) -> None:
        self.tokens = tokens
        self.decode = decode
        self.stops = stops
        if tails is None:
            tails = {row: TextTail(stops) for row in tokens.status.rows}
        self.tails = dict(tails)
        """What each unfinished row holds back."""

    @property
    def finished(self) -> Mapping[int, Finish]:
        """The rows that have ended, and why."""
        return self.tokens.finished

    def __next__(self) -> NewText:
        return next(self._shown(self.tokens))

    def take(self, max_tokens: int) -> Iterator[NewText]:
        """The text of up to this many more tokens per row; what is held back comes later."""
        return self._shown(self.tokens.take(max_tokens))

    def end(self) -> list[NewText]:
        """End all rows, and return what was held back."""
        waiting = self.tokens.next_round() if self.tokens.status.waiting else []
        shown = list(self._shown(waiting))
        for row, tail in self.tails.items():
            if row not in self.finished:
                self.tokens.finish(row, "max_tokens")
            shown.append(NewText(row=row, text=tail.finish(), finish=self.finished[row]))
        self.tails.clear()
        return shown

    def _shown(self, tokens: Iterable[NewToken]) -> Iterator[NewText]:
        for token in tokens:
            new = self._add(token)
            if new.text or new.finish is not None:
                yield new

    def _add(self, token: NewToken) -> NewText:
        tail = self.tails[token.row]
        text, stopped, finish = "", False, token.finish
        # A stop token has no text of its own, but ends what was held back.
        if finish != "stop_token":
            text, stopped = tail.feed(self._decoded(token.token))
        if stopped:
            finish = "stop_string"
            self.tokens.finish(token.row, finish)
        elif finish is not None:
            text += tail.finish()
        if finish is not None:
            del self.tails[token.row]
        return NewText(row=token.row, text=text, finish=finish)

    def _decoded(self, token: int) -> bytes:
        piece = self.decode([token])
        if not isinstance(piece, bytes):
            raise input_error(
                "decode must turn tokens into bytes",
                type(piece).__name__,
                "for a tokeniser that gives text, pass lambda ids: tokeniser.decode(ids).encode()",
            )
        return piece


def as_stop_strings(strings: str | Sequence[str]) -> StopStrings:
    """Stop strings, given as one string or several."""
    return StopStrings((strings,) if isinstance(strings, str) else tuple(strings))


def stream_text(
    model: Model,
    prompts: str | Sequence[str],
    *,
    encode: Encode,
    decode: Decode,
    max_tokens: int | None,
    sampling: SamplingConfig | None = None,
    stop_strings: str | Sequence[str] = (),
    stop_tokens: Collection[int] = (),
    start_token: int | None = None,
    row_numbers: Sequence[int] | None = None,
) -> TextStream:
    """The text by which a model continues one prompt or several; see `stream` for the options."""
    stops = as_stop_strings(stop_strings)
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    tokens = stream(
        model,
        [list(encode(text)) for text in texts],
        max_tokens=max_tokens,
        sampling=sampling,
        stop_tokens=stop_tokens,
        start_token=start_token,
        row_numbers=row_numbers,
    )
    return TextStream(tokens, decode=decode, stops=stops)


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
        self.state = model.initial_state(1)
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
        # The model has not read the last token; a stop token is not part of the text.
        self.unread = [] if last in self.plan.stop_tokens else [last]
        if not has_separator:
            self.unread += self._encoded(self.separator)

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self.encode(text)]
