"""A cache holds what was added and kept, and is read by position."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from building import small
from staircase_attention.layers import Cache, KeysValues
from staircase_attention.schedules import joined, num_positions, overlap


@st.composite
def position_sets(draw: st.DrawFn) -> tuple[range, ...]:
    """Some of the positions 0 to 19, as ranges."""
    chosen = sorted(draw(st.sets(small(0, 19))))
    return joined(range(position, position + 1) for position in chosen)


def flat(ranges):
    return [position for part in ranges for position in part]


def pair(positions):
    """Keys that are their own positions."""
    keys = torch.tensor(flat(positions), dtype=torch.float64).view(1, 1, -1, 1)
    return KeysValues(keys, -keys)


@given(one=position_sets(), other=position_sets())
def test_ranges_overlap_as_sets_do(one, other):
    both = overlap(one, other)
    assert flat(both) == sorted(set(flat(one)) & set(flat(other)))
    assert joined(both) == both
    assert num_positions(both) == len(flat(both))


@given(start=position_sets(), tracked=st.booleans(), data=st.data())
def test_any_history_leaves_what_a_set_of_positions_would_hold(start, tracked, data):
    with torch.set_grad_enabled(tracked):
        cache = Cache([pair(start)], start)
    held, stop, earlier = set(flat(start)), 20, []
    for _ in range(data.draw(small(1, 8))):
        if data.draw(st.booleans()):
            new = range(stop + data.draw(small(0, 2)), stop + 4)
            cache.add([pair([new])], new)
            held, stop = held | set(new), new.stop
        else:
            kept = (*data.draw(position_sets()), range(20 + data.draw(small(0, 9)), 99))
            cache.keep(kept)
            held &= set(flat(kept))
        asked = (*data.draw(position_sets()), range(20, 20 + data.draw(small(0, 9))))
        pieces = cache.part(0, asked)
        found = [key for piece in pieces for key in piece.keys.flatten().tolist()]
        assert found == sorted(held & set(flat(asked)))
        assert flat(cache.positions) == sorted(held)
        (whole,) = cache.held()
        assert whole.values.flatten().tolist() == [-position for position in sorted(held)]
        # What was read before is never overwritten.
        earlier.append((whole.keys, whole.keys.clone()))
        assert all(keys.equal(then) for keys, then in earlier)


def test_without_gradients_a_step_copies_what_it_adds(monkeypatch):
    copied = []
    copy = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda to, one: copied.append(one.numel()) or copy(to, one)
    )
    with torch.no_grad():
        growing = Cache([], ())
        window = Cache([pair([range(32)])], (range(32),))
        for start in range(32, 32 + 256, 4):
            for cache in (growing, window):
                cache.add([pair([range(start, start + 4)])], range(start, start + 4))
            window.keep((range(start + 4 - 32, start + 4),))
    assert growing.held()[0].num_tokens == 256
    assert window.held()[0].num_tokens == 32
    # Keys and values of 256 tokens, twice: written, and moved to larger rooms now and then.
    assert sum(copied) <= 2 * 2 * 3 * 256
