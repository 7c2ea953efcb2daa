"""Continuous batching: answers come and go as rows of one state, which one stepper takes on.

Prompts are read in pieces, one after another, each by itself; between two pieces every other row
gets a token. A row joins where it is at the same place of the timetable's period as the others: at
once in Ladders and other token-wise models, else after at most a chunk, its first token being made
by then. What a row gets depends on its own tokens and draws alone, never on the rows beside it.
"""

import logging
import math
import time
from asyncio import Queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.generation import NewToken, SamplingConfig, TokenStream
from staircase_attention.generation.prompts import period_of
from staircase_attention.generation.sampling import choose_by, uniform
from staircase_attention.generation.stepper import Model, ModelState, Stepper, accelerate, inference
from staircase_attention.generation.stepper import feed as run_model
from staircase_attention.models import State
from staircase_attention.serve.protocol import RefusedError

# Tokens of prompts that are read between two tokens of every other row.
PIECE = 128
# Seconds for which rounds are made before their tokens are sent.
SLICE = 0.005

# What happens to the answer of an index: a token, or why there will be none.
News = tuple[int, NewToken | Exception]


@dataclass(kw_only=True, eq=False, slots=True)
class Answer:
    """One answer in the making."""

    index: int
    """Its number in its request."""
    tokens: TokenStream
    """A stream of one row. While that row is in the batch, so is its state."""
    wants_state: bool
    """Whether the state is needed at the end."""
    news: "Queue[News]"
    """Of its request; only the thread of the event loop uses it."""
    is_gone: bool = False
    """Whether nobody waits for it any more."""

    @property
    def is_over(self) -> bool:
        """Whether no further token is wanted."""
        return self.is_gone or bool(self.tokens.finished)


@dataclass(kw_only=True, eq=False, slots=True)
class Reading:
    """A prompt that is being read, for one answer or for several."""

    unread: list[int]
    state: ModelState
    answers: list[Answer]


