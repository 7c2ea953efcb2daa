"""Streams of tokens that a model makes, one a row at a time."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.drive import Carried, Model, answering
from staircase_attention.generation.prefill import prefill
from staircase_attention.generation.prompts import (
    Prompt,
    as_max_tokens,
    as_row_numbers,
    as_rows,
    as_stop_tokens,
    check_feeds_itself,
)
from staircase_attention.generation.sampler import Choice, Sampler
from staircase_attention.generation.stepper import Stepper

Finish = Literal["max_tokens", "stop_token", "stop_string"]
"""Why a row ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that has just been made."""

    row: int
    token: int
    logprob: float
    """Natural logarithm of the probability that the model itself gave this token."""
    finish: Finish | None = None
    """Why it is the row's last; None: the row goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What does not change while a stream goes on."""

    sampling: SamplingConfig
    max_tokens: int | None
    """Tokens that are made for each row, at most; None: without end."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a row."""

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingConfig):
            raise TypeError(
                f"sampling must be a SamplingConfig, got {self.sampling!r}; "
                "build one, as SamplingConfig(temperature=0.8)"
            )
        if self.max_tokens is not None:
            remedy = "give a number, as 100, or None for a stream without end"
            object.__setattr__(self, "max_tokens", as_max_tokens(self.max_tokens, remedy=remedy))


@dataclass(kw_only=True, slots=True)
class Progress:
    """All that changes while a stream goes on: with the plan and the model, all there is to it."""

    rows: tuple[int, ...]
    """Numbers of the rows that are in the state, in its order."""
    state: Carried
    """Where the model stands, before the pending tokens."""
    pending: Int[Tensor, " rows"]
    """Each row's latest token, which the model has not seen yet."""
    recent: Int[Tensor, "rows window"]
    """What the repetition penalty looks at."""
    num_made: int = 0
    """Tokens that have been made for each row that goes on."""
    waiting: deque[NewToken] = field(default_factory=deque)
    """Tokens that have been made and not been asked for yet."""
    finished: dict[int, Finish] = field(default_factory=dict)
    """The rows that have ended, and why."""

    def select(self, places: Sequence[int]) -> None:
        """Keep these rows only, by their places; whoever holds the state does so with it."""
        index = torch.tensor(places)
        self.rows = tuple(self.rows[place] for place in places)
        self.pending = self.pending[index]
        self.recent = self.recent[index]


class TokenStream(Iterator[NewToken]):
    """Tokens of one or several rows, made as they are asked for.

    Iterate over it, or call `next_round` for one token of every row that goes on, `take` for
    several. Rows that have ended drop out. Nothing grows with the number of tokens made, save what
    a model's own state does.
    """

    def __init__(self, model: Model, plan: Plan, progress: Progress) -> None:
        self.model = model
        self.plan = plan
        self._progress = progress
        self._sampler = Sampler(plan.sampling)
        self._stepper = Stepper(model, progress.state)

    @property
    def progress(self) -> Progress:
        """All that has changed since the stream began, its state brought up to date."""
        self._progress.state = self._stepper.state
        return self._progress

    @property
    def finished(self) -> Mapping[int, Finish]:
        """The rows that have ended, and why."""
        return self._progress.finished

    @property
    def state(self) -> Carried:
        """Where the model stands, before each row's latest token: a copy, fit for gradients too."""
        # The stream's own tensors are made in inference mode; what is selected from them is not.
        return self.progress.state.select(range(len(self.progress.rows)))

    def __next__(self) -> NewToken:
        waiting = self._progress.waiting
        if not waiting:
            self._make()
        if not waiting:
            raise StopIteration
        return waiting.popleft()

    def next_round(self) -> list[NewToken]:
        """One token of every row, or those of them still waiting; none after the end."""
        waiting = self._progress.waiting
        if not waiting:
            self._make()
        made = list(waiting)
        waiting.clear()
        return made

    def take(self, max_tokens: int) -> Iterator[NewToken]:
        """Tokens still waiting, then so many more of each row, at most; the stream can go on."""
        progress = self._progress
        last = progress.num_made + as_max_tokens(max_tokens, remedy="give a number, as 100")
        while progress.waiting or progress.num_made < last:
            token = next(self, None)
            if token is None:
                return
            yield token

    def finish(self, row: int, why: Finish) -> None:
        """Let a row end after the tokens that have been made for it."""
        if row not in self._progress.rows:
            raise ValueError(
                f"only a row that goes on can be ended, got {row}; "
                f"one of {list(self._progress.rows)} can"
            )
        self._progress.finished[int(row)] = why

    def _make(self) -> None:
        """Make one token for every row that goes on."""
        progress = self._progress
        going = [place for place, row in enumerate(progress.rows) if row not in self.finished]
        if not going:
            return
        if len(going) < len(progress.rows):
            progress.select(going)
            self._stepper.keep(going)
        # A round happens whole or not at all: where choosing fails, no token was taken in.
        with answering(self.model), self._stepper.step(progress.pending) as logits:
            choice = self._sampler.choose(
                logits, progress.recent, rows=progress.rows, count=progress.num_made
            )
            recent = self._sampler.remember(progress.recent, choice.tokens)
        progress.pending, progress.recent = choice.tokens, recent
        progress.num_made += 1
        progress.waiting.extend(self._announce(choice))

    def _announce(self, choice: Choice) -> Iterator[NewToken]:
        made = zip(
            self._progress.rows, choice.tokens.tolist(), choice.logprobs.tolist(), strict=True
        )
        for row, token, logprob in made:
            why = self._why_finished(token)
            if why is not None:
                self.finish(row, why)
            yield NewToken(row=row, token=token, logprob=logprob, finish=why)

    def _why_finished(self, token: int) -> Finish | None:
        if token in self.plan.stop_tokens:
            return "stop_token"
        return "max_tokens" if self._progress.num_made == self.plan.max_tokens else None


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
    """The tokens by which a model continues a prompt, or several of different lengths.

    `max_tokens` None makes a stream without end. A stop token ends its row, and is the last that
    the row gives. `start_token` is put before every prompt, which may then be empty.
    `row_numbers` name the rows where they are not to be 0, 1, …; a row's draws depend on its
    number, so that one row of a batch can be made again alone.
    """
    check_feeds_itself(model)
    plan = Plan(
        sampling=SamplingConfig() if sampling is None else sampling,
        max_tokens=max_tokens,
        stop_tokens=as_stop_tokens(stop_tokens, output_size=model.output_size),
    )
    rows = as_rows(prompts, vocab_size=model.vocab_size, start_token=start_token)
    numbers = as_row_numbers(row_numbers, len(rows))
    return TokenStream(model, plan, begin(model, plan, rows, numbers))


def begin(model: Model, plan: Plan, rows: Sequence[Tensor], numbers: Sequence[int]) -> Progress:
    """Take all of the prompts in but their last tokens, which are fed as any token that is made."""
    with answering(model):
        state = prefill(model, [row[:-1] for row in rows])
    return Progress(
        rows=tuple(numbers),
        state=state,
        pending=torch.stack([row[-1] for row in rows]),
        recent=Sampler(plan.sampling).begin([row.tolist() for row in rows]),
    )
