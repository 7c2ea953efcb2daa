"""Takes prompts of different lengths in, together where that is exact, with bounded memory.

Rows end together: the longest prompt begins first, and each shorter one joins when as many tokens
are left as it has. Nothing is padded, so nothing is computed in vain. A row can join only where a
chunk begins, so the rows are first parted by how far into a chunk they will end; rows of one part
are one stream for good, and a model runs once a part for each token it makes. Ladders, Feedback
Transformers, memory networks and the LSTM have chunks of one token, and so a single part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.generation.drive import (
    Carried,
    Model,
    chunk_length,
    feed,
    fresh_state,
    join_states,
    with_new_rows,
)

MOST_TOKENS = 1024
"""Tokens of a row that are taken in at once, at most."""
MOST_LOGITS = 1 << 25
"""Logits that a model makes at once, about: they are not needed here, but it makes them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt on its way in."""

    place: int
    """Where it stands among the prompts."""
    tokens: Int[Tensor, " time"]
    start: int
    """Position, in its part, at which it begins."""


def prefill(model: Model, prompts: Sequence[Int[Tensor, " time"]]) -> Carried:
    """The state of all prompts' rows after all their tokens, in the prompts' order."""
    states, places = [], []
    for part in parts(prompts, chunk_length(model)):
        states.append(_take_in(model, part))
        places += [entry.place for entry in part]
    order = sorted(range(len(places)), key=places.__getitem__)
    joined = join_states(states)
    return joined if order == sorted(order) else joined.select(order)


def parts(prompts: Sequence[Int[Tensor, " time"]], chunk: int) -> list[list[Entry]]:
    """Prompts that can end together, the longest of each part first."""
    by_end: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_end.setdefault(len(prompt) % chunk, []).append(place)
    found = []
    for places in by_end.values():
        end = max(len(prompts[place]) for place in places)
        entries = [Entry(place, prompts[place], end - len(prompts[place])) for place in places]
        found.append(sorted(entries, key=lambda entry: entry.start))
    return found


def _take_in(model: Model, part: Sequence[Entry]) -> Carried:
    """Feed a part's rows, each from its start on, to the end that they share."""
    state: Carried | None = None
    begun: list[Entry] = []
    position = 0
    for start, entering in groupby(part, key=lambda entry: entry.start):
        new = list(entering)
        if state is None:
            state = fresh_state(model, len(new))
        else:
            state = _feed_all(model, begun, range(position, start), state)
            state = with_new_rows(model, state, len(new))
        begun += new
        position = start
    assert state is not None
    return _feed_all(model, begun, range(position, len(part[0].tokens)), state)


def _feed_all(model: Model, rows: Sequence[Entry], positions: range, state: Carried) -> Carried:
    """Feed rows the tokens that they have at these positions, a bounded number at once."""
    for piece in pieces(positions, most_at_once(model, len(rows))):
        tokens = [row.tokens[piece.start - row.start : piece.stop - row.start] for row in rows]
        _, state = feed(model, torch.stack(tokens), state)
    return state


def most_at_once(model: Model, num_rows: int) -> int:
    """Tokens a row in one go: whole chunks where at least one fits."""
    most = max(1, min(MOST_TOKENS, MOST_LOGITS // (num_rows * model.output_size)))
    chunk = chunk_length(model)
    return most - most % chunk if most >= chunk else most


def pieces(positions: range, size: int) -> Iterator[range]:
    """Runs of at most `size` positions.

    >>> list(pieces(range(3, 10), 4))
    [range(3, 7), range(7, 10)]
    """
    for start in range(positions.start, positions.stop, size):
        yield range(start, min(start + size, positions.stop))
