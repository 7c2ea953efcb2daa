"""Continuous batching: answers come and go as rows of one state, which one stepper takes on.

Prompts are read in pieces, each by itself; between two pieces every row gets a token. A row joins
where it is at the same place of the timetable's period as the others: at once in Ladders and other
token-wise models, else after at most a chunk, its first token being made by then. What a row gets
depends on its own tokens and draws alone, never on the rows beside it.

On a GPU the rows' next step is launched before their latest tokens are known, so that the device
does not wait for the host. If rows come or go after all, it is taken back.
"""

import logging
import math
import time
from asyncio import Queue
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.generation import Finish, SamplingConfig, TokenStream, sampling
from staircase_attention.generation.prompts import period_of
from staircase_attention.generation.stepper import Model, Stepper, accelerate, feed, inference
from staircase_attention.generation.stream import Decode
from staircase_attention.models import State
from staircase_attention.serve.protocol import RefusedError

# Tokens of prompts that are read between two tokens of every other row.
PIECE = 128
# Seconds per row for which rounds are made before tokens are sent: ten times as long as that takes.
SLICE = 0.0025
shared: Callable[[SamplingConfig], SamplingConfig] = lru_cache(maxsize=256)(lambda config: config)
# The text that each new token of an answer brought, and why it ended or failed.
News = list[tuple[str, Finish | Exception | None]]


@dataclass(kw_only=True, eq=False, slots=True)
class Answer:
    """One answer in the making."""

    index: int
    """Its number in its request."""
    tokens: TokenStream
    """A stream of one row. While that row is in the batch, so is its state."""
    unread: list[int]
    """What is left of its prompt."""
    wants_state: bool
    """Whether the state is needed at the end."""
    news: "Queue[tuple[int, News]]"
    """One for all answers of a request."""
    sampling: SamplingConfig
    """That of its tokens without a seed, `shared`: equal ones are one object, quickly compared."""
    is_gone: bool = False
    """Whether nobody waits for it any more."""

    @property
    def is_over(self) -> bool:
        """Whether no further token is wanted."""
        return self.is_gone or bool(self.tokens.finished)


