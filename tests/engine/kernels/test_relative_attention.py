"""The kernels compute the reference's function: outputs and gradients, in odd shapes too.

A single tile of pairs and several tiles are served by kernels of their own. The largest single tile
is 32 x 32 in float32 and 64 x 64 in bfloat16 (16 x 16 in float32 for heads of 128).
"""

from dataclasses import replace

import pytest
import torch
from attention_cases import (
    CLOSE,
    DEVICE,
    NAMES,
    Case,
    assert_equals_reference,
    assert_near,
    cases,
    new_sums,
    results,
)
from hypothesis import given, settings
from torch import Tensor

from staircase_attention.engine.kernels import relative_attention, relative_several, single_query

BF16 = torch.bfloat16
GROUPED = Case(20, 50, 30, span=45, num_rows=None, first_visible=(0, 20), num_heads=4, group=2)
UNEVEN = Case(33, 50, 17, span=45, num_rows=40, first_visible=(0, 20), num_heads=9)
"""Tiles that are not full: of queries, of keys, and of batch rows and heads."""
SINGLE = Case(20, 30, 10, num_rows=17, num_heads=2)
SEVERAL = Case(34, 40, 6, span=35, num_rows=30, num_heads=2)


@settings(max_examples=10)
@given(case=cases())
def test_drawn_shapes_equal_the_reference(case):
    assert_equals_reference(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(16, 16, 0, num_heads=2), id="one square tile"),
        pytest.param(Case(5, 30, 25, num_rows=7, num_heads=2), id="one tile, cached keys, clipped"),
        pytest.param(Case(20, 20, 0, num_rows=1), id="one vector for all distances"),
        pytest.param(Case(3, 1, 1), id="one key"),
        pytest.param(Case(9, 12, 3, first_visible=(12, 12)), id="nothing in sight, one tile"),
        pytest.param(Case(40, 3, 0, span=1), id="nothing in sight, several tiles"),
        pytest.param(Case(34, 100, 66, span=33, num_rows=33), id="a window, tiles out of sight"),
        pytest.param(Case(50, 4, 4, span=9), id="queries that leave the keys behind"),
        pytest.param(Case(34, 50, 16, first_visible=(35, 50)), id="rows that start late"),
        pytest.param(Case(64, 64, 0, dtype=BF16, size=64), id="one tile of 64"),
        pytest.param(Case(65, 70, 5, dtype=BF16, size=128), id="several tiles of 64"),
        pytest.param(Case(7, 130, 123, dtype=BF16, size=64), id="few queries"),
        pytest.param(Case(1, 1, 0), id="itself"),
        pytest.param(Case(1, 70, 70, span=60, num_rows=40), id="one query, several tiles"),
    ],
)
def test_shapes_of_models_equal_the_reference(case):
    assert_equals_reference(case)


@pytest.mark.parametrize(
    ("case", "num_sums"),
    [
        (UNEVEN, 40),
        (replace(UNEVEN, dtype=BF16, size=32, num_queries=66, num_heads=2), 40),
        (SINGLE, 1),
        (SEVERAL, 1),
    ],
)
def test_any_number_of_programs_may_sum_the_table(case, num_sums, monkeypatch):
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", num_sums)
    assert_equals_reference(case)


@pytest.mark.parametrize("case", [SINGLE, SEVERAL, replace(SEVERAL, dtype=BF16), GROUPED])
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    inputs = case.inputs()
    expected = results(case.call(inputs))
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, make=make, **kw: make(*a, **kw).fill_(7.0))
    for found, before in zip(results(case.call(inputs)), expected, strict=True):
        assert torch.equal(found, before)


def test_scores_too_large_for_float16_are_finite():
    """Scores by position are kept in it; what is out of sight is infinite there."""
    case = Case(70, 70, 0, num_rows=70, dtype=BF16)
    queries, keys, values, table = case.inputs()
    queries, table = queries.abs() * 300, table.abs() * 300
    for sign in (1, -1):
        call = case.call([queries, keys, values, sign * table])
        out, logsumexp = relative_attention.forward(call)
        assert logsumexp.isfinite().all()
        assert (out[:, :, 0] == values[:, :, 0]).all()
        assert out.isfinite().all()


def off_by_one(tensor: Tensor) -> Tensor:
    """The same numbers, at addresses that are no multiples of 16 bytes."""
    room = torch.empty((*tensor.shape[:-1], tensor.shape[-1] + 1), dtype=tensor.dtype)
    return room.to(tensor.device)[..., 1:].copy_(tensor)


def by_columns(tensor: Tensor) -> Tensor:
    """The same numbers, with vectors that are not contiguous."""
    return tensor.mT.contiguous().mT


