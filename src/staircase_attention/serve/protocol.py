"""OpenAI's protocol: what a request asks for, and the shapes of replies and errors.

Two fields are our own. `session` names the session to continue: the prompt, or the messages, are
then only what is new. `return_state` keeps the state after each answer as a session, under a name
of the client's choice or, if it is true, a new one, which the choice has as its `session`.
"""

import re
import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from staircase_attention.checks import (
    InputError,
    check_choice,
    check_flag,
    check_integer,
    input_error,
)
from staircase_attention.generation import Finish, SamplingConfig
from staircase_attention.generation.stream import as_stop_strings

Kind = Literal["completions", "chat"]

# Fields of a request that have an effect.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
SHARED = ("model", "stream", "stream_options", "n", "max_tokens", "stop", "seed", *SAMPLING)
FIELDS = {
    "completions": ("prompt", *SHARED, "session", "return_state"),
    "chat": ("messages", "max_completion_tokens", *SHARED, "session", "return_state"),
}
# Fields that do not change an answer.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
REASONS = {None: None, "max_tokens": "length", "stop_token": "stop", "stop_string": "stop"}
# The first as OpenAI's.
DEFAULT_TOKENS = {"completions": 16, "chat": 256}
SESSION_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class RefusedError(InputError):
    """A request that is refused with another status than 400."""

    def __init__(self, status: int, *error: str, wait: float = 0.0) -> None:
        super().__init__(str(input_error(*error)))
        self.status, self.wait = status, wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a server takes on."""

    max_streams: int = 64
    """Answers in the making."""
    rate: int | None = None
    """Requests per minute of each key or, where there is no key, each address."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    max_prompt: int = 100_000
    max_tokens: int = 4096
    max_sessions: int = 1000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None:
                check_integer(name, value, minimum=1, example=60)


@dataclass(kw_only=True, eq=False, slots=True)
class Job:
    """What a request asks for, the answers that are being made, and the shape of the reply."""

    kind: Kind
    model: str
    prompts: Sequence[str | Sequence[int]]
    num_choices: int
    """Answers per prompt."""
    max_tokens: int
    sampling: SamplingConfig
    stop_strings: tuple[str, ...]
    is_streamed: bool
    has_usage: bool
    """Whether the tokens used are streamed, too."""
    session: str | None
    returns_state: bool
    save_as: str | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: float = field(default_factory=time.time)
    answers: Sequence[Any] = ()
    """See `batching.Answer`."""
    num_read: int = 0
    """Tokens of all prompts."""
    num_before: int = 0
    """Tokens that the continued session had made, for all answers."""

    @property
    def usage(self) -> dict[str, int]:
        """Tokens read and made."""
        read, made = self.num_read, sum(answer.tokens.num_made for answer in self.answers)
        made -= self.num_before
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

    def body(self, choices: Sequence[object], usage: object = None) -> dict[str, Any]:
        """A whole reply, or one event of a stream."""
        kind = "text_completion"
        if self.kind == "chat":
            kind = "chat.completion.chunk" if self.is_streamed else "chat.completion"
        head = {"id": self.id, "object": kind, "created": int(self.created), "model": self.model}
        return {**head, "choices": choices, **({"usage": usage} if usage else {})}

    def choice(
        self, index: int, text: str, end: Finish | None, session: str | None, *, is_first: bool
    ) -> dict[str, Any]:
        """One answer, or a piece of it."""
        content: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            said = {"role": "assistant"} if is_first else {}
            content = {"delta" if self.is_streamed else "message": {**said, "content": text}}
        ending = {"logprobs": None, "finish_reason": REASONS[end]}
        return {"index": index, **content, **ending, **({"session": session} if session else {})}


def parse(kind: Kind, body: object, model: str, *, separator: str, limits: Limits) -> Job:
    """A request's body, checked, except for its tokens."""
    if not isinstance(body, dict):
        raise input_error("the body must be a JSON object", type(body).__name__, "send one")
    # A field that is null counts as left out.
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        # Some clients send the defaults of all fields; what is empty asks for nothing.
        if name not in IGNORED and value:
            check_choice("a field", name, FIELDS[kind])
    check_choice("model", given.get("model", model), [model])
    check_flag("stream", is_streamed := given.get("stream", False))
    num_choices, most = given.get("n", 1), limits.max_tokens
    check_integer("n", num_choices, minimum=1, maximum=limits.max_streams, example=1)
    default = min(DEFAULT_TOKENS[kind], most)
    max_tokens = given.get("max_completion_tokens", given.get("max_tokens", default))
    check_integer("max_tokens", max_tokens, minimum=1, maximum=most, example=16)
    options = given.get("stream_options", {})
    prompts, stop = _prompts(given.get("prompt", "")), given.get("stop", [])
    stops = as_stop_strings(stop if isinstance(stop, str | list) else [stop])
    if kind == "chat":
        # A turn ends with the separator, as in the corpus, whoever says it.
        prompts = ["".join(turn + separator for turn in _turns(given.get("messages")))]
        stops = (*stops, separator)
    returned = given.get("return_state", False)
    if not isinstance(returned, bool):
        checked_name(returned)
        if len(prompts) * num_choices > 1:
            rule = "return_state must be true or false where there are several answers"
            raise input_error(rule, repr(returned), "use true")
    return Job(
        kind=kind,
        model=model,
        prompts=prompts,
        num_choices=num_choices,
        max_tokens=max_tokens,
        sampling=SamplingConfig(
            **{name: given[name] for name in SAMPLING if name in given},
            seed=given.get("seed", secrets.randbits(32)),
        ),
        stop_strings=stops,
        is_streamed=is_streamed,
        has_usage=isinstance(options, dict) and options.get("include_usage") is True,
        session=checked_name(given["session"]) if "session" in given else None,
        returns_state=bool(returned),
        save_as=returned if isinstance(returned, str) else None,
    )


def _prompts(prompt: object) -> list[str | list[int]]:
    """A text, tokens, or several of either."""
    several: list[Any] = prompt if isinstance(prompt, list) and prompt else [prompt]
    if all(isinstance(one, int) for one in several):
        several = [several]
    for one in several:
        is_tokens = isinstance(one, list) and all(type(token) is int for token in one)
        if not isinstance(one, str) and not is_tokens:
            rule = "prompt must be a text, a list of token ids, or a list of these"
            raise input_error(rule, repr(prompt), 'use for example "Once upon a time"')
    return several


def _turns(messages: object) -> list[str]:
    """The words of each turn: models of text know no roles."""
    rule, example = "messages must be a list of", '[{"role": "user", "content": "Hello!"}]'
    if not isinstance(messages, list) or not messages:
        raise input_error(f"{rule} one message or more", repr(messages), f"use {example}")
    turns = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            texts = [part for part in parts if isinstance(part, str)]
            content = "".join(texts) if len(texts) == len(content) else None
        if not isinstance(content, str):
            raise input_error(f"{rule} objects with text content", repr(message), f"use {example}")
        turns.append(content)
    return turns


def checked_name(name: object) -> str:
    """A session's name, which is also one of a file."""
    if not isinstance(name, str) or not SESSION_NAME.fullmatch(name):
        rule = "a session's name must be up to 64 letters, digits, dots, hyphens and underscores"
        raise input_error(rule, repr(name), "use for example draft-1")
    return name
