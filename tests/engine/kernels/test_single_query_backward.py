"""Gradients that single queries of several layers give to what all of them saw."""

from dataclasses import replace

import pytest
import torch
from attention_cases import (
    CLOSE,
    DEVICE,
    Case,
    assert_near,
    dropped_attention,
    single_queries,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from staircase_attention.attention import reference
from staircase_attention.engine.kernels import relative_attention
from staircase_attention.engine.kernels.single_query_backward import Notes


class Layers:
    """One query a layer, and what comes of it."""

    def __init__(self, case: Case, num_layers: int, *, dropout: float = 0.0) -> None:
        self.case = case
        _, self.keys, self.values, self.table = (one.detach() for one in case.inputs())
        random = torch.Generator().manual_seed(num_layers)
        # As models have them: a step's heads lie side by side, between other projections.
        shape = (2, num_layers, 2, 1, 3, case.num_heads, case.size)
        both = torch.randn(shape, generator=random).to(DEVICE, case.dtype)
        queries, gradients = both[:, :, :, :, 1].transpose(3, 4).contiguous().transpose(3, 4)
        self.queries = [one.transpose(1, 2) for one in queries]
        self.d_out = [one.transpose(1, 2) for one in gradients]
        seeds = [torch.tensor([2**40 + one], device=DEVICE) for one in range(num_layers)]
        self.dropped = [{"dropout": dropout, "seed": seed if dropout else None} for seed in seeds]
        self.numbers = range(num_layers)

    def forward(self, number: int, values: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer's query finds among values, and its normaliser."""
        options = {**self.case.place, **self.dropped[number]}
        return relative_attention.forward(
            self.queries[number], self.keys, values, self.table, **options
        )

    def notes(self) -> tuple[Notes, list[Tensor]]:
        """Notes on all layers, taken from the last to the first, and the queries' gradients."""
        notes = Notes(self.keys, self.table, num_layers=len(self.numbers), **self.case.place)
        d_queries = [torch.full_like(one, torch.nan) for one in self.queries]
        for number in reversed(self.numbers):
            notes.add_query(
                number,
                self.d_out[number],
                self.queries[number],
                self.keys,
                self.values,
                *self.forward(number, self.values),
                d_queries=d_queries[number],
                **self.dropped[number],
            )
        return notes, d_queries

    def room(self, number: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Room for gradients of keys and values that holds this number."""
        kind = dtype or self.case.dtype
        return [torch.full_like(one, number, dtype=kind) for one in (self.keys, self.values)]

    def gradients(self, *, adds: bool, room: list[Tensor]) -> list[Tensor]:
        """Of each query, of the last keys and values that there is room for, and of the table."""
        notes, d_queries = self.notes()
        sums = relative_attention.new_table_sums(self.table)
        first = self.case.num_keys - room[0].shape[2]
        notes.sum_keys(self.numbers, *room, first_key=first, adds=adds)
        notes.sum_table(sums)
        return [*d_queries, *room, sums.sum(0)]

    def expected(self) -> list[Tensor]:
        """The same by autograd in float64, of all keys and values."""
        exact = [one.double().requires_grad_() for one in (*self.queries, *self.seen)]
        *queries, keys, values, table = exact
        found = [
            self.exactly(number, query, keys, values, table) for number, query in enumerate(queries)
        ]
        return list(torch.autograd.grad(found, exact, [one.double() for one in self.d_out]))

    @property
    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.keys, self.values, self.table

    def exactly(self, number: int, *inputs: Tensor) -> Tensor:
        """A layer's attention by the reference, with the weights dropped that the kernel drops."""
        if self.dropped[number]["seed"] is None:
            *others, table = inputs
            return reference.attend(*others, table=table, view=self.case.view, dropout=0.0)
        unit = torch.eye(self.case.num_keys, self.case.size, device=DEVICE)
        kept = self.forward(number, unit.expand(self.values.shape))[0] != 0
        return dropped_attention(self.case, list(inputs), kept[..., : self.case.num_keys])

    def assert_exact(self, *, kept_in: torch.dtype | None = None) -> None:
        """Written and added, in numbers of this kind."""
        expected = self.expected()
        close = max(CLOSE[self.case.dtype], CLOSE[kept_in or self.case.dtype])
        for adds in (False, True):
            room = self.room(0.5 if adds else torch.nan, kept_in)
            found = self.gradients(adds=adds, room=room)
            for name, one, other in zip(self.names, found, expected, strict=True):
                whole = other + 0.5 if adds and name in ("keys", "values") else other
                assert_near(one, whole, f"{name}, adds={adds}", close)

    @property
    def names(self) -> list[str]:
        return [*(f"query {one}" for one in self.numbers), "keys", "values", "table"]


@settings(max_examples=8)
@given(case=single_queries(), num_layers=st.integers(1, 4))
def test_sums_over_layers_in_odd_shapes_are_exact(case, num_layers):
    Layers(case, num_layers).assert_exact()


BLIND = Case(1, 70, 70, first_visible=(3, 70), num_rows=40, num_heads=2)
ORDINARY = Case(1, 150, 150, span=120, num_rows=37, first_visible=(0, 50))
BFLOAT16 = Case(1, 70, 70, span=60, first_visible=(0, 20), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("case", "num_layers"),
    [
        pytest.param(Case(1, 1, 0), 2, id="itself"),
        pytest.param(Case(1, 150, 150, num_heads=2), 8, id="three blocks, eight layers"),
        pytest.param(Case(1, 150, 150, span=90, num_rows=30), 3, id="a window beyond the table"),
        pytest.param(Case(1, 90, 40), 2, id="keys to come"),
        pytest.param(Case(1, 9, 80, span=5), 2, id="all keys too far"),
        pytest.param(BLIND, 2, id="a row that sees nothing"),
        pytest.param(Case(1, 5, 5, num_heads=17), 3, id="many heads"),
        pytest.param(replace(BFLOAT16, size=128), 3, id="wide, bfloat16"),
        pytest.param(Case(1, 40, 40, size=128), 2, id="wide, float32"),
    ],
)
def test_sums_over_layers_are_exact(case, num_layers):
    Layers(case, num_layers).assert_exact()


def test_gradients_of_bfloat16_may_be_kept_in_float32():
    Layers(BFLOAT16, 3).assert_exact(kept_in=torch.float32)


def test_layers_are_summed_before_they_are_rounded():
    layers = Layers(BFLOAT16, 8)
    room = layers.room(2.0)
    layers.gradients(adds=True, room=room)
    *_, expected, _ = layers.expected()
    error = (room[1].double() - (2 + expected)).abs()
    # Rounded once: within one of the last of eight bits, as the interpreter cuts the rest off.
    assert (error <= 2**-7 * (2 + expected).abs() + 1e-5).all()


def test_dropout_drops_the_weights_that_each_layer_dropped():
    case = Case(1, 60, 60, span=50, num_rows=37, size=64, num_heads=2)
    Layers(case, 3, dropout=0.25).assert_exact()


def test_gradients_of_the_last_tokens_only_leave_the_rest_alone():
    case = Case(1, 70, 70, span=60, first_visible=(0, 20))
    layers = Layers(case, 3)
    whole = layers.gradients(adds=False, room=layers.room(torch.nan))
    for adds in (False, True):
        room = torch.full((2, 2, 1, 60, 16), 0.5, device=DEVICE)
        given = [part[:, :, 5:50] for part in room]
        found = layers.gradients(adds=adds, room=given)
        for name, one, other in zip(layers.names, found, whole, strict=True):
            if name in ("keys", "values"):
                torch.testing.assert_close(one, other[:, :, 25:] + (0.5 if adds else 0))
            else:
                assert torch.equal(one, other)
        room[:, :, :, 5:50] = 0.5
        assert (room == 0.5).all()


def test_what_is_out_of_sight_is_neither_read_nor_added_to():
    layers = Layers(ORDINARY, 2)
    expected = layers.gradients(adds=True, room=layers.room(0.0))
    hidden = torch.zeros(2, 1, 150, 1, dtype=torch.bool, device=DEVICE)
    hidden[0, :, :31], hidden[1, :, :50] = True, True
    for one in (layers.keys, layers.values):
        one.masked_fill_(hidden, torch.nan)
    room = [one.masked_fill_(hidden, torch.nan) for one in layers.room(0.0)]
    found = layers.gradients(adds=True, room=room)
    for one, other in zip(found, expected, strict=True):
        same = one.masked_fill(hidden, 0.0) if any(one is other for other in room) else one
        assert torch.equal(same, other)
    assert all(one.isnan().any(-1, keepdim=True).eq(hidden).all() for one in room)


@pytest.mark.parametrize("case", [ORDINARY, BLIND])
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    layers = Layers(case, 3)
    expected = layers.gradients(adds=False, room=layers.room(torch.nan))
    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **kw: make(*a, **kw).fill_(torch.nan))
    found = layers.gradients(adds=False, room=layers.room(torch.nan))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_layers_may_be_summed_one_by_one():
    layers = Layers(replace(ORDINARY, num_heads=2), 3)
    *_, d_keys, d_values, _ = layers.gradients(adds=False, room=layers.room(torch.nan))
    notes, _ = layers.notes()
    room = layers.room(0.0)
    for number in layers.numbers:
        apart = layers.room(torch.nan)
        notes.sum_keys(range(number, number + 1), *apart, first_key=0, adds=False)
        for total, one in zip(room, apart, strict=True):
            total += one
    for one, other in zip(room, (d_keys, d_values), strict=True):
        torch.testing.assert_close(one, other)


def test_a_layer_has_one_query():
    queries, keys, values, table = (one.detach() for one in Case(2, 4, 4).inputs())
    notes = Notes(keys, table, num_layers=1, first_query=4, span=None, first_visible=None)
    normalisers = torch.zeros(queries.shape[:3], device=DEVICE)
    with pytest.raises(ValueError, match="one query"):
        notes.add_query(
            0,
            queries,
            queries,
            keys,
            values,
            queries,
            normalisers,
            d_queries=torch.empty_like(queries),
            dropout=0.0,
            seed=None,
        )