@pytest.mark.parametrize(
    ("case", "place"),
    [
        (replace(SEVERAL, num_heads=1), off_by_one),
        (Case(20, 70, 50, dtype=BF16), off_by_one),
        (SEVERAL, by_columns),
    ],
)
def test_tensors_may_lie_anywhere(case, place):
    """Also a gradient that is one tensor for all heads, in places that copies cannot begin at."""
    inputs = case.inputs()
    repeated = (1, case.num_heads, 1, 1)
    expected = results(case.call(inputs), lambda out: out[:, :1].cos().repeat(repeated))
    moved = case.call([place(one) for one in inputs])
    found = results(moved, lambda out: place(out[:, :1].cos()).expand_as(out))
    for name, one, other in zip(NAMES, found, expected, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize(
    ("case", "num_past", "num_wanted", "adds"),
    [
        pytest.param(Case(1, 6, 5), 5, 5, False, id="one query"),
        pytest.param(Case(1, 70, 69, dtype=BF16), 69, 2, True, id="one query, some are added to"),
        pytest.param(Case(20, 29, 9), 9, None, False, id="one tile, none"),
        pytest.param(Case(20, 29, 9), 9, 4, True, id="one tile, some are added to"),
        pytest.param(Case(20, 29, 9, dtype=BF16), 9, 9, False, id="one tile, bfloat16"),
        pytest.param(Case(40, 110, 70, span=60), 70, 37, True, id="several tiles, some"),
        pytest.param(Case(40, 81, 41, dtype=BF16), 41, 0, True, id="several tiles, room for none"),
        pytest.param(Case(34, 37, 3, dtype=BF16), 3, 3, False, id="a short past"),
        pytest.param(Case(40, 80, 40, num_rows=50, dtype=BF16), 0, None, False, id="no past"),
        pytest.param(Case(20, 40, 20, num_rows=50), 40, 40, False, id="nothing but a past"),
        pytest.param(GROUPED, 30, 11, True, id="groups of heads, some"),
        pytest.param(replace(GROUPED, dtype=BF16), 30, 30, False, id="groups of heads, all"),
        pytest.param(GROUPED, 30, None, False, id="groups of heads, none"),
    ],
)
def test_a_past_that_lies_elsewhere_comes_first(case, num_past, num_wanted, adds):
    """Its gradients are written, or added, to those of its last tokens that there is room for."""
    inputs = case.inputs()
    num_heads = case.num_heads // case.group
    room = torch.full((2, 2, num_heads, num_past + 3, 16), 0.5, device=DEVICE).to(case.dtype)
    d_past = None if num_wanted is None else tuple(room[:, :, :, 2 : 2 + num_wanted])
    found = results(case.call(inputs, num_past=num_past), past=d_past, adds_past=adds)
    expected = case.expected(inputs, found[0].cos())
    whole = expected[2:4]
    expected[2:4] = [one[:, :, num_past:] for one in whole]
    close = CLOSE[case.dtype]
    for name, one, other in zip(NAMES[: len(found)], found, expected, strict=True):
        assert_near(one, other, name, close)
    first, stop = num_past - (num_wanted or 0), 2 + (num_wanted or 0)
    for one, around in zip(whole, room, strict=True):
        wanted = one[:, :, first:num_past] + (0.5 if adds else 0)
        assert_near(around[:, :, 2:stop], wanted, "past", close)
        # What lies around them is left alone.
        assert (around[:, :, :2] == 0.5).all()
        assert (around[:, :, stop:] == 0.5).all()


@pytest.mark.parametrize("case", [SINGLE, SEVERAL])
def test_gradients_go_where_they_are_asked_and_table_sums_add_up(case):
    call = case.call(case.inputs())
    sums = new_sums(call.table)
    _, *alone, once = results(call, table_sums=sums)
    # No address in it is a multiple of 16 bytes.
    room = torch.full((2, case.num_keys, 3, 2, 17), 7.0, device=DEVICE)[..., 1:]
    first = case.num_keys - case.num_queries
    queries, keys, values = (part.transpose(1, 2) for part in room.unbind(2))
    asked = {"queries": queries[:, :, first:], "keys": keys, "values": values}
    *_, twice = results(call, table_sums=sums, **asked)
    assert (room[:, :first, 0] == 7).all()
    for one, other in zip(alone, asked.values(), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize("case", [replace(one, size=64) for one in (SINGLE, SEVERAL, GROUPED)])
def test_dropout_drops_the_same_weights_forward_and_backward(case):
    queries, keys, _, *table = inputs = case.inputs()
    dropped = {"dropout": 0.25, "seed": torch.tensor([2**40 + 5], device=DEVICE)}
    kept, seen = case.kept_weights(queries, keys, *table, **dropped), case.seen
    assert not kept[~seen].any()
    assert kept[seen].float().mean().item() == pytest.approx(0.75, abs=0.06)
    assert not torch.equal(kept[0, 0], kept[0, 1])
    for num_past in (0, 5):
        found = results(case.call(inputs, num_past=num_past, **dropped))
        expected = case.expected(inputs, found[0].cos(), kept)
        expected[2:4] = [one[:, :, num_past:] for one in expected[2:4]]
        for name, one, other in zip(NAMES[: len(found)], found, expected, strict=True):
            assert_near(one, other, name, 1e-5)


def test_single_queries_drop_what_the_kernels_for_many_queries_drop():
    case = Case(2, 20, 20, size=32, num_heads=2)
    queries, *others = case.inputs()
    dropped = {"dropout": 0.5, "seed": torch.tensor([9], device=DEVICE)}
    both, first = (
        relative_attention.forward(case.call([some, *others], **dropped))[0]
        for some in (queries, queries[:, :, :1])
    )
    torch.testing.assert_close(first, both[:, :, :1])


@pytest.mark.parametrize("num_past", [0, 20])
def test_many_queries_come_in_pieces(monkeypatch, num_past):
    case = Case(129, 149, 20, span=90, num_rows=40, first_visible=(0, 65))
    call = case.call(case.inputs(), num_past=num_past)
    whole = relative_attention.forward(call)
    sizes = []
    for module in (relative_several, single_query):

        def watched(call, *arguments, launch=module.forward):
            sizes.append(call.num_queries)
            launch(call, *arguments)

        monkeypatch.setattr(module, "forward", watched)
    monkeypatch.setattr(relative_attention, "MOST_SCORES", 2 * 64 * 149)
    for one, other in zip(relative_attention.forward(call), whole, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)
    assert sizes == [64, 64, 1]
