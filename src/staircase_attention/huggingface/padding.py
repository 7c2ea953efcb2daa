"""Rows of different lengths in one batch: padding never enters the model.

Padding inside a row would shift all later chunks. So a masked token is treated as absent: every row
gets the logits and the state that it would get alone.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.generation.prompts import prefill
from staircase_attention.models import SequenceModel, State


def tokens_present(
    attention_mask: Tensor | None, tokens: Tensor
) -> Bool[Tensor, "batch time"] | None:
    """Which tokens, or vectors of tokens, are present; None if all are."""
    if attention_mask is None or tokens.dim() < 2:  # noqa: PLR2004
        return None
    batch, time = tokens.shape[:2]
    # A mask may also cover the tokens of earlier calls.
    if attention_mask.dim() != 2 or len(attention_mask) != batch or attention_mask.shape[1] < time:  # noqa: PLR2004
        raise input_error(
            "attention_mask must be batch x time, with at least one column per token",
            f"shape {tuple(attention_mask.shape)} for tokens of {tuple(tokens.shape)}",
            "pass the mask that the tokeniser returned",
        )
    present = attention_mask[:, attention_mask.shape[1] - time :].to(tokens.device) != 0
    return None if bool(present.all()) else present


def is_padded_right(present: Bool[Tensor, "batch time"]) -> bool:
    """Whether no token comes after padding."""
    return bool((present[:, :-1] >= present[:, 1:]).all())


def run_present(
    model: SequenceModel,
    tokens: Tensor,
    present: Bool[Tensor, "batch time"],
    state: State | None,
) -> tuple[Float[Tensor, "batch time output"], State]:
    """Run the present tokens; the logits of absent ones are zero."""
    rows = [row[here] for row, here in zip(tokens, present, strict=True)]
    found: list[list[Tensor]] = [[] for _ in rows]
    if state is None or not any(state.lengths):
        # In as few streams as possible, because each is run separately for every later token.
        after = cast(State, prefill(model, rows, keep=lambda row, part: found[row].append(part)))
    else:
        order: list[int] = []
        states: list[State] = []
        for length in sorted({len(row) for row in rows}):
            alike = [number for number, row in enumerate(rows) if len(row) == length]
            together = torch.stack([rows[number] for number in alike])
            several, later = model(together, state.select(alike))
            for number, part in zip(alike, several, strict=True):
                found[number].append(part)
            order += alike
            states.append(later)
        after = State.join(states).select(sorted(range(len(order)), key=order.__getitem__))
    whole = model.output.weight.new_zeros(*present.shape, model.output_size)
    # Where all tokens are absent there are no logits to put in.
    parts = [whole.new_zeros(0, model.output_size), *(part for row in found for part in row)]
    return whole.index_put((present,), torch.cat(parts)), after


def carried(
    logits: Float[Tensor, "batch time vocab"], present: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """The logits of each row's latest present token, also at the padding after it.

    `generate` reads the last column; with padding on the right that is not the last token.
    """
    columns = torch.arange(present.shape[1], device=present.device)
    latest = torch.where(present, columns, -1).cummax(1).values[..., None]
    # Before the first token there are no logits.
    return logits.gather(1, latest.clamp(min=0).expand_as(logits)).masked_fill(latest < 0, 0)
