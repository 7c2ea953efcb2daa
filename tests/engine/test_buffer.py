"""A buffered cache is a joined one: what is read, what a state gets, and all gradients."""

import gc
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, small
from staircase_attention.engine.fused.cache import (
    Buffer,
    BufferedCache,
    BufferSlot,
    Lent,
    read,
    write,
)
from staircase_attention.layers import Cache, KeysValues, join
from staircase_attention.schedules import joined

SIZE = 2


def pairs(num_pairs, num_tokens, *, seed, dtype=torch.float64, tracked=True):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_pairs, 2, 1, 1, num_tokens, SIZE)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return [KeysValues(*(part.clone().requires_grad_(tracked) for part in one)) for one in drawn]


def tensors(held):
    return [part for pair in held for part in pair]


def buffered(loaded, positions, *, num_new, dtype=torch.float64):
    tap = torch.zeros((), requires_grad=True)
    return BufferedCache(loaded, positions, num_new=num_new, dtype=dtype, tap=tap)


@st.composite
def histories(draw):
    """What happens to a cache: reads, tokens that are added, and that are dropped anywhere."""
    first, num_loaded = draw(small(0, 3)), draw(small(0, 4))
    stop = first + num_loaded
    events = []
    for _ in range(draw(small(1, 8))):
        kind = draw(st.sampled_from(["read", "add", "add", "keep"]))
        if kind == "add":
            start = stop + draw(small(0, 2))
            stop = start + draw(small(1, 3))
            events.append((kind, range(start, stop)))
        else:
            ends = sorted(draw(small(0, stop)) for _ in range(4))
            parts = joined([range(*ends[:2]), range(*ends[2:])])
            events.append((kind, parts))
    return range(first, first + num_loaded), events


def follow(cache, events, new):
    """All that was read on the way, and what is held at the end."""
    seen = []
    for kind, what in events:
        if kind == "add":
            cache.add(new.pop(0), what)
        elif kind == "keep":
            cache.keep(what)
        else:
            for layer in range(2):
                pieces = cache.part(layer, what)
                copies = [one.tracked() if isinstance(one, Lent) else one for one in pieces]
                seen += [join(copies)] if copies else []
    return tensors(seen), tensors(cache.held())


@settings(max_examples=150)
@given(
    history=histories(),
    has_state=st.booleans(),
    num_pairs=small(1, 2),
    tracked=st.booleans(),
)
def test_any_history_gives_what_joining_gives(history, has_state, num_pairs, tracked):
    tokens, events = history
    # A state may hold pairs of no tokens, as when all rows were reset.
    has_state = has_state or len(tokens) > 0
    loaded = pairs(num_pairs, len(tokens), seed=1, tracked=tracked) if has_state else []
    sizes = [len(what) for kind, what in events if kind == "add"]
    new = [pairs(num_pairs, size, seed=2 + place) for place, size in enumerate(sizes)]
    given_pairs = [*loaded, *(pair for one in new for pair in one)]
    sources = [part for part in tensors(given_pairs) if part.requires_grad]
    outcomes = []
    positions = joined([tokens])
    for cache in (Cache(loaded, positions), buffered(loaded, positions, num_new=sum(sizes))):
        seen, held = follow(cache, events, list(new))
        total = sum((one.sin().sum() for one in (*seen, *held, *held)), torch.zeros(()))
        total = total + sum(one.sum() for one in sources)
        gradients = torch.autograd.grad(total, sources) if sources else []
        outcomes.append([*seen, *held, *gradients])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_tokens_of_a_detached_state_get_no_gradients_and_no_room_for_them(monkeypatch):
    rooms = []
    make = torch.Tensor.new_zeros
    monkeypatch.setattr(
        torch.Tensor, "new_zeros", lambda *a, **kw: rooms.append(make(*a, **kw)) or rooms[-1]
    )
    loaded, new = pairs(1, 6, seed=1, tracked=False), pairs(1, 2, seed=2)
    cache = buffered(loaded, (range(6),), num_new=2)
    (before,) = cache.part(0, [range(2, 6)])
    assert before.slot.buffer.gradients(before.slot) is None
    cache.add(new, range(6, 8))
    (lent,) = cache.part(0, [range(2, 8)])
    total = sum(part.sum() for part in lent.tracked())
    total.backward()
    assert [room.shape[3] for room in rooms] == [2]
    assert (new[0].keys.grad == 1).all()


def test_nothing_is_kept_alive_by_itself():
    buffer = Buffer(pairs(1, 2, seed=1), capacity=4, dtype=torch.float64)
    handle = write(buffer, 0, torch.zeros((), requires_grad=True), pairs(1, 2, seed=1))
    handle = write(buffer, 2, handle, pairs(1, 2, seed=2))
    (copy,) = read([BufferSlot(buffer, 0, 0, 4)], handle)
    copy.keys.sum().backward()
    alive = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer, handle, copy
        assert alive() is None
    finally:
        gc.enable()
