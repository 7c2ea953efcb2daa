"""Rows of different lengths in one batch: padding never enters the model.

Padding inside a row would shift all later chunks. So a masked token is treated as absent: every row
gets the logits and the state that it would get alone.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from staircase_attention.checks import input_error
from staircase_attention.models import SequenceModel, State

Result = tuple[Float[Tensor, "batch time output"], State]


def tokens_present(
    attention_mask: Tensor | None, tokens: Int[Tensor, "batch time"]
) -> Bool[Tensor, "batch time"] | None:
    """Which tokens are present; None if all are."""
    if attention_mask is None or tokens.dim() != 2:  # noqa: PLR2004
        return None
    batch, time = tokens.shape
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


def is_padded_left(present: Bool[Tensor, "batch time"]) -> bool:
    """Whether no padding comes after a token."""
    return bool((present[:, :-1] <= present[:, 1:]).all())


def run_present(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    present: Bool[Tensor, "batch time"],
    state: State | None,
) -> Result:
    """Run the present tokens; the logits of absent ones are zero.

    Rows that can run together do. New rows are put into as few streams as possible, because every
    stream is run separately for each later token.
    """
    state = model.initial_state(len(tokens)) if state is None else state
    counts: list[int] = present.sum(1).tolist()
    are_new = is_padded_left(present) and not any(state.lengths)
    if are_new:
        pads = [tokens.shape[1] - count for count in counts]
        groups = group_alike([number % model.schedule.chunk_length for number in pads])
    else:
        groups = group_alike(counts)
    run = run_staggered if are_new else run_together
    results = [run(model, tokens[rows], present[rows], state.select(rows)) for rows in groups]
    rows = [row for group in groups for row in group]
    places = sorted(range(len(rows)), key=rows.__getitem__)
    logits = torch.cat([logits for logits, _ in results])[places]
    return logits, State.join([after for _, after in results]).select(places)


def run_together(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    present: Bool[Tensor, "batch time"],
    state: State,
) -> Result:
    """Run rows with the same number of tokens, at any columns."""
    found, state = model(tokens[present].view(len(tokens), -1), state)
    logits = found.new_zeros(*tokens.shape, found.shape[-1])
    logits[present] = found.flatten(0, 1)
    return logits, state


def run_staggered(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    present: Bool[Tensor, "batch time"],
    state: State,
) -> Result:
    """Run rows that start whole chunks apart: each is reset where its own tokens start."""
    tokens = tokens.masked_fill(~present, 0)
    starts = (~present).sum(1)
    columns = sorted(set(starts.tolist()))
    pieces: list[Tensor] = []
    for column, until in pairwise([*columns, tokens.shape[1]]):
        if pieces:
            state = state.reset(starts == column)
        logits, state = model(tokens[:, column:until], state)
        pieces.append(logits)
    before = pieces[0].new_zeros(len(tokens), columns[0], pieces[0].shape[-1])
    return torch.cat([before, *pieces], 1).masked_fill(~present[..., None], 0.0), state


def group_alike(keys: Sequence[Hashable]) -> list[list[int]]:
    """Indices with the same key.

    >>> group_alike([3, 5, 3])
    [[0, 2], [1]]
    """
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())
