"""Streams whose number of passes changes: a state of one depth as a state of another.

What tokens left behind is kept by pass. A pass finds what earlier tokens left at that same pass;
of a token that made fewer, it finds what the token left at its last. So a Ladder's state (ABAB) for
fewer passes is exact: that of a stream which made so few from its start. For more passes, earlier
tokens look as though they had left the recurrence early; to a coda they do so in both cases.

A Staircase's window has as many chunks as passes: a smaller one forgets the oldest chunks, a larger
one fills up with those that come.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from staircase_attention.layers import KeysValues, latest
from staircase_attention.layers.keys_values import places_among
from staircase_attention.models.executor import compact
from staircase_attention.models.sequence_model import SequenceModel
from staircase_attention.models.state import State, Stream
from staircase_attention.schedules import CARRIED, OUTSIDE, Schedule, overlap, pieces

# By (bank, layer): runs of tokens with the pass that they are held at, oldest first, and how many
# of the latest tokens are kept; None: all.
Books: TypeAlias = dict[tuple[int, int], tuple[list[tuple[range, int]], int | None]]


def at_depth(model: SequenceModel, state: State) -> State:
    """A state for a model that makes another number of passes than the one that left it.

    >>> import torch
    >>> from staircase_attention import CoreConfig, Ladder
    >>> core = CoreConfig(width=16, num_layers=2, num_heads=2)
    >>> model = SequenceModel(vocab_size=10, core=core, schedule=Ladder(num_passes=4, span=8))
    >>> less = model.with_schedule(Ladder(num_passes=2, span=8))
    >>> tokens = torch.zeros(1, 7, dtype=torch.int64)
    >>> state = at_depth(less, model(tokens)[1])
    >>> torch.equal(less(tokens, state)[0], less(tokens, less(tokens)[1])[0])
    True
    """
    signature = model.signature
    if state.model == signature:
        return state
    number = passes_of(state)
    before = model.schedule.with_passes(1 if number is None else number)
    if state.model != {**signature, "schedule": before.to_dict()}:
        # Of a model that differs in more, which refuses it.
        return state
    converted = (_converted(stream, before, model) for stream in state.streams)
    streams = [stream for stream in converted if stream is not None]
    if len(streams) < len(state.streams):
        return model.initial_state(state.batch_size)
    return replace(state, model=signature, streams=tuple(streams))


def passes_of(state: State | None) -> int | None:
    """The passes of the model that left a state; None where its schedule has no such number."""
    return None if state is None else state.model["schedule"].get("num_passes")


@contextmanager
def in_passes_of(model: object, state: object) -> Iterator[None]:
    """Let a model make as many passes as the one that left a state; an LSTM is left as it is.

    Unlike `with_schedule` it changes the model itself: what wraps or shards it stays in effect.
    """
    number = passes_of(state) if isinstance(state, State) else None
    if number is None or not isinstance(model, SequenceModel):
        yield
        return
    usual, model.schedule = model.schedule, model.schedule.with_passes(number)
    try:
        yield
    finally:
        model.schedule = usual


def _converted(stream: Stream, before: Schedule, model: SequenceModel) -> Stream | None:
    """A stream as another timetable continues it; None: it cannot, and the stream restarts."""
    after, num_layers, end = model.schedule, model.config.num_layers, stream.position
    most_passes = max(getattr(schedule, "num_passes", 1) for schedule in (before, after))
    own = {key: held for key, held in stream.banks.items() if key[0] != OUTSIDE}
    longest = max((held.num_tokens for held in own.values()), default=0)
    # Older tokens are in no bank, before or after.
    reach = max(longest, after.period * most_passes)
    tokens = range(max(0, end - reach) // after.period * after.period, end)
    wanted, kept = _follow(after, tokens, num_layers)
    # A Cached Staircase with as many passes as chunks has no cache, which any other needs.
    if min(stream.starts) < end and bool(kept) != bool(stream.cached):
        return None
    found = _found(stream, before, tokens, num_layers)
    # Layers outside of the recurrence make one pass at any depth, and reach as far as it does.
    span = model.outside_span or after.default_max_distance
    outside = {key: held for key, held in stream.banks.items() if key[0] == OUTSIDE and span > 1}
    banks = {key: latest([held], span - 1) for key, held in outside.items()}
    for (number, layer), (runs, retained) in wanted.items():
        parts: list[KeysValues] = []
        for run, at in reversed(runs):
            there = {made: part for made, part in found[layer, run].items() if made <= at}
            if not there:
                break
            parts.insert(0, there[max(there)])
            # Keys are neighbours in time: nothing lies beyond a gap.
            if parts[0].num_tokens < len(run):
                break
        num_tokens = sum(part.num_tokens for part in parts)
        if num_tokens:
            banks[number, layer] = latest(parts, num_tokens if retained is None else retained)
    for number in {number for number, _ in wanted}:
        # What a pass enters with, or what the deepest one did.
        carried = [bank for bank, layer in own if layer == CARRIED and bank <= number]
        if carried:
            banks[number, CARRIED] = own[max(carried), CARRIED]
    cached = overlap(stream.cached, kept)
    cache = tuple(held.parts(places_among(stream.cached, cached)) for held in stream.cache)
    # Kernels and states take tensors of their own, not parts of others.
    return replace(stream, banks=banks, cache=cache, cached=cached).map(compact)


def _found(
    stream: Stream, schedule: Schedule, tokens: range, num_layers: int
) -> dict[tuple[int, range], dict[int, KeysValues]]:
    """By layer and run of tokens: what they left at each pass."""
    found: dict[tuple[int, range], dict[int, KeysValues]] = defaultdict(dict)
    books, _ = _follow(schedule, tokens, num_layers)
    for (number, layer), (runs, _) in books.items():
        if (bank := stream.banks.get((number, layer))) is None:
            continue
        start = stream.position - bank.num_tokens
        for run, at in runs:
            if run.stop > start:
                part = bank.part(max(0, run.start - start), run.stop - start)
                found[layer, run][at] = part
    for layer, held in enumerate(stream.cache):
        for chunk in pieces(tokens, schedule.chunk_length):
            if overlap(chunk[1:], stream.cached) == chunk[1:]:
                # What is cached is what a further pass would begin with.
                part = held.parts(places_among(stream.cached, chunk[1:]))
                found[layer, chunk[1]][getattr(schedule, "num_passes", 0) + 1] = part
    return found


def _follow(schedule: Schedule, tokens: range, num_layers: int) -> tuple[Books, tuple[range, ...]]:
    """What each bank holds after these tokens, and what the cache does."""
    banks: Books = {}
    kept: tuple[range, ...] = ()
    for step in schedule.steps(tokens, num_layers=num_layers, order="window"):
        kept = step.kept
        for layer in step.layers:
            runs, _ = banks.pop((step.bank, layer), ([], None))
            runs = [*runs, *((cell.tokens, cell.pass_number) for cell in step.cells)]
            # Also without keys: what a lagging pass carries on.
            if step.retained != 0 or step.lags:
                banks[step.bank, layer] = runs, step.retained
    return banks, kept
