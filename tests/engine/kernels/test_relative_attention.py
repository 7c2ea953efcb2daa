"""The kernels compute the reference's function: outputs and gradients, in odd shapes too.

One query, a single tile of pairs and several tiles are served by kernels of their own. The largest
single tile is 32 x 32 in float32 and 64 x 64 in bfloat16 (16 x 16 in float32 for heads of 128).
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
    results,
)
from hypothesis import given, settings
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from staircase_attention.engine.kernels import relative_attention, relative_several, single_query

BF16 = torch.bfloat16
BLIND = Case(1, 70, 70, first_visible=(3, 70), num_rows=40, num_heads=2)
UNEVEN = Case(33, 50, 17, span=45, num_rows=40, first_visible=(0, 20), num_heads=9)
"""Tiles that are not full: of queries, of keys, and of batch rows and heads."""
ONE = Case(1, 150, 150, span=120, num_rows=37, first_visible=(0, 50))
SINGLE = Case(20, 30, 10, num_rows=17, num_heads=2)
SEVERAL = Case(34, 40, 6, span=35, num_rows=30, num_heads=2)


@settings(max_examples=10)
@given(case=cases())
def test_drawn_shapes_equal_the_reference(case):
    assert_equals_reference(case)


@settings(max_examples=12)
@given(case=cases(max_queries=1))
def test_drawn_single_queries_equal_the_reference(case):
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
        pytest.param(Case(50, 50, 0, span=3), id="a narrow window"),
        pytest.param(Case(50, 4, 4, span=9), id="queries that leave the keys behind"),
        pytest.param(Case(34, 50, 16, first_visible=(35, 50)), id="rows that start late"),
        pytest.param(Case(64, 64, 0, dtype=BF16, size=64), id="one tile of 64"),
        pytest.param(Case(65, 70, 5, dtype=BF16, size=128), id="several tiles of 64"),
        pytest.param(Case(7, 130, 123, dtype=BF16, size=64), id="few queries"),
        pytest.param(Case(1, 1, 0), id="itself"),
        pytest.param(Case(1, 1, 1, num_rows=1), id="one query, one key"),
        pytest.param(Case(1, 150, 150, num_rows=33), id="a table cut short between blocks"),
        pytest.param(Case(1, 9, 80, num_rows=50), id="keys beyond the table"),
        pytest.param(Case(1, 150, 150, span=90, num_rows=30), id="a window beyond the table"),
        pytest.param(Case(1, 90, 40), id="keys to come"),
        pytest.param(Case(1, 9, 80, span=5), id="all keys too far"),
        pytest.param(BLIND, id="a row that sees nothing"),
        pytest.param(Case(1, 5, 5, num_heads=17), id="many heads"),
        pytest.param(Case(1, 70, 70, size=128, dtype=BF16), id="one query, wide, bfloat16"),
        pytest.param(Case(1, 40, 40, size=128), id="one query, wide, float32"),
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
        (Case(1, 20, 20, num_rows=9, num_heads=18), 1),
    ],
)
def test_any_number_of_programs_may_sum_the_table(case, num_sums, monkeypatch):
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", num_sums)
    assert_equals_reference(case)


@pytest.mark.parametrize("case", [ONE, BLIND, SINGLE, SEVERAL, replace(SEVERAL, dtype=BF16)])
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    inputs = case.inputs()
    expected = results(case, inputs)
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, make=make, **kw: make(*a, **kw).fill_(7.0))
    for found, before in zip(results(case, inputs), expected, strict=True):
        assert torch.equal(found, before)


def test_what_a_single_query_does_not_see_is_not_read():
    inputs = ONE.inputs()
    expected = results(ONE, inputs)
    hidden = ~ONE.seen.transpose(2, 3)
    for tensor in inputs[1:3]:
        tensor.masked_fill_(hidden, torch.nan)
    for found, before in zip(results(ONE, inputs), expected, strict=True):
        assert torch.equal(found, before)


def test_scores_too_large_for_float16_are_finite():
    """Scores by position are kept in it; what is out of sight is infinite there."""
    case = Case(70, 70, 0, num_rows=70, dtype=BF16)
    queries, keys, values, table = case.inputs()
    queries, table = queries.abs() * 300, table.abs() * 300
    for sign in (1, -1):
        out, logsumexp = relative_attention.forward(
            queries, keys, values, sign * table, **case.options
        )
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
        (Case(1, 30, 30, num_heads=2, size=32), by_columns),
    ],
)
def test_tensors_may_lie_anywhere(case, place):
    """Also a gradient that is one tensor for all heads, in places that copies cannot begin at."""
    inputs = case.inputs()
    expected = results(case, inputs, lambda out: out[:, :1].cos().repeat(1, case.num_heads, 1, 1))
    moved = [place(one) for one in inputs]
    found = results(case, moved, lambda out: place(out[:, :1].cos()).expand_as(out))
    for name, one, other in zip(NAMES, found, expected, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize(
    ("case", "num_past", "num_wanted", "adds"),
    [
        pytest.param(Case(1, 6, 5), 5, 5, False, id="one query"),
        pytest.param(Case(1, 6, 5, dtype=BF16), 5, 2, True, id="one query, some are added to"),
        pytest.param(Case(20, 29, 9), 9, None, False, id="one tile, none"),
        pytest.param(Case(20, 29, 9), 9, 4, True, id="one tile, some are added to"),
        pytest.param(Case(20, 29, 9, dtype=BF16), 9, 9, False, id="one tile, bfloat16"),
        pytest.param(Case(40, 110, 70, span=60), 70, 37, True, id="several tiles, some"),
        pytest.param(Case(40, 81, 41, dtype=BF16), 41, 0, True, id="several tiles, room for none"),
        pytest.param(Case(34, 37, 3, dtype=BF16), 3, 3, False, id="a short past"),
        pytest.param(Case(40, 80, 40, num_rows=50, dtype=BF16), 0, 0, False, id="no past"),
        pytest.param(Case(20, 40, 20, num_rows=50), 40, 40, False, id="nothing but a past"),
    ],
)
def test_a_past_that_lies_elsewhere_comes_first(case, num_past, num_wanted, adds):
    """Its gradients are written, or added, to those of its last tokens that there is room for."""
    queries, keys, values, table = inputs = case.inputs()
    parts = [(part[:, :, :num_past], part[:, :, num_past:]) for part in (keys, values)]
    past, own = zip(*parts, strict=True)
    out, logsumexp = relative_attention.forward(queries, *own, table, past=past, **case.options)
    sums = relative_attention.new_table_sums(table)
    room = torch.full((2, 2, case.num_heads, num_past + 3, 16), 0.5, device=DEVICE).to(case.dtype)
    d_past = None if num_wanted is None else [part[:, :, 2 : 2 + num_wanted] for part in room]
    d_queries, *d_own = relative_attention.backward(
        out.cos(),
        queries,
        *own,
        table,
        out,
        logsumexp,
        table_sums=sums,
        past=past,
        d_past=d_past,
        adds_past=adds,
        **case.options,
    )
    expected = dict(zip(NAMES, case.expected(inputs, out.cos()), strict=True))
    close = CLOSE[case.dtype]
    assert_near(out, expected["out"], "out", close)
    assert_near(d_queries, expected["queries"], "queries", close)
    assert_near(sums.sum(0), expected["table"], "table", close)
    for name, one, around in zip(("keys", "values"), d_own, room, strict=True):
        assert_near(one, expected[name][:, :, num_past:], name, close)
        first, stop = num_past - (num_wanted or 0), 2 + (num_wanted or 0)
        whole = expected[name][:, :, first:num_past] + (0.5 if adds else 0)
        assert_near(around[:, :, 2:stop], whole, f"past {name}", close)
        # What lies around them is left alone.
        assert (around[:, :, :2] == 0.5).all()
        assert (around[:, :, stop:] == 0.5).all()


@pytest.mark.parametrize("case", [SINGLE, SEVERAL, Case(1, 30, 30, num_heads=2)])
def test_gradients_go_where_they_are_asked_and_table_sums_add_up(case):
    inputs = case.inputs()
    out, logsumexp = relative_attention.forward(*inputs, **case.options)
    assert out.transpose(1, 2).is_contiguous()
    sums = relative_attention.new_table_sums(inputs[-1])
    saved = (*inputs, out, logsumexp)
    alone = relative_attention.backward(out, *saved, **case.options, table_sums=sums)
    once = sums.sum(0)
    # No address in it is a multiple of 16 bytes.
    room = torch.full((2, case.num_keys, 3, 2, 17), 7.0, device=DEVICE)[..., 1:]
    first = case.num_keys - case.num_queries
    asked = [part.transpose(1, 2) for part in room.unbind(2)]
    names = ("d_queries", "d_keys", "d_values")
    asked[0] = asked[0][:, :, first:]
    relative_attention.backward(
        out, *saved, **case.options, table_sums=sums, **dict(zip(names, asked, strict=True))
    )
    assert (room[:, :first, 0] == 7).all()
    for one, other in zip(alone, asked, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(sums.sum(0), 2 * once)


def test_gradients_of_single_queries_in_float32_need_not_be_rounded():
    case = Case(1, 20, 20, dtype=BF16)
    inputs = case.inputs()
    out, logsumexp = relative_attention.forward(*inputs, **case.options)
    room = torch.full((2, 2, 1, 20, 16), torch.nan, device=DEVICE)
    relative_attention.backward(
        out.cos(),
        *inputs,
        out,
        logsumexp,
        **case.options,
        table_sums=relative_attention.new_table_sums(inputs[-1]),
        d_keys=room[0],
        d_values=room[1],
    )
    for one, other in zip(room, case.expected(inputs, out.cos())[2:4], strict=True):
        assert_near(one, other, "gradient", 1e-2)
        assert not torch.equal(one, one.bfloat16().float())


@pytest.mark.parametrize(
    "case",
    [replace(SINGLE, size=64), replace(SEVERAL, size=64), Case(1, 60, 60, span=50, size=64)],
)
def test_dropout_drops_the_same_weights_forward_and_backward(case):
    case = replace(case, num_heads=4 if case.num_queries == 1 else 2)
    queries, keys, values, table = inputs = case.inputs()
    dropped = {"dropout": 0.25, "seed": torch.tensor([2**40 + 5], device=DEVICE)}
    kept, seen = case.kept_weights(queries, keys, table, **dropped), case.seen
    assert not kept[~seen].any()
    assert kept[seen].float().mean().item() == pytest.approx(0.75, abs=0.06)
    assert not torch.equal(kept[0, 0], kept[0, 1])

    parts = [(each[:, :, :5], each[:, :, 5:]) for each in (keys, values)]
    past, own = zip(*parts, strict=True)
    for seen_as, options in (((keys, values), {}), (own, {"past": past})):
        options = {**case.options, **dropped, **options}
        out, logsumexp = relative_attention.forward(queries, *seen_as, table, **options)
        sums = relative_attention.new_table_sums(table)
        d_queries, *d_own = relative_attention.backward(
            out.cos(), queries, *seen_as, table, out, logsumexp, **options, table_sums=sums
        )
        expected = case.expected(inputs, out.cos(), kept)
        first = case.num_keys - seen_as[0].shape[2]
        expected[2:4] = [one[:, :, first:] for one in expected[2:4]]
        found = (out, d_queries, *d_own, sums.sum(0))
        for name, one, other in zip(NAMES, found, expected, strict=True):
            assert_near(one, other, name, 1e-5)


def test_single_queries_drop_what_the_kernels_for_many_queries_drop():
    queries, keys, values, table = Case(2, 20, 20, size=32, num_heads=2).inputs()
    options = {"first_query": 20, "dropout": 0.5, "seed": torch.tensor([9], device=DEVICE)}
    both = relative_attention.forward(queries, keys, values, table, **options)[0]
    first = relative_attention.forward(queries[:, :, :1], keys, values, table, **options)[0]
    torch.testing.assert_close(first, both[:, :, :1])


def test_checkpoints_drop_the_same_weights_again():
    case = Case(6, 6, 0)
    *inputs, table = (one.requires_grad_() for one in case.inputs())

    def run(*inputs: Tensor) -> Tensor:
        return relative_attention.relative_attention(
            *inputs, table=table, dropout=0.5, **case.options
        )

    torch.manual_seed(3)
    plain = run(*inputs)
    torch.manual_seed(3)
    again = checkpoint(run, *inputs, use_reentrant=False)
    assert torch.equal(plain, again)
    wanted = [*inputs, table]
    gradients = [torch.autograd.grad(out.square().sum(), wanted) for out in (plain, again)]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(plain, run(*inputs))


def test_a_table_in_float32_keeps_its_gradient_in_float32():
    case = Case(6, 6, 0, dtype=BF16)
    *inputs, table = case.inputs()
    table = table.float().requires_grad_()
    out = relative_attention.relative_attention(*inputs, table=table, **case.options)
    (d_table,) = torch.autograd.grad(out.float().sum(), table)
    assert out.dtype == BF16
    assert d_table.dtype == torch.float32
    assert not torch.equal(d_table, d_table.bfloat16().float())


def test_fits_knows_what_the_kernels_cannot_do():
    queries, *_ = Case(2, 2, 0).inputs()
    assert relative_attention.fits(queries)
    assert not relative_attention.fits(queries[..., :8])
    assert not relative_attention.fits(queries.double())


@pytest.mark.parametrize("num_past", [0, 20])
def test_many_queries_come_in_pieces(monkeypatch, num_past):
    case = Case(129, 149, 20, span=90, num_rows=40, first_visible=(0, 65))
    queries, keys, values, table = case.inputs()
    own = (keys[:, :, num_past:], values[:, :, num_past:])
    past = (keys[:, :, :num_past], values[:, :, :num_past]) if num_past else None
    whole = relative_attention.forward(queries, *own, table, past=past, **case.options)
    sizes = []
    for module in (relative_several, single_query):

        def watched(call, *arguments, launch=module.forward):
            sizes.append(call.num_queries)
            launch(call, *arguments)

        monkeypatch.setattr(module, "forward", watched)
    monkeypatch.setattr(relative_attention, "MOST_SCORES", 2 * 64 * 149)
    cut = relative_attention.forward(queries, *own, table, past=past, **case.options)
    for one, other in zip(cut, whole, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)
    assert sizes == [64, 64, 1]
