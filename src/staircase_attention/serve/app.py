"""The endpoints, and what guards them.

The event loop talks to clients; one thread makes tokens (`Batch.work`). The loop hands prompts
over, the thread returns tokens, and nothing else is shared.
"""

import asyncio
import hmac
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from staircase_attention.checks import InputError, check_integer, check_number, input_error
from staircase_attention.files import parse_json
from staircase_attention.generation import Finish, TokenStream
from staircase_attention.generation.prompts import as_rows
from staircase_attention.generation.stepper import Stepper
from staircase_attention.serve.batching import Answer, Batch, News, Reading, StoppedError
from staircase_attention.serve.protocol import Kind, Reply, Wanted, parse, problem, usage
from staircase_attention.serve.sessions import Sessions, UnknownSessionError, checked_name, describe
from staircase_attention.training import LanguageModel

MINUTE = 60.0
# Clients whose rates are known before those are forgotten that have been silent for a minute.
MOST_CLIENTS = 10_000
# Seconds to end connections in, after the last answer has ended.
LEEWAY = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a server takes on."""

    num_streams: int = 64
    """Answers in the making."""
    rate: float | None = None
    """Requests per minute of each key or, where there is no key, each address."""
    num_body_bytes: int = 1 << 20
    prompt_tokens: int = 100_000
    max_tokens: int = 4096
    num_sessions: int = 1000

    def __post_init__(self) -> None:
        for name in ("num_streams", "num_body_bytes", "prompt_tokens", "max_tokens"):
            check_integer(name, getattr(self, name), minimum=1, example=64)
        check_integer("num_sessions", self.num_sessions, minimum=0, example=1000)
        if self.rate is not None:
            check_number("rate", self.rate, minimum=1, example=60)


class RefusedError(Exception):
    """A request that is refused for another reason than its content."""

    def __init__(self, status: int, rule: str, received: object, remedy: str) -> None:
        super().__init__(str(input_error(rule, received, remedy)))
        self.status = status


ERRORS = (InputError, RefusedError, StoppedError, HTTPException, Exception)


class Metrics:
    """What `/metrics` shows."""

    def __init__(self, batch: Batch, sessions: Sessions) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "staircase_requests", "Requests.", ["endpoint", "status"], registry=registry
        )
        self.tokens = Counter(
            "staircase_tokens", "Tokens read and made.", ["kind"], registry=registry
        )
        self.first = Histogram(
            "staircase_first_token_seconds", "From request to first token.", registry=registry
        )
        streams = Gauge("staircase_streams", "Answers in the making.", registry=registry)
        streams.set_function(lambda: batch.num_answers)
        kept = Gauge("staircase_sessions", "Sessions in memory.", registry=registry)
        kept.set_function(lambda: len(sessions.by_name))


class Service:
    """A language model behind endpoints: `app` is an ASGI application."""

    def __init__(
        self,
        language: LanguageModel,
        *,
        name: str,
        limits: Limits | None = None,
        api_keys: Sequence[str] = (),
        separator: str = "\n\n\n",
        folder: Path | None = None,
    ) -> None:
        self.language, self.name, self.separator = language, name, separator
        self.limits = Limits() if limits is None else limits
        self.api_keys = [key.encode() for key in api_keys]
        self.batch = Batch(language.model)
        self.sessions = Sessions(most=self.limits.num_sessions, folder=folder)
        self.metrics = Metrics(self.batch, self.sessions)
        self.started = int(time.time())
        # Of each client, when its requests so far would have come at its rate.
        self.paid_until: dict[str, float] = {}
        routes: list[tuple[str, str, Callable[[Request], Any]]] = [
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.show_metrics),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/chat/completions", self.chat),
            ("GET", "/v1/sessions", self.list_sessions),
            ("GET", "/v1/sessions/{name}", self.show_session),
            ("DELETE", "/v1/sessions/{name}", self.delete_session),
            ("POST", "/v1/sessions/{name}/fork", self.fork_session),
        ]
        self.app = Starlette(
            routes=[Route(path, endpoint, methods=[how]) for how, path, endpoint in routes],
            middleware=[Middleware(Guard, service=self)],
            exception_handlers=dict.fromkeys(ERRORS, report),
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Load sessions; make tokens; save sessions."""
        await run_in_threadpool(self.sessions.load, self.language.model, self.language.decode)
        self.wake = asyncio.Event()
        # One thread: PyTorch's own threads belong to the one that calls it.
        with ThreadPoolExecutor(1) as thread:
            making = asyncio.create_task(self._make(thread))
            yield
            making.cancel()
            with suppress(asyncio.CancelledError):
                await making
        self.sessions.save()

    async def _make(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.batch.num_answers:
                for answer, new in await loop.run_in_executor(thread, self.batch.work):
                    answer.news.put_nowait((answer.index, new))

    async def health(self, _: Request) -> Response:
        """Whether the server answers."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, _: Request) -> Response:
        """Counters in Prometheus' format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, _: Request) -> Response:
        """The one model there is."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The model, by its name."""
        if (name := request.path_params["name"]) != self.name:
            raise RefusedError(404, f"the model is {self.name}", name, "use this name")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        own = {"created": self.started, "owned_by": "staircase-attention"}
        return {"id": self.name, "object": "model", **own}

    async def list_sessions(self, _: Request) -> Response:
        """All sessions."""
        found = [describe(*one) for one in self.sessions.by_name.items()]
        return JSONResponse({"object": "list", "data": found})

    async def show_session(self, request: Request) -> Response:
        """One session."""
        name = request.path_params["name"]
        return JSONResponse(describe(name, self.sessions.find(name)))

    async def delete_session(self, request: Request) -> Response:
        """Forget a session."""
        name = request.path_params["name"]
        self.sessions.find(name)
        self.sessions.delete(name)
        return JSONResponse({"id": name, "object": "session", "deleted": True})

    async def fork_session(self, request: Request) -> Response:
        """The same session under a second name: neither changes with the other."""
        body = await self._json(request)
        name = checked_name(body.get("id") if isinstance(body, dict) else body)
        session = self.sessions.find(request.path_params["name"])
        self.sessions.check_room(name)
        self.sessions.put(name, session.tokens)
        return JSONResponse(describe(name, self.sessions.find(name)), 201)

    async def completions(self, request: Request) -> Response:
        """OpenAI's completions."""
        return await self._answer("completions", request)

    async def chat(self, request: Request) -> Response:
        """OpenAI's chat completions."""
        return await self._answer("chat", request)

    async def _answer(self, kind: Kind, request: Request) -> Response:
        began = time.monotonic()
        wanted = parse(
            kind,
            await self._json(request),
            model=self.name,
            separator=self.separator,
            max_tokens=self.limits.max_tokens,
            max_choices=self.limits.num_streams,
        )
        if wanted.returns_state:
            self.sessions.check_room(wanted.save_as)
        news: asyncio.Queue[News] = asyncio.Queue()
        # To encode a long text takes a while.
        readings = await run_in_threadpool(self._readings, wanted, news)
        answers = [answer for one in readings for answer in one.answers]
        if self.batch.num_answers + len(answers) > self.limits.num_streams:
            rule = f"at most {self.limits.num_streams} answers are made at the same time"
            raise RefusedError(429, rule, "one more", "try again in a second")
        num_read = sum(len(one.unread) for one in readings)
        self.metrics.tokens.labels("read").inc(num_read)
        self.batch.readings.extend(readings)
        self.wake.set()
        reply = Reply(kind=kind, model=self.name, is_chunk=wanted.is_streamed)
        pieces = self._pieces(wanted, answers, news, began)
        if wanted.is_streamed:
            events = self._events(wanted, reply, answers, pieces, num_read)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(await self._whole(request, reply, answers, pieces, num_read))

    def _readings(self, wanted: Wanted, news: "asyncio.Queue[News]") -> list[Reading]:
        """The prompts as tokens, each with its answers."""
        model, end = self.language.model, self.language.tokeniser.end_symbol
        stop_tokens = () if end is None else (end,)
        # In training a document follows the end of another.
        past, before, state, num_made = "", list(stop_tokens), model.initial_state(1), 0
        recent = before
        if wanted.session is not None:
            tokens = self.sessions.find(wanted.session).tokens
            last = int(tokens.pending[0])
            # The model has not read the last token; a stop token is not part of the text.
            before, recent = [] if last in stop_tokens else [last], tokens.recent[0]
            state, num_made = tokens.stepper.state, tokens.num_made
            if wanted.kind == "chat" and "stop_string" not in tokens.finished.values():
                past = self.separator
        readings: list[Reading] = []
        for prompt in wanted.prompts:
            new = self.language.encode(past + prompt) if isinstance(prompt, str) else list(prompt)
            as_rows([[*before, *new]], vocab_size=model.vocab_size, start_token=None)
            if len(new) > self.limits.prompt_tokens:
                rule = f"a prompt must have at most {self.limits.prompt_tokens:,} tokens"
                raise input_error(rule, f"{len(new):,}", "send it in parts, with return_state")
            answers = [
                Answer(
                    index=len(readings) * wanted.num_choices + number,
                    tokens=TokenStream(
                        stepper=Stepper(model, state),
                        rows=(number,),
                        pending=torch.tensor([*before, *new][-1:]),
                        recent=[[*recent, *new]],
                        sampling=wanted.sampling,
                        max_tokens=num_made + wanted.max_tokens,
                        stop_tokens=stop_tokens,
                        decode=self.language.decode,
                        stop_strings=wanted.stop_strings,
                        num_made=num_made,
                    ),
                    wants_state=wanted.returns_state,
                    news=news,
                )
                for number in range(wanted.num_choices)
            ]
            readings.append(Reading(unread=[*before, *new], state=state, answers=answers))
        return readings

    async def _pieces(
        self,
        wanted: Wanted,
        answers: Sequence[Answer],
        news: "asyncio.Queue[News]",
        began: float,
    ) -> AsyncIterator[tuple[int, str, Finish | None, str | None]]:
        """Pieces of text as they are made: whose, why it is the last, the session it is kept as."""
        num_left = len(answers)
        try:
            while num_left:
                # Whatever has been made meanwhile goes together.
                found = [await news.get()]
                while not news.empty():
                    found.append(news.get_nowait())
                if began < math.inf:
                    self.metrics.first.observe(time.monotonic() - began)
                    began = math.inf
                self.metrics.tokens.labels("made").inc(len(found))
                texts: dict[int, tuple[str, Finish | None]] = {}
                for index, new in found:
                    if isinstance(new, Exception):
                        raise new
                    texts[index] = (texts.get(index, ("", None))[0] + new.text, new.finish)
                for index, (text, finish) in texts.items():
                    session = None
                    if finish is not None:
                        num_left -= 1
                        if wanted.returns_state:
                            session = self.sessions.put(wanted.save_as, answers[index].tokens)
                    if text or finish:
                        yield index, text, finish, session
        finally:
            # Whoever is no longer heard is no longer answered.
            for answer in answers:
                answer.is_gone = True

    async def _events(
        self,
        wanted: Wanted,
        reply: Reply,
        answers: Sequence[Answer],
        pieces: AsyncIterator[tuple[int, str, Finish | None, str | None]],
        num_read: int,
    ) -> AsyncIterator[str]:
        """Server-sent events."""
        begun: set[int] = set()
        base = sum(answer.tokens.num_made for answer in answers)
        try:
            async for index, *piece in pieces:
                choice = reply.choice(index, *piece, is_first=index not in begun)
                begun.add(index)
                yield event(reply.body([choice]))
            if wanted.has_usage:
                made = sum(answer.tokens.num_made for answer in answers) - base
                yield event(reply.body([], usage(num_read, made)))
            yield "data: [DONE]\n\n"
        # The status has been sent: only an event can say so.
        except (InputError, StoppedError) as error:
            yield event(problem(500, str(error)))

    async def _whole(
        self,
        request: Request,
        reply: Reply,
        answers: Sequence[Answer],
        pieces: AsyncIterator[tuple[int, str, Finish | None, str | None]],
        num_read: int,
    ) -> dict[str, Any]:
        """All answers, complete, unless the client goes away."""
        base = sum(answer.tokens.num_made for answer in answers)

        async def collect() -> list[dict[str, Any]]:
            texts, choices = [""] * len(answers), {}
            async for index, text, *ending in pieces:
                texts[index] += text
                choices[index] = reply.choice(index, texts[index], *ending, is_first=True)
            return [choices[index] for index in sorted(choices)]

        collecting = asyncio.ensure_future(collect())
        # The body has been read: all that can come is the news that the client has gone.
        leaving = asyncio.ensure_future(request.receive())
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not collecting.done():
            collecting.cancel()
            raise ClientDisconnect
        choices = collecting.result()
        made = sum(answer.tokens.num_made for answer in answers) - base
        return reply.body(choices, usage(num_read, made))

    async def _json(self, request: Request) -> object:
        """The body of a request, of bounded size."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.limits.num_body_bytes:
                rule = f"a body must have at most {self.limits.num_body_bytes:,} bytes"
                raise RefusedError(413, rule, "more", "send less")
        try:
            return parse_json(bytes(body))
        except ValueError as error:
            raise input_error("the body must be JSON", error, "check its quotes") from error

    def wait(self, client: str) -> float:
        """Seconds until a client may send its next request: 0 if it may now, which then counts."""
        if self.limits.rate is None:
            return 0.0
        now = time.monotonic()
        if len(self.paid_until) > MOST_CLIENTS:
            self.paid_until = {one: at for one, at in self.paid_until.items() if at > now}
        until = max(now, self.paid_until.get(client, now)) + MINUTE / self.limits.rate
        # A minute's requests may come at once.
        if until - now > MINUTE + 1e-9:
            return until - now - MINUTE
        self.paid_until[client] = until
        return 0.0


class Guard:
    """Lets requests through that have a key and keep to the rate, and counts all of them."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                endpoint = getattr(scope.get("endpoint"), "__name__", "none")
                self.service.metrics.requests.labels(endpoint, message["status"]).inc()
            await send(message)

        request = Request(scope)
        refused = None if request.url.path == "/health" else self._refused(request)
        await (refused or self.app)(scope, receive, counted)

    def _refused(self, request: Request) -> Response | None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        # All keys are compared, so that time tells nothing.
        known = [hmac.compare_digest(key, one) for one in self.service.api_keys]
        if known and not any(known):
            received = "another" if key else "none"
            message = input_error("a request needs an API key", received, "send one as Bearer")
            return JSONResponse(problem(401, str(message)), 401)
        host = request.client.host if request.client else ""
        if wait := self.service.wait(key.decode(errors="replace") if known else host):
            rule = f"a client may send {self.service.limits.rate:g} requests per minute"
            message = input_error(rule, "more", f"wait {wait:.0f} s")
            headers = {"Retry-After": str(math.ceil(wait))}
            return JSONResponse(problem(429, str(message)), 429, headers)
        return None


class Server(uvicorn.Server):
    """Serves on a socket of its own until it is asked to stop."""

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        grace: float = 10.0,
        on_start: Callable[[str], object] = lambda url: None,
    ) -> None:
        check_integer("port", port, minimum=0, maximum=65535, example=8000)
        check_number("grace", grace, minimum=0, example=10)
        self.service, self.grace, self.on_start = service, grace, on_start
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.socket = socket.create_server((host, port), family=family)
        except OSError as error:
            rule = "a server needs an address and a port that are free"
            raise input_error(rule, f"{host}:{port} ({error})", "choose another --port") from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}"
        super().__init__(
            uvicorn.Config(
                service.app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(grace) + LEEWAY,
            )
        )

    def serve_until_stopped(self) -> None:
        """Serve until SIGINT, SIGTERM or `stop`."""
        self.run(sockets=[self.socket])

    def stop(self) -> None:
        """Accept nothing new; answers that last longer than the grace are cut short."""
        self.service.batch.deadline = time.monotonic() + self.grace
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn, and say so."""
        await super().startup(sockets)
        self.on_start(self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn, with a deadline."""
        super().handle_exit(sig, frame)
        self.stop()


def event(body: object) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(body)}\n\n"


def report(_: Request, error: Exception) -> Response:
    """An error as OpenAI's clients expect it."""
    if isinstance(error, UnknownSessionError):
        return JSONResponse(problem(404, str(error)), 404)
    if isinstance(error, InputError):
        return JSONResponse(problem(400, str(error)), 400)
    if isinstance(error, StoppedError):
        return JSONResponse(problem(503, str(error)), 503)
    if isinstance(error, HTTPException):
        message = input_error("a request needs a known path and method", error.detail, "check both")
        return JSONResponse(problem(error.status_code, str(message)), error.status_code)
    if isinstance(error, RefusedError):
        headers = {"Retry-After": "1"} if error.status == 429 else {}  # noqa: PLR2004
        return JSONResponse(problem(error.status, str(error)), error.status, headers)
    return JSONResponse(problem(500, "the server failed; its log says why"), 500)
