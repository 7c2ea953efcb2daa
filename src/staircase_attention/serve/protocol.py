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
from dataclasses import dataclass
from typing import Any, Literal

from staircase_attention.checks import (
    InputError,
    check_choice,
    check_fields,
    check_flag,
    check_integer,
    input_error,
)
from staircase_attention.generation import Finish, SamplingConfig
from staircase_attention.generation.stream import as_stop_strings

Kind = Literal["completions", "chat"]

# Fields of a request that have an effect.
SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
SHARED = ("model", "stream", "stream_options", "n", "max_tokens", "stop", *SAMPLING)
FIELDS = {
    "completions": ("prompt", *SHARED, "session", "return_state"),
    "chat": ("messages", "max_completion_tokens", *SHARED, "session", "return_state"),
}
# Fields that do not change an answer.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
# Fields of OpenAI's that would change it, in ways that are not offered.
ABSENT = {"best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "presence_penalty"}
ABSENT |= {"response_format", "suffix", "tool_choice", "tools", "top_logprobs"}
REASONS = {None: None, "max_tokens": "length", "stop_token": "stop", "stop_string": "stop"}
# They are looked for after every token of every answer, by the thread that makes them all.
MOST_STOP_CHARACTERS = 1_000
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
        check_fields(self)


class Job:
    """What a request asks for, the answers that are being made, and the shape of the reply."""

    def __init__(
        self, kind: Kind, body: object, model: str, *, separator: str, limits: Limits
    ) -> None:
        if not isinstance(body, dict):
            raise input_error("the body must be a JSON object", type(body).__name__, "send one")
        # A field that is null counts as left out.
        given = {name: value for name, value in body.items() if value is not None}
        # Some clients send the defaults of all fields; what is empty asks for nothing.
        for name in [name for name, one in given.items() if one and one != {"type": "text"}]:
            if name in ABSENT:
                raise input_error("a field must be a supported one", repr(name), "leave it out")
            check_choice("a field", name, (*FIELDS[kind], *IGNORED))
        check_choice("model", given.get("model", model), [model])
        self.kind, self.model, self.id, self.created = kind, model, uuid.uuid4().hex, time.time()
        check_flag("stream", given.get("stream", False))
        self.is_streamed: bool = given.get("stream", False)
        options = given.get("stream_options", {})
        self.has_usage = isinstance(options, dict) and options.get("include_usage") is True
        """Whether the tokens used are streamed, too."""
        self.num_choices: int = given.get("n", 1)
        """Answers per prompt."""
        check_integer("n", self.num_choices, minimum=1, maximum=limits.max_streams, example=1)
        most = limits.max_tokens
        default = given.get("max_tokens", min(DEFAULT_TOKENS[kind], most))
        self.max_tokens: int = given.get("max_completion_tokens", default)
        check_integer("max_tokens", self.max_tokens, minimum=1, maximum=most, example=16)
        sampling = {name: given[name] for name in SAMPLING if name in given}
        self.sampling = SamplingConfig(**{"seed": secrets.randbits(32), **sampling})
        self.prompts, stop = _prompts(given.get("prompt", "")), given.get("stop", [])
        if (number := len(self.prompts) * self.num_choices) > limits.max_streams:
            rule = f"the number of prompts, times n, must be at most {limits.max_streams}"
            raise input_error(rule, number, "send fewer prompts at once, or a smaller n")
        self.stop_strings = as_stop_strings(stop if isinstance(stop, str | list) else [stop])
        if (size := sum(map(len, self.stop_strings))) > MOST_STOP_CHARACTERS:
            rule = f"stop strings must have at most {MOST_STOP_CHARACTERS:,} characters in all"
            raise input_error(rule, f"{size:,}", "send fewer, or shorter ones")
        if kind == "chat":
            # A turn ends with the separator, as in the corpus, whoever says it.
            self.prompts = ["".join(turn + separator for turn in _turns(given.get("messages")))]
            self.stop_strings += (separator,)
        self.session = checked_name(given["session"]) if "session" in given else None
        kept = given.get("return_state", False)
        new = [f"session-{self.id}-{index}" for index in range(number if kept else 0)]
        self.kept = new if isinstance(kept, bool) else [checked_name(kept)]
        """The names of the sessions that the answers become, if their states are kept."""
        if self.kept and len(self.kept) < number:
            rule = "return_state must be true or false where there are several answers"
            raise input_error(rule, repr(kept), "use true")
        self.answers: Sequence[Any] = ()
        """See `batching.Answer`."""
        self.num_read = self.num_made = 0
        """Tokens of all prompts, and of all answers so far."""

    def body(self, choices: Sequence[object], *, has_usage: bool) -> dict[str, Any]:
        """A whole reply, or one event of a stream; where asked for, with the tokens used."""
        kind = "text_completion"
        if self.kind == "chat":
            kind = "chat.completion.chunk" if self.is_streamed else "chat.completion"
        head = {"id": self.id, "object": kind, "created": int(self.created), "model": self.model}
        read, made = self.num_read, self.num_made
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        return {**head, "choices": choices, **({"usage": usage} if has_usage else {})}

    def choice(
        self, index: int, text: str, end: Finish | None, *, is_first: bool
    ) -> dict[str, Any]:
        """One answer, or a piece of it."""
        content: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            said = {"role": "assistant"} if is_first else {}
            content = {"delta" if self.is_streamed else "message": {**said, "content": text}}
        if end is not None and self.kept:
            content["session"] = self.kept[index]
        return {"index": index, **content, "logprobs": None, "finish_reason": REASONS[end]}


def _prompts(prompt: object) -> list[str | list[int]]:
    """A text, tokens, or several of either."""
    several: list[Any] = prompt if isinstance(prompt, list) and prompt else [prompt]
    if isinstance(prompt, list) and all(isinstance(one, int) for one in several):
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
        parts = content if isinstance(content, list) else [{"text": content}]
        texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
        if not all(isinstance(text, str) for text in texts):
            raise input_error(f"{rule} objects with text content", repr(message), f"use {example}")
        turns.append("".join(texts))
    return turns


def checked_name(name: object) -> str:
    """A session's name, which is also one of a file."""
    if not isinstance(name, str) or not SESSION_NAME.fullmatch(name):
        rule = "a session's name must be up to 64 letters, digits, dots, hyphens and underscores"
        raise input_error(rule, repr(name), "use for example draft-1")
    return name
