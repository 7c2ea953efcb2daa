"""Streams of text: a stream of tokens, decoded as it comes, that stop strings can end."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.drive import Model
from staircase_attention.generation.stop import StopStrings, TextTail, as_stop_strings, check_bytes
from staircase_attention.generation.stream import Finish, NewToken, TokenStream, stream

Encode = Callable[[str], Sequence[int]]
"""Text to tokens."""
Decode = Callable[[Sequence[int]], bytes]
"""Tokens to bytes. It is called for single tokens, so the bytes of several must be those of each,
one after another, as in all tokenisers of bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewText:
    """Text that can be shown now."""

    row: int
    text: str
    finish: Finish | None = None
    """Why it is the row's last; None: the row goes on."""


class TextStream(Iterator[NewText]):
    """The text of a stream of tokens, as soon as it is certain to be shown.

    Characters appear whole. A stop string ends its row and does not appear, nor does a stop token.
    What is held back is at most a stop string and a character, and appears when the row ends.
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
            tails = {row: TextTail(stops) for row in tokens.progress.rows}
        self.tails = dict(tails)
        """Of each row that goes on, what may not be shown yet."""

    @property
    def finished(self) -> Mapping[int, Finish]:
        """The rows that have ended, and why."""
        return self.tokens.finished

    def __next__(self) -> NewText:
        return next(self._shown(self.tokens))

    def take(self, max_tokens: int) -> Iterator[NewText]:
        """The text of so many more tokens of each row, at most; what is held back comes later."""
        return self._shown(self.tokens.take(max_tokens))

    def end(self) -> list[NewText]:
        """What was held back of the rows that go on, which end here."""
        waiting = self.tokens.next_round() if self.tokens.progress.waiting else []
        shown = list(self._shown(waiting))
        for row, tail in self.tails.items():
            if row not in self.finished:
                self.tokens.finish(row, "max_tokens")
            shown.append(NewText(row=row, text=tail.finish(), finish=self.finished[row]))
        self.tails.clear()
        return shown

    def _shown(self, tokens: Iterable[NewToken]) -> Iterator[NewText]:
        """The text of tokens, without those that show nothing."""
        for token in tokens:
            new = self._add(token)
            if new.text or new.finish is not None:
                yield new

    def _add(self, token: NewToken) -> NewText:
        tail = self.tails[token.row]
        text, stopped, finish = "", False, token.finish
        if finish != "stop_token":
            text, stopped = tail.feed(check_bytes(self.decode([token.token])))
        if stopped:
            finish = "stop_string"
            self.tokens.finish(token.row, finish)
        elif finish is not None:
            text += tail.finish()
        if finish is not None:
            del self.tails[token.row]
        return NewText(row=token.row, text=text, finish=finish)


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
    """The text by which a model continues a text, or several; see `stream` for the options."""
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
