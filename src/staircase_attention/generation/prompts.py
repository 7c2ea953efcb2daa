"""Prompts: checks what a user gives, and runs prompts of different lengths in one batch.

Rows end together: the longest prompt starts first, and each shorter one joins when as many tokens
are left as it has. There is no padding, so nothing is computed in vain. A row can join only where a
period of the timetable begins (in the paper's models: a chunk), so rows are first grouped by how
far into a period they end. The rows of a group are one stream from then on, and the model runs once
per group for each token it makes. Ladders, Feedback Transformers, memory networks and the LSTM have
periods of one token, so a single group.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.checks import check_integer, input_error
from staircase_attention.generation.stepper import Model, ModelState, feed
from staircase_attention.models import SequenceModel

# The token ids of one prompt.
Prompt = Tensor | Sequence[int]
# Gets the index of a prompt and the logits of its next tokens, in order.
Keep = Callable[[int, Tensor], None]

# Tokens per row in one call of the model, at most.
MAX_TOKENS_AT_ONCE = 1024
# Logits in one call of the model, about: nobody reads them, but the model computes them.
MAX_LOGITS_AT_ONCE = 1 << 25
EXAMPLE = "pass [3, 1, 4], a 1-D integer tensor, or a list of these; for text use stream_text"


def prefill(
    model: Model, prompts: Sequence[Int[Tensor, " time"]], *, keep: Keep | None = None
) -> ModelState:
    """The state after all tokens of all prompts; its rows are in the prompts' order.

    Without `keep` a long prompt is run in pieces, so that memory is bounded.
    """
    groups: dict[int, dict[int, Tensor]] = {}
    # The longest first; the rows of a group can end together.
    for place in sorted(range(len(prompts)), key=lambda place: -len(prompts[place])):
        groups.setdefault(len(prompts[place]) % period_of(model), {})[place] = prompts[place]
    states = [_run_group(model, group, keep) for group in groups.values()]
    # `join` keeps the groups as streams of their own, in one state.
    joined: ModelState = type(states[0]).join(states)  # type: ignore[arg-type]
    places = [place for group in groups.values() for place in group]
    return joined.select(sorted(range(len(places)), key=places.__getitem__))


def _run_group(
    model: Model, group: Mapping[int, Int[Tensor, " time"]], keep: Keep | None
) -> ModelState:
    """Run a group's rows, by their places, each from its start to their common end."""
    end = max(map(len, group.values()))
    starts = {place: end - len(tokens) for place, tokens in group.items()}
    state = model.initial_state([*starts.values()].count(0))
    # An empty prompt starts where the others end, so the last interval may be empty.
    for start, stop in pairwise([*sorted({*starts.values()}), end]):
        running = [place for place in group if starts[place] <= start]
        num_old, num_new = state.batch_size, len(running) - state.batch_size
        if num_new:
            # New rows are copies of a row, reset: they see nothing of what came before.
            copies = state.select([*range(num_old), *[0] * num_new])
            state = copies.reset([False] * num_old + [True] * num_new)
        parts = [group[place][start - starts[place] : stop - starts[place]] for place in running]
        tokens = torch.stack(parts)
        if keep is None:
            state = read(model, tokens, state)
        elif start < stop:
            logits, state = feed(model, tokens, state)
            for place, found in zip(running, logits, strict=True):
                keep(place, found)
    return state


def read(model: Model, tokens: Int[Tensor, "rows time"], state: ModelState) -> ModelState:
    """The state after these tokens, in pieces of bounded memory."""
    num_rows, length = tokens.shape
    size = tokens_at_once(model, num_rows)
    for start in range(0, length, size):
        _, state = feed(model, tokens[:, start : start + size], state)
    return state


def tokens_at_once(model: Model, num_rows: int) -> int:
    """Tokens per row in one call of the model: whole periods where at least one fits."""
    most = max(1, min(MAX_TOKENS_AT_ONCE, MAX_LOGITS_AT_ONCE // (num_rows * model.output_size)))
    period = period_of(model)
    return most - most % period if most >= period else most


def period_of(model: Model) -> int:
    """Rows that start a multiple of this apart can share a stream."""
    return model.schedule.period if isinstance(model, SequenceModel) else 1


def as_rows(
    prompts: Prompt | Sequence[Prompt], *, vocab_size: int, start_token: int | None
) -> list[Int[Tensor, " time"]]:
    """One prompt, or several of different lengths, as tokens on the CPU, none of them empty."""
    # An empty list is one empty prompt, which `start_token` may fill.
    is_batch = getattr(prompts, "ndim", 0) > 1
    if isinstance(prompts, list | tuple):
        is_batch = any(isinstance(one, list | tuple | Tensor | np.ndarray) for one in prompts)
    if start_token is not None:
        check_integer("start_token", start_token, minimum=0, maximum=vocab_size - 1, example=0)
    start = torch.tensor([] if start_token is None else [start_token], dtype=torch.int64)
    rows = [torch.cat([start, _as_row(one)]) for one in (prompts if is_batch else [prompts])]
    if not rows:
        raise input_error("a stream needs at least one prompt", "none", EXAMPLE)
    for number, row in enumerate(rows):
        if len(row) == 0:
            rule = "a prompt must have at least one token"
            remedy = "give start_token, the token that a text begins with, or a longer prompt"
            raise input_error(rule, f"none in prompt {number}", remedy)
        low, high = (int(bound) for bound in row.aminmax())
        if low < 0 or high >= vocab_size:
            rule = f"token ids must be from 0 to vocab_size - 1 = {vocab_size - 1}"
            raise input_error(rule, f"ids from {low} to {high}", "check the tokeniser")
    return rows


def _as_row(prompt: object) -> Int[Tensor, " time"]:
    try:
        row = torch.as_tensor(prompt).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise input_error("a prompt is a list of token ids", repr(prompt), EXAMPLE) from error
    # An empty list becomes a tensor of floats.
    if row.ndim != 1 or (row.numel() and (row.is_floating_point() or row.dtype == torch.bool)):
        raise input_error("a prompt is a list of token ids", repr(prompt), EXAMPLE)
    return row.long()
