"""A buffered cache is a joined one: what is read, what a state gets, and all gradients."""

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, small
from staircase_attention.engine.fused.buffer import Buffer, Lent, Place, load, read, write
from staircase_attention.engine.fused.cache import BufferedCache
from staircase_attention.layers import JoinedCache, KeysValues

SIZE = 2


def pairs(num_pairs, num_tokens, *, seed, dtype=torch.float64, tracked=True):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_pairs, 2, 1, 1, num_tokens, SIZE)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return [KeysValues(*(part.clone().requires_grad_(tracked) for part in one)) for one in drawn]


def tensors(held):
    return [part for pair in held for part in pair]


def buffered(loaded, tokens, *, num_new, dtype=torch.float64):
    tap = torch.zeros((), requires_grad=True)
    return BufferedCache(loaded, tokens, num_new=num_new, dtype=dtype, tap=tap)


@st.composite
def histories(draw):
    """What happens to a cache: reads, tokens that come, tokens that are forgotten."""
    first, num_loaded = draw(small(0, 3)), draw(small(0, 4))
    start, stop = first, first + num_loaded
    events = []
    for _ in range(draw(small(1, 8))):
        kind = draw(st.sampled_from(["read", "remember", "remember", "forget"]))
        if kind == "remember":
            stop += draw(small(1, 3))
            events.append((kind, stop))
        elif kind == "forget":
            start = draw(small(start, stop))
            events.append((kind, start))
        else:
            oldest = draw(small(max(start - 1, 0), stop))
            events.append((kind, range(oldest, draw(small(oldest, stop)))))
    return range(first, first + num_loaded), events


def follow(cache, events, new):
    """All that was read on the way, and what is held at the end."""
    seen = []
    for kind, what in events:
        if kind == "remember":
            cache.remember(new.pop(0), what)
        elif kind == "forget":
            cache.forget_before(what)
        elif len(what):
            seen += [piece for layer in range(2) for piece in cache.part(layer, what)]
    seen = [one.tracked() if isinstance(one, Lent) else one for one in seen]
    return tensors(seen), tensors(cache.held())


@settings(max_examples=300)
@given(
    history=histories(),
    has_state=st.booleans(),
    num_pairs=small(1, 2),
    tracked=st.booleans(),
)
def test_any_history_gives_what_joining_gives(history, has_state, num_pairs, tracked):
    tokens, events = history
    # A state may hold pairs of no tokens, as when all rows began anew.
    has_state = has_state or len(tokens) > 0
    loaded = pairs(num_pairs, len(tokens), seed=1, tracked=tracked) if has_state else []
    stops = [tokens.stop, *(what for kind, what in events if kind == "remember")]
    sizes = [after - before for before, after in pairwise(stops)]
    new = [pairs(num_pairs, size, seed=2 + place) for place, size in enumerate(sizes)]
    given_pairs = [*loaded, *(pair for one in new for pair in one)]
    sources = [part for part in tensors(given_pairs) if part.requires_grad]
    outcomes = []
    for cache in (JoinedCache(loaded, tokens), buffered(loaded, tokens, num_new=sum(sizes))):
        seen, held = follow(cache, events, list(new))
        total = sum((one.sin().sum() for one in (*seen, *held, *held)), torch.zeros(()))
        total = total + sum(one.sum() for one in sources)
        gradients = torch.autograd.grad(total, sources) if sources else []
        outcomes.append([*seen, *held, *gradients])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_only_what_a_pass_asks_for_is_in_its_gradients():
    loaded, new = pairs(2, 3, seed=1), pairs(2, 2, seed=2)
    cache = buffered(loaded, range(3), num_new=2)
    cache.remember(new, 5)
    (first,), (second,) = (cache.part(layer, range(1, 5)) for layer in range(2))
    one, other = first.tracked(), second.tracked()
    sources = tensors([*loaded, *new])

    def gradients(total, asked):
        return torch.autograd.grad(total, asked, retain_graph=True, allow_unused=True)

    found = gradients(one.keys.sum() + 2 * one.values.sum(), sources)
    # Neither a pass that asks for less nor one over another part leaves anything to the next.
    gradients(other.values.sum(), [new[1].values])
    again = gradients(one.keys.sum() + 2 * one.values.sum(), sources)
    for twice in (found, again):
        assert torch.equal(twice[0][0, 0, :, 0], torch.tensor([0.0, 1.0, 1.0]).double())
        assert (twice[1][:, :, 1:] == 2).all()
        assert (twice[4] == 1).all()
        assert (twice[5] == 2).all()
        assert not any(part.any() for part in (*twice[2:4], *twice[6:]) if part is not None)


def test_tokens_of_a_detached_state_get_no_gradients_and_no_room_for_them(monkeypatch):
    rooms = []
    make = torch.Tensor.new_zeros
    monkeypatch.setattr(
        torch.Tensor, "new_zeros", lambda *a, **kw: rooms.append(make(*a, **kw)) or rooms[-1]
    )
    loaded, new = pairs(1, 6, seed=1, tracked=False), pairs(1, 2, seed=2)
    cache = buffered(loaded, range(6), num_new=2)
    (before,) = cache.part(0, range(2, 6))
    assert before.place.gradients is None
    cache.remember(new, 8)
    (lent,) = cache.part(0, range(2, 8))
    total = sum(part.sum() for part in lent.tracked())
    total.backward()
    assert [room.shape[3] for room in rooms] == [2]
    assert (new[0].keys.grad == 1).all()


@pytest.mark.parametrize("num_kept", [0, 1])
def test_a_state_keeps_its_numbers_where_others_join(num_kept):
    loaded = pairs(1, 2, seed=1, dtype=torch.float32)
    new = pairs(1, 2, seed=2, dtype=torch.bfloat16)
    outcomes = []
    caches = (
        JoinedCache(loaded, range(2)),
        buffered(loaded, range(2), num_new=2, dtype=torch.bfloat16),
    )
    for cache in caches:
        cache.remember(new, 4)
        cache.forget_before(2 - num_kept)
        held = tensors(cache.held())
        sources = tensors([*loaded, *new])
        gradients = torch.autograd.grad(sum(one.square().sum() for one in held), sources)
        outcomes.append([*held, *gradients])
    for one, other in zip(*outcomes, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert outcomes[0][0].dtype == torch.float32


def test_nothing_is_kept_alive_by_itself():
    buffer = Buffer(pairs(1, 2, seed=1), capacity=4, dtype=torch.float64)
    handle = load(buffer, torch.zeros((), requires_grad=True), pairs(1, 2, seed=1))
    handle = write(buffer, 2, handle, pairs(1, 2, seed=2))
    (copy,) = read([Place(buffer, 0, 0, 4)], handle)
    copy.keys.sum().backward()
    alive = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer, handle, copy
        assert alive() is None
    finally:
        gc.enable()
