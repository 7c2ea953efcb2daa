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


@given(start=position_sets(), data=st.data())
def test_any_history_leaves_what_a_set_of_positions_would_hold(start, data):
    cache, held, stop = Cache([pair(start)], start), set(flat(start)), 20
    for _ in range(data.draw(small(1, 5))):
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