class Batch:
    """All answers in the making. One thread calls `work`; others may add to `readings`."""

    def __init__(self, model: Model) -> None:
        accelerate(model)
        self.model = model
        self.period = period_of(model)
        self.readings: deque[Reading] = deque()
        self.ready: list[Answer] = []
        """Answers with a first token, which wait for their place of the period."""
        self.rows: list[Answer] = []
        """The rows of the stepper."""
        self.stepper: Stepper | None = None
        self.phase = 0
        """The place of a period at which the stepper is."""
        self.deadline = math.inf
        """When, by `time.monotonic`, all answers are cut short."""
        self.news: list[tuple[Answer, NewToken | Exception]] = []

    @property
    def num_answers(self) -> int:
        """Answers in the making."""
        reading = sum(len(one.answers) for one in tuple(self.readings))
        return reading + len(self.ready) + len(self.rows)

    def work(self) -> list[tuple[Answer, NewToken | Exception]]:
        """Make rounds for a few milliseconds, one at least; gives the tokens that were made."""
        end = time.monotonic() + SLICE
        while self.num_answers:
            try:
                with inference(self.model):
                    self._round()
            # A fault in one round must not be the end of all later ones.
            except Exception as error:
                logging.getLogger(__name__).exception("a round failed")
                self._end_all(error)
            if time.monotonic() > end:
                break
        news, self.news = self.news, []
        return news

    def _round(self) -> None:
        """A piece of the prompts, then one token for every row."""
        if time.monotonic() > self.deadline:
            self._end_all(None)
        self._read()
        self._admit()
        self._let_go()
        if self.stepper is not None:
            pending = torch.cat([answer.tokens.pending for answer in self.rows])
            with self.stepper.step(pending) as logits:
                self._extend(self.rows, logits)
            self.phase = (self.phase + 1) % self.period
            self._let_go()

    def _read(self) -> None:
        """Read on in prompts; an answer gets its first token with its prompt's last."""
        budget = PIECE
        while self.readings and budget > 0:
            # Taken by turns, so that a short prompt does not wait for a long one.
            one = self.readings[0]
            one.answers = [answer for answer in one.answers if not answer.is_gone]
            piece, one.unread = one.unread[:PIECE], one.unread[PIECE:]
            budget -= len(piece)
            try:
                if one.answers:
                    logits, one.state = run_model(self.model, torch.tensor([piece]), one.state)
            # Only a state from elsewhere can be wrong here, and only its own answers suffer.
            except Exception as error:
                self._fail(one.answers, error)
                one.answers = []
            if one.answers and one.unread:
                self.readings.rotate(-1)
                continue
            self.readings.popleft()
            for answer in one.answers:
                answer.tokens.stepper = Stepper(self.model, one.state)
            if one.answers:
                self._extend(one.answers, logits[:, -1].expand(len(one.answers), -1))
            self.ready += [answer for answer in one.answers if not answer.is_over]

    def _admit(self) -> None:
        """Let answers join that are at the same place of a period as the rows."""
        if self.ready and self.stepper is None:
            self.phase = self._phase(self.ready[0])
        joining = [one for one in self.ready if not one.is_over and self._phase(one) == self.phase]
        self.ready = [one for one in self.ready if not one.is_over and one not in joining]
        together: Stepper | None = None
        for answer in joining:
            if together is None:
                together = Stepper(self.model, answer.tokens.stepper.state, grows=True)
            else:
                together.add(answer.tokens.stepper.state)
        if together is not None and self.stepper is not None:
            self.stepper.add(together.state)
        elif together is not None:
            self.stepper = together
        for answer in joining:
            assert self.stepper is not None
            # Its own state would be held in vain.
            answer.tokens.stepper = self.stepper
        self.rows += joining

    def _phase(self, answer: Answer) -> int:
        state = answer.tokens.stepper.state
        return state.streams[0].position % self.period if isinstance(state, State) else 0

    def _extend(self, answers: Sequence[Answer], logits: Float[Tensor, "rows vocab"]) -> None:
        """Give every answer its next token."""
        groups: dict[SamplingConfig, list[int]] = {}
        for place, answer in enumerate(answers):
            groups.setdefault(replace(answer.tokens.sampling, seed=0), []).append(place)
        for config, places in groups.items():
            streams = [answers[place].tokens for place in places]
            draws = [
                uniform(seed=one.sampling.seed, row=one.rows[0], count=one.num_made)
                for one in streams
            ]
            recent = [one.recent[0] for one in streams]
            rows = [one.rows[0] for one in streams]
            try:
                found = choose_by(draws, config, logits[places], recent, rows=rows)
            except ValueError as error:
                # Logits that are not finite, of a state from elsewhere: whose are they?
                if len(places) > 1:
                    for place in places:
                        self._extend([answers[place]], logits[place : place + 1])
                else:
                    self._fail([answers[places[0]]], error)
                continue
            for place, token, logprob in zip(places, *(one.split(1) for one in found), strict=True):
                stream = answers[place].tokens
                assert stream.decode is not None
                stream.add(token, logprob, [stream.decode(token.tolist())])
                self.news.append((answers[place], stream.waiting.popleft()))

    def _let_go(self) -> None:
        """Drop the rows of answers that are over, with their states if these are wanted."""
        staying = [place for place, answer in enumerate(self.rows) if not answer.is_over]
        if len(staying) == len(self.rows):
            return
        assert self.stepper is not None
        for place, answer in enumerate(self.rows):
            if answer.is_over and answer.wants_state and not answer.is_gone:
                state = self.stepper.state.select([place])
                answer.tokens.stepper = Stepper(self.model, state)
        self.rows = [self.rows[place] for place in staying]
        if staying:
            self.stepper.keep(staying)
        else:
            self.stepper = None

    def _end_all(self, error: Exception | None) -> None:
        """End every answer: by an error, or cut short with its state as it is."""
        for answer in (*self.ready, *self.rows):
            if error is None and not answer.is_over:
                row = answer.tokens.rows[0]
                answer.tokens.finished[row] = "max_tokens"
                last = int(answer.tokens.pending[0])
                new = NewToken(row=row, token=last, logprob=0.0, finish="max_tokens")
                self.news.append((answer, new))
        unread: list[Answer] = []
        while self.readings:
            unread += self.readings.popleft().answers
        if error is None:
            self._let_go()
            self._fail(
                unread,
                RefusedError(503, "a server must run to answer", "one that stops", "try again"),
            )
        else:
            self._fail([*unread, *self.ready, *self.rows], error)
            self.rows, self.stepper = [], None
        self.ready = []

    def _fail(self, answers: Sequence[Answer], error: Exception) -> None:
        for answer in answers:
            answer.is_gone = True
            self.news.append((answer, error))
