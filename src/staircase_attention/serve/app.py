"""The endpoints, and what guards them.

The event loop talks to clients; one thread makes tokens (`Batch.work`). The loop hands prompts
over, the thread returns tokens, and nothing else is shared.
"""

import asyncio
import hmac
import json
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import prometheus_client as prometheus
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from staircase_attention.checks import InputError, check_integer, check_number, input_error
from staircase_attention.files import parse_json
from staircase_attention.generation import TokenStream
from staircase_attention.generation.prompts import as_rows
from staircase_attention.generation.stepper import Stepper
from staircase_attention.serve.batching import Answer, Batch, News, shared
from staircase_attention.serve.protocol import Job, Kind, Limits, RefusedError, checked_name
from staircase_attention.serve.sessions import Sessions
from staircase_attention.training import LanguageModel

MINUTE = 60.0

Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """A language model behind endpoints; `app` is an ASGI application."""

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
        if not all(key.strip() for key in api_keys):
            raise input_error("an API key must not be empty", "''", "set it, or leave it out")
        self.api_keys = [key.encode() for key in api_keys]
        self.batch = Batch(language.model, language.decode)
        self.sessions = Sessions(language, most=self.limits.max_sessions, folder=folder)
        self.metrics = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, namespace="staircase", registry=self.metrics)
        gauge = partial(prometheus.Gauge, namespace="staircase", registry=self.metrics)
        self.requests = counter("requests", "Requests answered", ["endpoint", "status"])
        self.tokens = counter("tokens", "Tokens read and made", ["kind"])
        first = "staircase_first_token_seconds"
        self.first = prometheus.Histogram(first, "Time to a first token", registry=self.metrics)
        gauge("streams", "Present streams").set_function(lambda: self.batch.num_answers)
        gauge("sessions", "Present sessions").set_function(lambda: len(self.sessions.by_name))
        self.wake = asyncio.Event()
        self.paid_until: dict[str, float] = {}
        """Of each client, when the requests it has sent would have come at the rate."""
        endpoints: dict[str, tuple[str, Endpoint]] = {
            "/metrics": ("GET", self.show_metrics),
            "/v1/models": ("GET", self.models),
            "/v1/models/{name:path}": ("GET", self.models),
            "/v1/completions": ("POST", partial(self.answer, "completions")),
            "/v1/chat/completions": ("POST", partial(self.answer, "chat")),
            "/v1/sessions": ("GET", self.session),
            "/v1/sessions/{name}": ("GET DELETE", self.session),
            "/v1/sessions/{name}/fork/{other}": ("POST", self.fork),
        }
        # Whoever supervises the server has no key.
        routes = [Route("/health", lambda _: JSONResponse({"status": "ok"}))]
        for path, (methods, endpoint) in endpoints.items():
            routes.append(Route(path, self._guarded(path, endpoint), methods=methods.split()))
        reports = {HTTPException: lambda _, error: report(error)}
        self.app = Starlette(routes=routes, exception_handlers=reports, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Make tokens; save sessions."""
        # One thread: PyTorch's own threads belong to the one that calls it.
        with ThreadPoolExecutor(1) as thread:
            making = asyncio.create_task(self._make(thread))
            yield
            making.cancel()
            self.batch.deadline = 0
        self.sessions.save()

    async def _make(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()

        def deliver(news: dict[Answer, News]) -> None:
            for answer, new in news.items():
                answer.news.put_nowait((answer.index, new))

        tell = loop.call_soon_threadsafe
        while await self.wake.wait():
            self.wake.clear()
            # Tokens are sent while the next ones are made.
            await loop.run_in_executor(thread, self.batch.work, lambda news: tell(deliver, news))

    def _guarded(self, path: str, endpoint: Endpoint) -> Endpoint:
        """An endpoint that answers those who may ask, reports errors, and counts."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_client(request)
                response = await endpoint(request)
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:
                response = report(error)
            self.requests.labels(path, response.status_code).inc()
            return response

        return guarded

    def _check_client(self, request: Request) -> None:
        """Refuse who has no key, and who asks too often."""
        # Some write bearer. All keys are compared, so that time tells nothing.
        key = request.headers.get("authorization", "")[len("Bearer ") :]
        known = [hmac.compare_digest(key.encode(), one) for one in self.api_keys]
        # Browsers name the page that asks: without a key, any page that is visited could.
        if not any(known) and (known or "origin" in request.headers):
            rule, remedy = "a request must have the server's API key", "send it as a bearer token"
            received = "a wrong one" if key else "none" if known else "a web page's, no --api-key"
            raise RefusedError(401, rule, received, remedy)
        if (rate := self.limits.rate) is None:
            return
        now, client = time.monotonic(), key if known else getattr(request.client, "host", "")
        self.paid_until = {one: at for one, at in self.paid_until.items() if at > now}
        until = self.paid_until.get(client, now) + MINUTE / rate
        # The requests of a minute may come at once.
        if (wait := until - now - MINUTE) > 1e-6:  # noqa: PLR2004
            rule = f"a client may send at most {rate} requests per minute"
            raise RefusedError(429, rule, "more", "send fewer", wait=wait)
        self.paid_until[client] = until

    async def show_metrics(self, _: Request) -> Response:
        """Counters in Prometheus' format."""
        shown = prometheus.generate_latest(self.metrics)
        return Response(shown, media_type=prometheus.CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        """The model that there is, in a list or by its name."""
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "you"}
        name = request.path_params.get("name")
        if name not in (None, self.name):
            raise RefusedError(404, f"the model is {self.name}", name, "use this name")
        return JSONResponse(model if name else {"object": "list", "data": [model]})

    async def session(self, request: Request) -> Response:
        """List all sessions, show one, or forget it."""
        if (name := request.path_params.get("name")) is None:
            found = [self.sessions.described(name) for name in self.sessions.by_name]
            return JSONResponse({"object": "list", "data": found})
        session = self.sessions.described(name)
        if request.method == "DELETE":
            self.sessions.delete(name)
            session["deleted"] = True
        return JSONResponse(session)

    async def fork(self, request: Request) -> Response:
        """The same session under a second name: neither changes with the other."""
        tokens = self.sessions.find(request.path_params["name"])
        name = checked_name(request.path_params["other"])
        self.sessions.check_room(name)
        self.sessions.put(name, tokens)
        return JSONResponse(self.sessions.described(name), 201)

    async def answer(self, kind: Kind, request: Request) -> Response:
        """OpenAI's completions, and chat completions."""
        body, name, most = await self._json(request), self.name, self.limits.max_streams
        job = Job(kind, body, name, separator=self.separator, limits=self.limits)
        # To encode a long text takes a while.
        job.answers = await asyncio.to_thread(self._answers, job)
        if self.batch.num_answers + len(job.answers) > most:
            rule = f"at most {most} answers are made at the same time"
            raise RefusedError(429, rule, "one more", "try again in a second", wait=1)
        self.sessions.check_room(*job.kept)
        self.sessions.jobs.add(job)
        self.tokens.labels("read").inc(job.num_read)
        self.batch.reading.extend(job.answers)
        self.wake.set()
        if job.is_streamed:
            return StreamingResponse(self._events(job), media_type="text/event-stream")
        return JSONResponse(await self._whole(job, request))

    def _answers(self, job: Job) -> list[Answer]:
        """The answers that are to be made: `num_choices` to each prompt."""
        model, end = self.language.model, self.language.tokeniser.end_symbol
        stop_tokens = () if end is None else (end,)
        # In training a document follows the end of another.
        past, before, state, num_made = "", [*stop_tokens], model.initial_state(1), 0
        row, recent = 0, list[int]()
        if job.session is not None:
            tokens = self.sessions.find(job.session)
            before, recent = tokens.unread, tokens.recent[0][:-1]
            state, num_made, [row] = tokens.stepper.state, tokens.num_made, tokens.rows
            # A turn may have been cut off, also by a stop string of the client's.
            ended = self.language.decode([*recent, *before]).endswith(self.separator.encode())
            if job.kind == "chat" and not (ended and "stop_string" in tokens.finished.values()):
                past = self.separator
        encode, most = self.language.encode, self.limits.max_prompt
        new = [encode(past + one) if isinstance(one, str) else one for one in job.prompts]
        if (total := sum(map(len, new)) * job.num_choices) > most:
            rule = f"the tokens of all prompts, times n, must be at most {most:,}"
            raise input_error(rule, f"{total:,}", "send less, or parts with return_state")
        prompts = [[*before, *one] for one in new]
        as_rows(prompts, vocab_size=model.vocab_size, start_token=None)
        job.num_read = sum(map(len, prompts))
        news: asyncio.Queue[Any] = asyncio.Queue()
        return [
            Answer(
                index=index,
                tokens=TokenStream(
                    stepper=Stepper(model, state),
                    rows=(row + number,),
                    recent=[[*recent, *prompt]],
                    sampling=job.sampling,
                    max_tokens=num_made + job.max_tokens,
                    stop_tokens=stop_tokens,
                    decode=self.language.decode,
                    stop_strings=job.stop_strings,
                    num_made=num_made,
                ),
                unread=prompt,
                wants_state=bool(job.kept),
                sampling=shared(replace(job.sampling, seed=0)),
                news=news,
            )
            for index, (prompt, number) in enumerate(product(prompts, range(job.num_choices)))
        ]

    async def _choices(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """The answers: in pieces as they are made, or each when it is complete."""
        texts, begun, num_left = [""] * len(job.answers), set[int](), len(job.answers)
        news = job.answers[0].news
        try:
            while num_left:
                index, made = await news.get()
                if not job.num_made:
                    self.first.observe(time.time() - job.created)
                if isinstance(end := made[-1][1], Exception):
                    raise end
                texts[index] += "".join(text for text, _ in made)
                job.num_made += len(made)
                self.tokens.labels("made").inc(len(made))
                num_left -= end is not None
                if end is not None and job.kept:
                    self.sessions.put(job.kept[index], job.answers[index].tokens)
                if end is not None or (job.is_streamed and texts[index]):
                    yield job.choice(index, texts[index], end, is_first=index not in begun)
                    begun.add(index)
                    texts[index] = ""
        finally:
            self.sessions.jobs.discard(job)
            # Whoever is no longer heard is no longer answered.
            for answer in job.answers:
                answer.is_gone = True

    async def _events(self, job: Job) -> AsyncIterator[str]:
        """Server-sent events."""
        try:
            async for choice in self._choices(job):
                yield f"data: {json.dumps(job.body([choice], has_usage=False))}\n\n"
            if job.has_usage:
                yield f"data: {json.dumps(job.body([], has_usage=True))}\n\n"
            yield "data: [DONE]\n\n"
        # The status has been sent: only an event can tell.
        except Exception as error:
            yield f"data: {bytes(report(error).body).decode()}\n\n"

    async def _whole(self, job: Job, request: Request) -> dict[str, Any]:
        """All answers, complete, unless the client goes away."""

        async def collect() -> list[dict[str, Any]]:
            return sorted([one async for one in self._choices(job)], key=lambda one: one["index"])

        collecting = asyncio.ensure_future(collect())
        # The body has been read: all that can come is the news that the client has gone.
        leaving = asyncio.ensure_future(request.receive())
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not collecting.done():
            collecting.cancel()
            raise ClientDisconnect
        return job.body(collecting.result(), has_usage=True)

    async def _json(self, request: Request) -> object:
        """The body of a request, of bounded size."""
        body, most = bytearray(), self.limits.max_body
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise RefusedError(413, f"a body is at most {most:,} bytes", "more", "send less")
        try:
            return parse_json(bytes(body))
        except ValueError as error:
            raise input_error("the body must be JSON", error, "check its quotes") from error


def report(error: Exception) -> Response:
    """An error as OpenAI's clients expect it."""
    status, message, headers = 500, "the server failed; see its log", {}
    if isinstance(error, HTTPException):
        status = error.status_code
        message = f"a request must have a known path and method, got {error.detail}; check both"
    elif isinstance(error, InputError):
        status, message = getattr(error, "status", 400), str(error)
    elif isinstance(error, UnicodeError):
        status, message = 400, f"text must be Unicode, got {error}; leave out lone surrogates"
    else:
        logging.getLogger(__name__).error("a request failed", exc_info=error)
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait))
    kind = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004
    problem = {"message": " ".join(message.split()), "type": kind, "param": None, "code": None}
    return JSONResponse({"error": problem}, status, headers)


class Server(uvicorn.Server):
    """Serves on a socket of its own until it is asked to stop."""

    def __init__(
        self, service: Service, *, host: str = "127.0.0.1", port: int = 8000, grace: float = 10.0
    ) -> None:
        check_integer("port", port, minimum=0, maximum=65535, example=8000)
        check_number("grace", grace, minimum=0, example=10)
        self.service, self.batch, self.grace = service, service.batch, grace
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.socket = socket.create_server((host, port), family=family)
        except OSError as error:
            rule, received = "a server needs a host and a free port", f"{host}:{port} ({error})"
            raise input_error(rule, received, "choose another host or port") from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}"
        # Five seconds to end connections in, after the last answer has ended.
        most = math.ceil(grace) + 5
        config = uvicorn.Config(service.app, log_config=None, timeout_graceful_shutdown=most)
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until SIGINT, SIGTERM or `handle_exit`."""
        super().run(sockets or [self.socket])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn, and cut answers short a grace after the first time that this is called."""
        super().handle_exit(sig, frame)
        self.batch.deadline = min(self.batch.deadline, time.monotonic() + self.grace)
