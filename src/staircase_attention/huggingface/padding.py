"""Rows of unequal length in one batch: padding never enters the model.

The models have no notion of padding, and in a chunked model a pad would shift all chunks after it.
So a masked token is a token that is not there: every row gets what it would get alone.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from staircase_attention.models import SequenceModel, State

Result = tuple[Float[Tensor, "batch time output"], State]


def tokens_present(
    attention_mask: Tensor | None, tokens: Int[Tensor, "batch time"]
) -> Bool[Tensor, "batch time"] | None:
    """Which of these tokens are there; None where all are."""
    if attention_mask is None or tokens.dim() != 2:  # noqa: PLR2004
        return None
    batch, time = tokens.shape
    # A mask may reach back over what earlier calls took in.
    if attention_mask.dim() != 2 or len(attention_mask) != batch or attention_mask.shape[1] < time:  # noqa: PLR2004
        raise ValueError(
            "attention_mask must be batch x time, with a column for each token or more, "
            f"got shape {tuple(attention_mask.shape)} for tokens of {tuple(tokens.shape)}; "
            "pass the mask that the tokeniser gave"
        )
    present = attention_mask[:, attention_mask.shape[1] - time :].to(tokens.device) != 0
    return None if bool(present.all()) else present


def is_padded_right(present: Bool[Tensor, "batch time"]) -> bool:
    """Whether no token comes after a pad."""
    return bool((present[:, :-1] >= present[:, 1:]).all())


def is_padded_left(present: Bool[Tensor, "batch time"]) -> bool:
    """Whether no pad comes after a token."""
    return bool((present[:, :-1] <= present[:, 1:]).all())


def run_present(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    present: Bool[Tensor, "batch time"],
    state: State | None,
) -> Result:
    """Run the tokens that are there; where one is not, the logits are zero.

    Rows that can run together do. Those that begin here are left in as few streams as there can
    be, since each of them costs a run of its own for every token that follows.
    """
    state = model.initial_state(len(tokens)) if state is None else state
    counts: list[int] = present.sum(1).tolist()
    begins_here = is_padded_left(present) and not any(state.lengths)
    if begins_here:
        pads = [tokens.shape[1] - count for count in counts]
        groups = alike([number % model.schedule.chunk_length for number in pads])
    else:
        groups = alike(counts)
    run = run_late_comers if begins_here else run_together
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
    """Run rows that have equally many tokens, wherever these stand."""
    found, state = model(tokens[present].view(len(tokens), -1), state)
    logits = found.new_zeros(*tokens.shape, found.shape[-1])
    logits[present] = found.flatten(0, 1)
    return logits, state


def run_late_comers(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    present: Bool[Tensor, "batch time"],
    state: State,
) -> Result:
    """Run rows that begin whole chunks apart: each is reset where its own tokens begin."""
    tokens = tokens.masked_fill(~present, 0)
    begins = (~present).sum(1)
    moments = sorted(set(begins.tolist()))
    pieces: list[Tensor] = []
    for moment, until in zip(moments, [*moments[1:], tokens.shape[1]], strict=True):
        if pieces:
            state = state.reset(begins == moment)
        logits, state = model(tokens[:, moment:until], state)
        pieces.append(logits)
    before = pieces[0].new_zeros(len(tokens), moments[0], pieces[0].shape[-1])
    return torch.cat([before, *pieces], 1).masked_fill(~present[..., None], 0.0), state


def alike(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places with the same key.

    >>> alike([3, 5, 3])
    [[0, 2], [1]]
    """
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())
