"""Gradients that single queries of several layers give to what all of them saw."""

from dataclasses import replace

import pytest
import torch
from attention_cases import CLOSE, DEVICE, Case, assert_near, cases, new_sums
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from staircase_attention.engine.kernels import relative_attention
from staircase_attention.engine.kernels.single_query import Notes

BLIND = Case(1, 70, 70, first_visible=(3, 70), num_rows=40, num_heads=2)
ORDINARY = Case(1, 150, 150, span=120, num_rows=37, first_visible=(0, 50))
BFLOAT16 = Case(1, 70, 70, span=60, first_visible=(0, 20), dtype=torch.bfloat16)


class Layers:
    """One query for each layer, and its gradients."""

    def __init__(self, case: Case, num_layers: int, *, dropout: float = 0.0) -> None:
        self.case = case
        _, self.keys, self.values, self.table = case.inputs()
        random = torch.Generator().manual_seed(num_layers)
        # As models have them: a step's heads lie side by side, between other projections.
        shape = (2, num_layers, 2, 1, 3, case.num_heads, case.size)
        both = torch.randn(shape, generator=random).to(DEVICE, case.dtype)
        self.queries, self.d_out = ([one[:, :, 1].transpose(1, 2) for one in part] for part in both)
        seeds = [torch.tensor([2**40 + one], device=DEVICE) for one in range(num_layers)]
        self.dropped = [{"dropout": dropout, "seed": seed if dropout else None} for seed in seeds]
        self.numbers = range(num_layers)
        by_query = [f"{what} {one}" for what in ("out", "query") for one in self.numbers]
        self.names = [*by_query, "keys", "values", "table"]

    def notes(self) -> tuple[Notes, list[Tensor]]:
        """Notes on all layers, taken from the last to the first; outputs, queries' gradients."""
        calls = [
            self.case.call([query, self.keys, self.values, self.table], **dropped)
            for query, dropped in zip(self.queries, self.dropped, strict=True)
        ]
        notes = Notes(calls[0], num_layers=len(calls))
        found = [relative_attention.forward(call) for call in calls]
        d_queries = [torch.full_like(one, torch.nan) for one in self.queries]
        for number in reversed(self.numbers):
            d_out, d_query = self.d_out[number], d_queries[number]
            notes.add_query(number, calls[number], d_out, *found[number], d_query)
        return notes, [*(out for out, _ in found), *d_queries]

    def room(self, number: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Room for gradients of keys and values that holds this number."""
        kind = dtype or self.case.dtype
        return [torch.full_like(one, number, dtype=kind) for one in (self.keys, self.values)]

    def gradients(self, *, adds: bool, room: list[Tensor]) -> list[Tensor]:
        """Of each query, of the last keys and values that there is room for, and of the table.

        Each query's output comes first.
        """
        notes, by_query = self.notes()
        sums = new_sums(self.table)
        first = self.case.num_keys - room[0].shape[2]
        notes.sum_keys(self.numbers, *room, first_key=first, adds=adds)
        notes.sum_table(sums)
        return [*by_query, *room, sums.sum(0)]

    def expected(self) -> list[Tensor]:
        """The same by autograd in float64, of all keys and values."""
        found = []
        for query, d_out, dropped in zip(self.queries, self.d_out, self.dropped, strict=True):
            kept = None
            if dropped["seed"] is not None:
                kept = self.case.kept_weights(query, self.keys, self.table, **dropped)
            inputs = [query, self.keys, self.values, self.table]
            found.append(self.case.expected(inputs, d_out, kept))
        out, d_queries, *shared = zip(*found, strict=True)
        return [*out, *d_queries, *(sum(parts) for parts in shared)]

    def assert_exact(self, *, kept_in: torch.dtype | None = None) -> None:
        """Written and added, in numbers of this dtype."""
        expected = self.expected()
        close = max(CLOSE[self.case.dtype], CLOSE[kept_in or self.case.dtype])
        for adds in (False, True):
            room = self.room(0.5 if adds else torch.nan, kept_in)
            found = self.gradients(adds=adds, room=room)
            for name, one, other in zip(self.names, found, expected, strict=True):
                whole = other + 0.5 if adds and name in ("keys", "values") else other
                assert_near(one, whole, f"{name}, adds={adds}", close)


@settings(max_examples=8)
@given(case=cases(max_queries=1), num_layers=st.integers(1, 4))
def test_sums_over_layers_in_drawn_shapes_are_exact(case, num_layers):
    Layers(case, num_layers).assert_exact()


@pytest.mark.parametrize(
    ("case", "num_layers", "dropout"),
    [
        pytest.param(Case(1, 1, 0), 2, 0.0, id="itself"),
        pytest.param(Case(1, 1, 1, num_rows=1), 1, 0.0, id="one key"),
        pytest.param(Case(1, 150, 150, num_rows=33), 8, 0.0, id="three blocks, a short table"),
        pytest.param(Case(1, 150, 150, span=90, num_rows=30), 3, 0.0, id="beyond the table"),
        pytest.param(Case(1, 90, 40), 1, 0.0, id="keys to come"),
        pytest.param(Case(1, 9, 80, span=5), 2, 0.0, id="all keys too far"),
        pytest.param(BLIND, 2, 0.0, id="a row that sees nothing"),
        pytest.param(Case(1, 5, 5, num_heads=17), 3, 0.0, id="many heads"),
        pytest.param(replace(BFLOAT16, size=128), 3, 0.0, id="wide, bfloat16"),
        pytest.param(Case(1, 40, 40, size=128), 2, 0.0, id="wide, float32"),
        pytest.param(Case(1, 60, 60, span=50, num_rows=37, size=64), 3, 0.25, id="dropout"),
    ],
)
def test_sums_over_layers_are_exact(case, num_layers, dropout):
    Layers(case, num_layers, dropout=dropout).assert_exact()


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


def test_gradients_of_the_last_tokens_only_leave_the_rest_alone():
    layers = Layers(Case(1, 70, 70, span=60, first_visible=(0, 20)), 3)
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
    hidden = ~ORDINARY.seen.transpose(2, 3)
    for one in (layers.keys, layers.values):
        one.masked_fill_(hidden, torch.nan)
    room = [one.masked_fill_(hidden, torch.nan) for one in layers.room(0.0)]
    found = layers.gradients(adds=True, room=room)
    assert all(one.isnan().any(-1, keepdim=True).eq(hidden).all() for one in room)
    for name, one, other in zip(layers.names, found, expected, strict=True):
        seen = one.masked_fill(hidden, 0.0) if name in ("keys", "values") else one
        assert torch.equal(seen, other)


@pytest.mark.parametrize("case", [ORDINARY, BLIND])
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    layers = Layers(case, 3)
    expected = layers.gradients(adds=False, room=layers.room(torch.nan))
    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **kw: make(*a, **kw).fill_(7.0))
    found = layers.gradients(adds=False, room=layers.room(torch.nan))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_layers_may_be_summed_one_by_one():
    layers = Layers(replace(ORDINARY, num_heads=2), 3)
    *_, d_keys, d_values, _ = layers.gradients(adds=False, room=layers.room(torch.nan))
    notes, _ = layers.notes()
    room = layers.room(0.0)
    for number in layers.numbers:
        notes.sum_keys(range(number, number + 1), *room, first_key=0, adds=True)
    for one, other in zip(room, (d_keys, d_values), strict=True):
        torch.testing.assert_close(one, other)
