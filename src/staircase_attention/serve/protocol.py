"""OpenAI's protocol: what a request asks for, and the shapes of replies and errors.

Two fields are our own. `session` names the session to continue: the prompt, or the messages, are
then only what is new. `return_state` keeps the state after each answer as a session, under a name
of the client's choice or, if it is true, a new one, which the choice has as its `session`.
"""

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from staircase_attention.checks import check_choice, check_flag, check_integer, input_error
from staircase_attention.generation import Finish, SamplingConfig
from staircase_attention.generation.text import as_stop_strings
from staircase_attention.serve.sessions import checked_name

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
# As in OpenAI's completions.
DEFAULT_TOKENS = 16
DEFAULT_CHAT_TOKENS = 256
SEED_BITS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a request asks for."""

    kind: Kind
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


def parse(
    kind: Kind, body: object, *, model: str, separator: str, max_tokens: int, max_choices: int
) -> Wanted:
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
    check_flag("stream", given.get("stream", False))
    num_choices = given.get("n", 1)
    check_integer("n", num_choices, minimum=1, maximum=max_choices, example=1)
    default = DEFAULT_TOKENS if kind == "completions" else DEFAULT_CHAT_TOKENS
    wanted = given.get("max_completion_tokens", given.get("max_tokens", min(default, max_tokens)))
    check_integer("max_tokens", wanted, minimum=1, maximum=max_tokens, example=16)
    options = given.get("stream_options", {})
    prompts, stops = _prompts(given.get("prompt", "")), as_stop_strings(_list(given.get("stop")))
    if kind == "chat":
        # A turn ends with the separator, as in the corpus, whoever says it.
        prompts = ["".join(turn + separator for turn in _turns(given.get("messages")))]
        stops = (*stops, separator)
    returned = given.get("return_state", False)
    is_single = len(prompts) * num_choices == 1
    if isinstance(returned, str) and not is_single:
        rule = "return_state must be true or false where there are several answers"
        raise input_error(rule, repr(returned), "use true")
    if not isinstance(returned, bool):
        checked_name(returned)
    return Wanted(
        kind=kind,
        prompts=prompts,
        num_choices=num_choices,
        max_tokens=wanted,
        sampling=SamplingConfig(
            **{name: given[name] for name in SAMPLING if name in given},
            seed=given.get("seed", secrets.randbits(SEED_BITS)),
        ),
        stop_strings=stops,
        is_streamed=given.get("stream", False),
        has_usage=isinstance(options, dict) and options.get("include_usage") is True,
        session=checked_name(given["session"]) if "session" in given else None,
        returns_state=bool(returned),
        save_as=returned if isinstance(returned, str) else None,
    )


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _prompts(prompt: object) -> list[str | list[int]]:
    """A text, tokens, or several of either."""
    several = prompt if isinstance(prompt, list) and prompt else [prompt]
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
            parts = [part.get("text") if isinstance(part, dict) else None for part in content]
            content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
        if not isinstance(content, str):
            raise input_error(f"{rule} objects with text content", repr(message), f"use {example}")
        turns.append(content)
    return turns


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The shapes of one request's replies."""

    kind: Kind
    model: str
    is_chunk: bool
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def body(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """A whole reply, or one event of a stream."""
        chat = "chat.completion.chunk" if self.is_chunk else "chat.completion"
        return {
            "id": f"{'cmpl' if self.kind == 'completions' else 'chatcmpl'}-{self.name}",
            "object": "text_completion" if self.kind == "completions" else chat,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **({} if usage is None else {"usage": usage}),
        }

    def choice(
        self, index: int, text: str, finish: Finish | None, session: str | None, *, is_first: bool
    ) -> dict[str, Any]:
        """One answer, or a piece of it."""
        said = {"role": "assistant"} if is_first else {}
        content: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            content = {"delta" if self.is_chunk else "message": {**said, "content": text}}
        ended = {} if session is None else {"session": session}
        return {
            "index": index,
            **content,
            "logprobs": None,
            "finish_reason": REASONS[finish],
            **ended,
        }


def usage(num_read: int, num_made: int) -> dict[str, int]:
    """Tokens read and made."""
    total = num_read + num_made
    return {"prompt_tokens": num_read, "completion_tokens": num_made, "total_tokens": total}


def problem(status: int, message: str) -> dict[str, Any]:
    """An error, in one line."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    server = 500
    kind = "server_error" if status >= server else kinds.get(status, "invalid_request_error")
    line = " ".join(message.split())
    return {"error": {"message": line, "type": kind, "param": None, "code": None}}
