"""Token streams: how a model continues prompts, one token per row and round; text and dialogues.

A stop string may start in one token and end inside another. So bytes that may start a stop string
are held back until it is clear that they do not; and the bytes of an incomplete character wait for
the rest of it.
"""

import codecs
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Self

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.checks import check_integer, input_error
from staircase_attention.generation.prompts import Prompt, as_rows, prefill, read
from staircase_attention.generation.sampling import SamplingConfig, choose
from staircase_attention.generation.speculation import Speculation
from staircase_attention.generation.stepper import Model, ModelState, Stepper, accelerate, inference

# Text to tokens.
Encode = Callable[[str], Sequence[int]]
# Tokens to bytes. It is called for single tokens: the bytes of several must be the bytes of each,
# concatenated, as in all byte-level tokenisers.
Decode = Callable[[Sequence[int]], bytes]
# Why a row ended.
Finish = Literal["max_tokens", "stop_token", "stop_string"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that has just been made.

    `logprob` is its log-probability under the model itself, before penalty and filters. `finish`
    says why the row ended with this token, and is None if it continues. In a stream of text, `text`
    can be shown now; a row's last token brings all that is left.
    """

    row: int
    token: int
    logprob: float
    finish: Finish | None = None
    text: str = ""


@dataclass(kw_only=True, eq=False)
class TokenStream(Iterator[NewToken]):
    """The tokens of one row or several, made when they are asked for.

    Iterate over it, or call `next_round` for one token of every unfinished row, or `take`. Rows
    that have ended are no longer computed. Memory does not grow with the number of tokens, apart
    from the model's own state.
    """

    stepper: Stepper
    """The model, and its state before each row's latest token."""
    rows: tuple[int, ...]
    """The numbers of the rows in the state, in its order."""
    recent: list[list[int]]
    """Each row's latest tokens, at least one, to which the repetition penalty applies."""
    sampling: SamplingConfig
    max_tokens: int | None = None
    """Tokens per row, at most; None for an endless stream."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a row. They have no text."""
    decode: Decode | None = None
    """Makes text of tokens; None for a stream of tokens alone."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end a row and are not part of its text."""
    held: dict[int, bytes] = field(default_factory=dict)
    """Of each row, the bytes that cannot be shown yet: a few, however long the text."""
    num_made: int = 0
    """Tokens made for each unfinished row."""
    waiting: deque[NewToken] = field(default_factory=deque)
    """Tokens that have been made and not been asked for yet."""
    finished: dict[int, Finish] = field(default_factory=dict)
    """The rows that have ended, and why. A row that is added here ends."""
    speculation: Speculation | None = None
    """What drafts tokens; a saved stream has none."""
    until: int | None = None
    """`num_made` at which `take` stops."""

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingConfig):
            raise input_error(
                "sampling must be a SamplingConfig", repr(self.sampling), "use SamplingConfig(...)"
            )
        self.recent = [row[-self.sampling.repetition_window :] for row in self.recent]
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, minimum=1, example=100)
        highest = self.stepper.model.output_size - 1
        for token in self.stop_tokens:
            check_integer("stop_token", token, minimum=0, maximum=highest, example=0)

    @property
    def pending(self) -> Int[Tensor, " rows"]:
        """Each row's latest token, which the model has not seen yet."""
        return torch.tensor([row[-1] for row in self.recent])

    @property
    def state(self) -> ModelState:
        """The model's state before each row's latest token: a copy, also usable in training."""
        # The stream's own tensors are made in inference mode; a selection of them is not.
        return self.stepper.state.select(range(len(self.rows)))

    @property
    def unread(self) -> list[int]:
        """What a text that goes on from `state` begins with: the latest token of the only row."""
        last = self.recent[0][-1]
        # A stop token is not part of the text.
        return [] if last in self.stop_tokens else [last]

    def speculate(self, num_passes: int, num_tokens: int = 4) -> Self:
        """Draft tokens in fewer passes from now on; what is made has the same distribution.

        At temperature 0 the tokens are the same. `num_tokens` are drafted before all passes verify
        them at once.
        """
        self.speculation = Speculation(self.stepper.model, num_passes, num_tokens)
        with inference(self.stepper.model):
            # A decoder that has begun could not go back.
            model, state = self.stepper.model, self.stepper.state
            self.stepper = Stepper(model, state, slack=num_tokens, draft_passes=num_passes)
        return self

    def __next__(self) -> NewToken:
        if not self.waiting:
            self._make()
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()

    def next_round(self) -> list[NewToken]:
        """The tokens still waiting, or else one of every unfinished row; none after the end."""
        if not self.waiting:
            self._make()
        made = list(self.waiting)
        self.waiting.clear()
        return made

    def take(self, max_tokens: int) -> Iterator[NewToken]:
        """The tokens still waiting, then up to this many more per row; the stream can continue."""
        check_integer("max_tokens", max_tokens, minimum=1, example=100)
        last = self.until = self.num_made + max_tokens
        while self.waiting or self.num_made < last:
            token = next(self, None)
            if token is None:
                return
            yield token

    def _make(self) -> None:
        """Make one token for every unfinished row, or several where they are drafted."""
        unfinished = [place for place, row in enumerate(self.rows) if row not in self.finished]
        if not unfinished:
            return
        if len(unfinished) < len(self.rows):
            self.stepper.keep(unfinished)
            self.rows = tuple(self.rows[place] for place in unfinished)
            self.recent = [self.recent[place] for place in unfinished]
        made: list[tuple[Tensor, Tensor, list[bytes]]] = []
        with inference(self.stepper.model):
            # A round happens whole or not at all: if sampling fails, its steps are undone.
            try:
                made = [(*one, self._decoded(one[0])) for one in self._chosen()]
            finally:
                self.stepper.settle(len(made))
        for one in made:
            self.add(*one)

    def _chosen(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens of all rows and their log-probabilities, of one step or several."""
        if self.speculation is None:
            logits = self.stepper.ahead(self.pending[:, None])[:, -1]
            rows, count = self.rows, self.num_made
            return [choose(self.sampling, logits, self.recent, rows=rows, count=count)]
        # A `take` that is over limits nothing.
        limits = [(limit or 0) - self.num_made for limit in (self.max_tokens, self.until)]
        left = min((limit for limit in limits if limit > 0), default=None)
        return self.speculation.round(self, left)

    def add(self, tokens: Tensor, logprobs: Tensor, pieces: Sequence[bytes]) -> None:
        """Add a token to every row; one that ended in this round gets none."""
        self.num_made += 1
        every = zip(self.rows, tokens.tolist(), logprobs.tolist(), pieces, strict=True)
        for row, token, logprob, piece in every:
            if row not in self.finished:
                text, why = self.shown(row, token, piece)
                new = NewToken(row=row, token=token, logprob=logprob, finish=why, text=text)
                self.waiting.append(new)
        self.note(tokens.tolist())

    def note(self, tokens: Sequence[int]) -> None:
        """Count the latest token of every row as recent."""
        for recent, token in zip(self.recent, tokens, strict=True):
            recent.append(token)
            del recent[: -self.sampling.repetition_window]

    def shown(self, row: int, token: int, piece: bytes) -> tuple[str, Finish | None]:
        """The text that can be shown after a token of the latest round, and why the row ends."""
        why: Finish | None = None
        # A stop token that is also the last one allowed counts as a stop.
        if token in self.stop_tokens:
            why, piece = "stop_token", b""
        elif self.num_made == self.max_tokens:
            why = "max_tokens"
        text, held, stopped = show(
            self.held.pop(row, b"") + piece, self.stop_strings, is_end=why is not None
        )
        if stopped:
            why = "stop_string"
        if held:
            self.held[row] = held
        if why is not None:
            self.finished[row] = why
        return text, why

    def _decoded(self, tokens: Tensor) -> list[bytes]:
        if self.decode is None:
            return [b""] * len(tokens)
        pieces = [self.decode([token]) for token in tokens.tolist()]
        if wrong := [piece for piece in pieces if not isinstance(piece, bytes)]:
            remedy = "if it gives text, pass lambda ids: tokeniser.decode(ids).encode()"
            raise input_error("decode must turn tokens into bytes", type(wrong[0]).__name__, remedy)
        return pieces


def stream(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_tokens: int | None,
    sampling: SamplingConfig | None = None,
    stop_tokens: Collection[int] = (),
    start_token: int | None = None,
    row_numbers: Sequence[int] | None = None,
) -> TokenStream:
    """The tokens by which a model continues one prompt, or several of different lengths.

    `max_tokens` None makes an endless stream. A stop token ends its row and is the row's last
    token. `start_token` is put before every prompt, which may then be empty. `row_numbers` replace
    0, 1, …: a row's random draws depend on its number, so that one row of a batch can be repeated
    alone. On a GPU the model is accelerated (`engine.accelerate`), in place.
    """
    if model.output_size > model.vocab_size:
        rule = "a stream feeds outputs back as inputs, so output_size must be at most vocab_size"
        received = f"{model.output_size} and {model.vocab_size}"
        raise input_error(rule, received, "build the model with one vocabulary")
    rows = as_rows(prompts, vocab_size=model.vocab_size, start_token=start_token)
    numbers = tuple(range(len(rows)) if row_numbers is None else row_numbers)
    for number in numbers:
        check_integer("row_number", number, minimum=0, example=0)
    if len({*numbers}) != len(rows):
        rule = f"row_numbers must be one different number for each of the {len(rows)} prompts"
        raise input_error(rule, list(numbers), "leave them out to count from 0")
    accelerate(model)
    with inference(model):
        # The last token of each prompt is fed like any token that is made.
        state = prefill(model, [row[:-1] for row in rows])
    return TokenStream(
        stepper=Stepper(model, state),
        rows=numbers,
        recent=[row.tolist() for row in rows],
        sampling=SamplingConfig() if sampling is None else sampling,
        max_tokens=max_tokens,
        stop_tokens=tuple(stop_tokens),
    )


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
) -> TokenStream:
    """The text by which a model continues one prompt or several; see `stream` for the options.

    Every token comes with the text that can be shown now. Characters appear whole. Stop strings and
    stop tokens do not appear. What may start a stop string is held back until it is decided.
    """
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
    tokens.decode, tokens.stop_strings = decode, stops
    return tokens


def show(text: bytes, stops: Sequence[str], *, is_end: bool = False) -> tuple[str, bytes, bool]:
    """What can be shown of these bytes, what is held back, and whether a stop string ended them.

    The stop string that is complete first ends the text; of several that end at the same byte, the
    longest. So the result does not depend on how the bytes are split into tokens. Bytes that are
    not UTF-8, which a model can make, appear as U+FFFD.

    >>> show(b"the E", ["END"]), show(b"East E", ["END"]), show(b"ENDED", ["END"])
    (('the ', b'E', False), ('East ', b'E', False), ('', b'', True))
    """
    # Most tokens, and quickly.
    if not stops:
        shown, num_used = codecs.utf_8_decode(text, "replace", is_end)
        return shown, text[num_used:], False
    encoded = [stop.encode() for stop in stops]
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in encoded if stop in text]
    if found:
        # Pairs of end and start: the earliest end wins, then the earliest start.
        return text[: min(found)[1]].decode(errors="replace"), b"", True
    starts = [size for stop in encoded for size in range(len(stop)) if text.endswith(stop[:size])]
    decided = text[: len(text) - max(starts)] if starts and not is_end else text
    shown, num_used = codecs.utf_8_decode(decided, "replace", is_end)
    return shown, text[num_used:], False


def as_stop_strings(strings: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings, given as one string or several."""
    found = (strings,) if isinstance(strings, str) else tuple(strings)
    if not all(isinstance(one, str) and one for one in found):
        rule = "a stop string must be a string of at least one character"
        raise input_error(rule, list(found), "use for example '\\n'")
    return found


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
        self.recent: list[int] = []
        """The latest ones that it has read."""
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
            recent=[[*self.recent, *self.unread]],
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
            self.recent = tokens.recent[0][:-1]
            # A reply that was cut off gets the separator it lacks.
            if "stop_string" not in tokens.finished.values():
                self.read("")
