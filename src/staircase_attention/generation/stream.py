"""Token streams: a model's continuation of prompts, one token per row and round."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.generation.prompts import (
    Prompt,
    as_integer,
    as_row_numbers,
    as_rows,
    as_stop_tokens,
    prefill,
)
from staircase_attention.generation.sampling import Choice, Sampler, SamplingConfig
from staircase_attention.generation.stepper import Model, ModelState, Stepper, accelerate, inference

# Why a row ended.
Finish = Literal["max_tokens", "stop_token", "stop_string"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that has just been made."""

    row: int
    token: int
    logprob: float
    """Its log-probability under the model itself, before penalty and filters."""
    finish: Finish | None = None
    """Why the row ended with this token; None if it continues."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What stays the same during a stream."""

    sampling: SamplingConfig
    max_tokens: int | None
    """Tokens per row, at most; None for an endless stream."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a row."""

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingConfig):
            raise input_error(
                "sampling must be a SamplingConfig",
                repr(self.sampling),
                "build one, as SamplingConfig(temperature=0.8)",
            )
        if self.max_tokens is not None:
            number = as_integer("max_tokens", self.max_tokens, minimum=1, example=100)
            # A number of numpy becomes an int, which can be saved as JSON.
            object.__setattr__(self, "max_tokens", number)


@dataclass(kw_only=True, slots=True)
class GenerationStatus:
    """What changes during a stream. With the plan and the model it is the whole stream."""

    rows: tuple[int, ...]
    """The numbers of the rows in the state, in its order."""
    state: ModelState
    """The model's state before the pending tokens."""
    pending: Int[Tensor, " rows"]
    """Each row's latest token, which the model has not seen yet."""
    recent: Int[Tensor, "rows window"]
    """The tokens that the repetition penalty applies to."""
    num_made: int = 0
    """Tokens made for each unfinished row."""
    waiting: deque[NewToken] = field(default_factory=deque)
    """Tokens that have been made and not been asked for yet."""
    finished: dict[int, Finish] = field(default_factory=dict)
    """The rows that have ended, and why."""


class TokenStream(Iterator[NewToken]):
    """The tokens of one row or several, made when they are asked for.

    Iterate over it, or call `next_round` for one token of every unfinished row, or `take`. Rows
    that have ended are no longer computed. Memory does not grow with the number of tokens, apart
    from the model's own state.
    """

    def __init__(self, model: Model, plan: Plan, status: GenerationStatus) -> None:
        self.model = model
        self.plan = plan
        self._status = status
        self._sampler = Sampler(plan.sampling)
        self._stepper = Stepper(model, status.state)

    @property
    def status(self) -> GenerationStatus:
        """What has changed since the stream began, its state up to date."""
        self._status.state = self._stepper.state
        return self._status

    @property
    def finished(self) -> Mapping[int, Finish]:
        """The rows that have ended, and why."""
        return self._status.finished

    @property
    def state(self) -> ModelState:
        """The model's state before each row's latest token: a copy, also usable in training."""
        # The stream's own tensors are made in inference mode; a selection of them is not.
        return self.status.state.select(range(len(self.status.rows)))

    def __next__(self) -> NewToken:
        waiting = self._status.waiting
        if not waiting:
            self._make()
        if not waiting:
            raise StopIteration
        return waiting.popleft()

    def next_round(self) -> list[NewToken]:
        """The tokens still waiting, or else one of every unfinished row; none after the end."""
        waiting = self._status.waiting
        if not waiting:
            self._make()
        made = list(waiting)
        waiting.clear()
        return made

    def take(self, max_tokens: int) -> Iterator[NewToken]:
        """The tokens still waiting, then up to this many more per row; the stream can continue."""
        status = self._status
        last = status.num_made + as_integer("max_tokens", max_tokens, minimum=1, example=100)
        while status.waiting or status.num_made < last:
            token = next(self, None)
            if token is None:
                return
            yield token

    def finish(self, row: int, why: Finish) -> None:
        """End a row after the tokens that have been made for it."""
        if row not in self._status.rows:
            raise input_error(
                "only an unfinished row can be ended", row, f"use one of {list(self._status.rows)}"
            )
        self._status.finished[int(row)] = why

    def _make(self) -> None:
        """Make one token for every unfinished row."""
        status = self._status
        unfinished = [place for place, row in enumerate(status.rows) if row not in self.finished]
        if not unfinished:
            return
        if len(unfinished) < len(status.rows):
            self._stepper.keep(unfinished)
            status.rows = tuple(status.rows[place] for place in unfinished)
            status.pending, status.recent = status.pending[unfinished], status.recent[unfinished]
        # A round happens whole or not at all: if sampling fails, the step is undone.
        with inference(self.model), self._stepper.step(status.pending) as logits:
            choice = self._sampler.choose(
                logits, status.recent, rows=status.rows, count=status.num_made
            )
            recent = self._sampler.remember(status.recent, choice.tokens)
        # Only now: an exception above leaves the status as it was.
        status.pending, status.recent = choice.tokens, recent
        status.num_made += 1
        status.waiting.extend(self._announce(choice))

    def _announce(self, choice: Choice) -> Iterator[NewToken]:
        made = zip(self._status.rows, choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        for row, token, logprob in made:
            why: Finish | None = None
            # A stop token that is also the last one allowed counts as a stop.
            if token in self.plan.stop_tokens:
                why = "stop_token"
            elif self._status.num_made == self.plan.max_tokens:
                why = "max_tokens"
            if why is not None:
                self.finish(row, why)
            yield NewToken(row=row, token=token, logprob=logprob, finish=why)


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
        raise input_error(
            "a stream feeds outputs back as inputs, so output_size must be at most vocab_size",
            f"{model.output_size} and {model.vocab_size}",
            "build the model with one vocabulary",
        )
    plan = Plan(
        sampling=SamplingConfig() if sampling is None else sampling,
        max_tokens=max_tokens,
        stop_tokens=as_stop_tokens(stop_tokens, output_size=model.output_size),
    )
    rows = as_rows(prompts, vocab_size=model.vocab_size, start_token=start_token)
    numbers = as_row_numbers(row_numbers, len(rows))
    accelerate(model)
    with inference(model):
        # The last token of each prompt is fed like any token that is made.
        state = prefill(model, [row[:-1] for row in rows])
    status = GenerationStatus(
        rows=numbers,
        state=state,
        pending=torch.stack([row[-1] for row in rows]),
        recent=Sampler(plan.sampling).begin([row.tolist() for row in rows]),
    )
    return TokenStream(model, plan, status)
