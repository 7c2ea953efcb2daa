"""Every back-end computes the reference's function: outputs and gradients, in odd shapes too."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from building import EXACT, small
from staircase_attention.attention import View, attend, reference

CPU = torch.device("cpu")


@st.composite
def placed(draw: st.DrawFn) -> tuple[range, list[range], tuple[int, int]]:
    """Positions of queries, of keys with gaps between them, and of two rows' starts."""
    position, keys = draw(small(0, 3)), []
    for _ in range(draw(small(0, 3))):
        keys.append(range(position, position + draw(small(1, 4))))
        position = keys[-1].stop + draw(small(0, 2))
    queries = range(position, position + draw(small(1, 7)))
    if draw(st.booleans()) or not keys:
        keys.append(queries)
    return queries, keys, (0, draw(small(0, queries.stop)))


@st.composite
def views(draw: st.DrawFn) -> View:
    queries, keys, starts = draw(placed())
    span = draw(st.none() | small(1, 12))
    return View.of(queries=queries, keys=keys, span=span, starts=starts, device=CPU)


@given(where=placed(), span=st.none() | small(1, 9))
def test_a_view_shows_the_keys_of_ones_own_stream_up_to_oneself_and_within_the_span(where, span):
    queries, keys, starts = where
    view = View.of(queries=queries, keys=keys, span=span, starts=starts, device=CPU)
    positions = [position for part in keys for position in part]
    distances = [[query - key for key in positions] for query in queries]
    assert view.distances.tolist() == distances
    hidden = [
        [
            [
                query < key or key < start or (span is not None and query - key >= span)
                for key in positions
            ]
            for query in queries
        ]
        for start in starts
    ]
    found = torch.zeros(()).bool() if view.hidden is None else view.hidden
    expected = torch.tensor(hidden).view(2, 1, len(queries), len(positions))
    assert torch.equal(found.expand_as(expected), expected)


def inputs(view: View, num_rows: int) -> list[torch.Tensor]:
    """Queries, keys, values and table, of which gradients are wanted."""
    generator = torch.Generator().manual_seed(view.num_queries * 31 + view.num_keys)
    shapes = [
        (2, 3, view.num_queries, 4),
        (2, 3, view.num_keys, 4),
        (2, 3, view.num_keys, 4),
        (num_rows, 4),
    ]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


def assert_same(backend, view, num_rows, has_table):
    queries, keys, values, table = inputs(view, num_rows)
    wanted = [queries, keys, values, *([table] if has_table else [])]
    results = []
    for function in (reference.attend, backend):
        found = function(
            queries, keys, values, table=table if has_table else None, view=view, dropout=0.0
        )
        results.append([found, *torch.autograd.grad(found.square().sum(), wanted)])
    for expected, found in zip(*results, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, **EXACT)


@given(view=views(), num_rows=small(1, 20), has_table=st.booleans())
def test_products_equal_the_reference_in_outputs_and_gradients(view, num_rows, has_table):
    assert_same(attend, view, num_rows, has_table)


def test_a_query_that_sees_nothing_gets_zero():
    view = View(
        num_queries=1,
        num_keys=3,
        first_query=3,
        first_visible=torch.tensor([3, 0]),
        device=CPU,
    )
    queries, keys, values, table = inputs(view, 4)
    for found in (
        reference.attend(queries, keys, values, table=table, view=view, dropout=0.0),
        attend(queries, keys, values, table=table, view=view, dropout=0.0),
        attend(queries, keys, values, table=None, view=view, dropout=0.0),
    ):
        assert (found[0] == 0).all()
        assert (found[1] != 0).any()


@pytest.mark.parametrize("function", [reference.attend, attend])
def test_dropout_drops_weights_and_keeps_their_expectation(function):
    view = View(num_queries=1, num_keys=8, first_query=7, device=CPU)
    queries = torch.zeros(2000, 1, 1, 4)
    ones = torch.ones(2000, 1, 8, 4)
    torch.manual_seed(0)
    found = function(queries, ones, ones, table=torch.zeros(8, 4), view=view, dropout=0.25)
    assert found.mean().item() == pytest.approx(1.0, abs=0.02)
    assert found[:, 0, 0, 0].unique().numel() > 3


@pytest.mark.parametrize("by_autocast", [False, True])
def test_bfloat16_does_not_round_scores(by_autocast):
    """Keys whose scores differ in the ninth bit, so that one has most of the weight."""
    view = View(num_queries=1, num_keys=4, first_query=3, device=CPU)
    half = torch.bfloat16
    queries = torch.full((1, 1, 1, 4), 40.0, dtype=half)
    keys = torch.tensor([8.0, 8.0, 8.0, 7.9375], dtype=half).view(1, 1, 4, 1).expand(1, 1, 4, 4)
    values = torch.eye(4, dtype=half)[None, None]
    # Under autocast weights are in float32, as is this table.
    table = torch.tensor([0.0, 0.0, 0.03125, 0.0], dtype=torch.float32 if by_autocast else half)
    table = table[:, None].expand(4, 4)
    with torch.autocast("cpu", half, enabled=by_autocast):
        found = attend(queries, keys, values, table=table, view=view, dropout=0.0)
    wide = [one.double() for one in (queries, keys, values)]
    expected = reference.attend(*wide, table=table.double(), view=view, dropout=0.0)
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=2**-9)
