"""What a user hands over as prompts: rule, received value, way out."""

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.generation.drive import Model
from staircase_attention.layers.embedding import check_tokens

Prompt = Tensor | Sequence[int]
"""Token numbers of one prompt."""


def as_rows(prompts: Any, *, vocab_size: int, start_token: int | None) -> list[Tensor]:  # noqa: ANN401
    """One prompt, or several of different lengths, as tokens on the CPU, none of them empty."""
    if start_token is not None and not is_count(start_token):
        raise ValueError(f"start_token must be a token number, got {start_token!r}; give one, as 0")
    rows = [_as_row(prompt, start_token) for prompt in _as_batch(prompts)]
    if not rows:
        raise ValueError("a stream needs at least one prompt, got none; give one, as [3, 1, 4]")
    for number, row in enumerate(rows):
        if len(row) == 0:
            raise ValueError(
                f"a prompt must have at least one token, got none in prompt {number}; "
                "give start_token, the token that a text begins with, or a longer prompt"
            )
        check_tokens(row[None], vocab_size)
    return rows


def as_stop_tokens(tokens: Collection[int], *, output_size: int) -> tuple[int, ...]:
    """Tokens that end a row, all of them tokens that a model can make."""
    found = tuple(tokens) if isinstance(tokens, Collection) else (tokens,)
    for token in found:
        if not is_count(token) or token >= output_size:
            raise ValueError(
                f"a stop token is one that the model can make, 0 to {output_size - 1}, "
                f"got {token!r}; write [0] for one"
            )
    return tuple(int(token) for token in found)


def as_max_tokens(value: Any, *, remedy: str) -> int:  # noqa: ANN401
    """A number of tokens, at least one."""
    if not is_count(value) or value < 1:
        raise ValueError(f"max_tokens must be a whole number, at least 1, got {value!r}; {remedy}")
    return int(value)


def is_count(value: Any) -> bool:  # noqa: ANN401
    """Whether something is a whole number from 0 up, of whatever kind."""
    # True and False are whole numbers to Python.
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def as_row_numbers(numbers: Sequence[int] | None, num_rows: int) -> tuple[int, ...]:
    """The numbers that rows go by; 0, 1, 2, … where they are left open."""
    if numbers is None:
        return tuple(range(num_rows))
    found = tuple(numbers)
    if (
        not all(is_count(number) for number in found)
        or len(set(found)) != num_rows
        or len(found) != num_rows
    ):
        raise ValueError(
            f"row_numbers must be one number from 0 up for each of the {num_rows} prompts, all "
            f"different, got {list(found)}; leave them out to count from 0"
        )
    return tuple(int(number) for number in found)


def check_feeds_itself(model: Model) -> None:
    """Refuse a model whose outputs are not among its inputs."""
    if model.output_size > model.vocab_size:
        raise ValueError(
            "a stream feeds a model's outputs back to it, so output_size must be at most "
            f"vocab_size, got {model.output_size} and {model.vocab_size}; "
            "build the model with one vocabulary"
        )


def _as_batch(prompts: Any) -> list[Any]:  # noqa: ANN401
    if isinstance(prompts, str):
        raise TypeError(
            f"a prompt is token numbers, got the text {prompts!r}; "
            "encode it first, or use stream_text"
        )
    if isinstance(prompts, (list, tuple)):
        is_one = all(isinstance(token, Integral) for token in prompts)
        return [prompts] if is_one else list(prompts)
    whole = _as_tensor(prompts)
    return list(whole) if whole.dim() == 2 else [whole]  # noqa: PLR2004


def _as_row(prompt: Any, start_token: int | None) -> Int[Tensor, " time"]:  # noqa: ANN401
    row = _as_tensor(prompt)
    # What is empty has no kind of numbers of its own.
    row = row.long() if row.numel() == 0 else row
    if row.dim() != 1 or row.dtype not in INTEGERS:
        shape = tuple(row.shape)
        raise TypeError(
            f"a prompt is a list of token numbers, got {row.dtype} of shape {shape}; {REMEDY}"
        )
    start = [] if start_token is None else [int(start_token)]
    return torch.cat([torch.tensor(start, dtype=torch.int64), row.long()])


def _as_tensor(prompt: Any) -> Tensor:  # noqa: ANN401
    if isinstance(prompt, (list, tuple)) and all(is_count(token) for token in prompt):
        prompt = [int(token) for token in prompt]
    try:
        return torch.as_tensor(prompt).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"a prompt is a list of token numbers, got {prompt!r}; {REMEDY}") from error


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32)
"""Kinds of numbers that tokens come in, in tensors and in corpora."""
REMEDY = "pass [3, 1, 4], a 1-D integer tensor, or a list of these"