class Batch:
    """All answers in the making. One thread calls `work`; others may add to `reading`."""

    def __init__(self, model: Model, decode: Decode) -> None:
        self.launches_early = accelerate(model)
        self.model, self.period = model.eval(), period_of(model)
        self.pieces = [decode([token]) for token in range(model.output_size)]
        self.reading: deque[Answer] = deque()
        """Answers whose prompts are being read."""
        self.ready: list[Answer] = []
        """Answers with a first token, which wait for their place of the period."""
        self.rows: list[Answer] = []
        """The rows of the stepper."""
        self.stepper: Stepper | None = None
        self.phase = 0
        """The place of the period at which the stepper is."""
        self.deadline = math.inf
        """When, by `time.monotonic`, all answers are cut short."""
        self._launched: Tensor | None = None
        """The logits of a step that has begun with the latest token of every row."""
        self._news: defaultdict[Answer, News] = defaultdict(list)
        self._is_urgent = False
        """Whether the news have a first token or the end of an answer."""

    @property
    def num_answers(self) -> int:
        """Answers in the making; while one moves on it may count twice, but never not at all."""
        return len(self.reading) + len(self.ready) + len(self.rows)

    def work(self, send: Callable[[dict[Answer, News]], object]) -> None:
        """Make rounds until no answer is left, and send what was made: first and last at once."""
        end = time.monotonic()
        while self.num_answers:
            try:
                with inference(self.model):
                    self._round()
            # A fault in one round must not be the end of all later ones.
            except Exception as error:
                logging.getLogger(__name__).exception("a round failed")
                self._fail([*self.ready, *self.rows], error)
                self.ready, self.rows, self.stepper, self._launched = [], [], None, None
            if self._is_urgent or not self.num_answers or time.monotonic() > end:
                send(self._news)
                self._news, self._is_urgent = defaultdict(list), False
                end = time.monotonic() + SLICE * self.num_answers

    def _round(self) -> None:
        """A piece of the prompts, then one token for every row."""
        if time.monotonic() > self.deadline:
            self._cut()
        self._let_go()
        if self._launched is None:
            self._read()
            self._admit()
        if self.stepper is None:
            return
        logits, self._launched = self._launched, None
        if logits is None:
            pending = [answer.tokens.recent[0][-1:] for answer in self.rows]
            logits = self.stepper.ahead(torch.tensor(pending))
        chosen = self._choose(self.rows, logits[:, -1])
        read = sampling.reader_of(chosen)
        self.stepper.settle(1)
        # Nobody waits to join, and nobody leaves but by a stop token or string.
        if (
            self.launches_early
            and not (self.reading or self.ready)
            and not any(one.tokens.num_made + 1 == one.tokens.max_tokens for one in self.rows)
        ):
            self._launched = self.stepper.ahead(chosen[:, None])
        for answer, token in zip(self.rows, read(), strict=True):
            self._add(answer, token)
        self.phase = (self.phase + 1) % self.period
        self._let_go()

    def _read(self) -> None:
        """Read on in prompts; an answer gets its first token with its prompt's last."""
        budget = PIECE
        while self.reading and budget > 0:
            one = self.reading[0]
            piece, one.unread = one.unread[:PIECE], one.unread[PIECE:]
            budget -= len(piece)
            try:
                logits, state = feed(self.model, torch.tensor([piece]), one.tokens.stepper.state)
                one.tokens.stepper = Stepper(self.model, state)
                if not one.unread:
                    self._add(one, *sampling.reader_of(self._choose([one], logits[:, -1]))())
                    self._is_urgent = True
            # Only a session from elsewhere can be wrong here, and only its own answer suffers.
            except Exception as error:
                self._fail([one], error)
            # By turns, so that a short prompt does not wait for a long one.
            self.reading.rotate(-1)
            if not one.unread or one.is_gone:
                self.ready.append(one)
                self.reading.remove(one)

    def _admit(self) -> None:
        """Let answers join that are at the same place of a period as the rows."""
        self.ready = [answer for answer in self.ready if not answer.is_over]
        if self.ready and self.stepper is None:
            self.phase = self._phase(self.ready[0])
        joining = [answer for answer in self.ready if self._phase(answer) == self.phase]
        if not joining:
            return
        states = [answer.tokens.stepper.state for answer in joining]
        if self.stepper is None:
            self.stepper = Stepper(self.model, states.pop(0), grows=True)
        if states:
            self.stepper.add(states)
        self.rows += joining
        self.ready = [answer for answer in self.ready if answer not in joining]
        for answer in joining:
            # Its own state would be held in vain.
            answer.tokens.stepper = self.stepper

    def _phase(self, answer: Answer) -> int:
        state = answer.tokens.stepper.state
        return state.streams[0].position % self.period if isinstance(state, State) else 0

    def _choose(
        self, answers: Sequence[Answer], logits: Float[Tensor, "rows vocab"]
    ) -> Int[Tensor, " rows"]:
        """The next token of every answer, on the device."""
        made, uniform = [answer.tokens for answer in answers], sampling.uniform
        recent = [one.recent[0] for one in made]
        draws = [uniform(seed=a.sampling.seed, row=a.rows[0], count=a.num_made) for a in made]
        groups: dict[int, list[int]] = {}
        for place, answer in enumerate(answers):
            groups.setdefault(id(answer.sampling), []).append(place)
        if len(groups) == 1:
            return sampling.choose_by(draws, answers[0].sampling, logits, recent)
        found = torch.empty(len(answers), dtype=torch.int64, device=logits.device)
        for places in groups.values():
            own, seen = [draws[place] for place in places], [recent[place] for place in places]
            index = sampling.at_once(places, found)
            found[index] = sampling.choose_by(own, answers[places[0]].sampling, logits[index], seen)
        return found

    def _add(self, answer: Answer, token: int) -> None:
        """As `TokenStream.add`."""
        tokens = answer.tokens
        tokens.num_made += 1
        tokens.note([token])
        text, why = tokens.shown(tokens.rows[0], token, self.pieces[token])
        self._news[answer].append((text, why))
        if why is not None:
            self._is_urgent = True

    def _let_go(self) -> None:
        """Drop the rows of answers that are over, after taking their states where wanted."""
        staying = [place for place, answer in enumerate(self.rows) if not answer.is_over]
        if self.stepper is None or len(staying) == len(self.rows):
            return
        if self._launched is not None:
            self.stepper.settle(0)
            self._launched = None
        for place, answer in enumerate(self.rows):
            if answer.wants_state and place not in staying and not answer.is_gone:
                answer.tokens.stepper = Stepper(self.model, self.stepper.state.select([place]))
        self.rows = [self.rows[place] for place in staying]
        if staying:
            self.stepper.keep(staying)
        else:
            self.stepper = None

    def _cut(self) -> None:
        """End every answer with its next token; those without one fail."""
        for answer in (*self.ready, *self.rows):
            answer.tokens.max_tokens = answer.tokens.num_made + 1
        unread = [self.reading.popleft() for _ in range(len(self.reading))]
        rule = "a request must come before the server stops"
        self._fail(unread, RefusedError(503, rule, "one after that", "try again"))

    def _fail(self, answers: Sequence[Answer], error: Exception) -> None:
        for answer in answers:
            answer.is_gone = True
            self._news[answer].append(("", error))
