"""The kernels compute the reference's function: outputs and gradients, in odd shapes too."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import triton
from attention_cases import (
    CLOSE,
    DEVICE,
    Case,
    assert_equals_reference,
    assert_near,
    dropped_attention,
    results,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from staircase_attention.attention import fused
from staircase_attention.engine.kernels import (
    relative_attention,
    relative_pairs,
    relative_positions,
    relative_several,
    relative_single,
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_queries = draw(st.integers(1, 70))
    num_keys = draw(st.integers(1, 80))
    return Case(
        num_queries=num_queries,
        num_keys=num_keys,
        first_query=draw(st.integers(0, num_keys)),
        span=draw(st.none() | st.integers(1, 60)),
        num_rows=draw(st.integers(1, 100)),
        first_visible=(0, draw(st.integers(0, num_keys))) if draw(st.booleans()) else None,
        size=draw(st.sampled_from([16, 32])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )


@settings(max_examples=10)
@given(case=cases())
def test_odd_shapes_equal_the_reference(case):
    assert_equals_reference(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(16, 16, 0, num_heads=2), id="one square tile"),
        pytest.param(Case(5, 30, 25, num_rows=7, num_heads=2), id="one tile, cached keys, clipped"),
        pytest.param(Case(20, 20, 0, num_rows=1), id="one vector for all distances"),
        pytest.param(Case(1, 50, 50, num_heads=2), id="one query after its keys"),
        pytest.param(Case(3, 1, 1), id="one key"),
        pytest.param(Case(40, 80, 40, span=33, num_rows=33), id="a window, tiles out of sight"),
        pytest.param(Case(70, 70, 0, span=3), id="a narrow window"),
        pytest.param(Case(70, 40, 40), id="queries that go past the keys"),
        pytest.param(Case(70, 4, 4, span=9), id="queries that leave the keys behind"),
        pytest.param(Case(40, 70, 30, first_visible=(35, 70)), id="rows that start late"),
        pytest.param(Case(64, 64, 0, dtype=torch.bfloat16, size=64), id="one tile of 64"),
        pytest.param(Case(70, 90, 20, dtype=torch.bfloat16, size=128), id="several tiles of 64"),
        pytest.param(Case(7, 130, 123, dtype=torch.bfloat16, size=64), id="few queries"),
    ],
)
def test_shapes_of_models_equal_the_reference(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", [Case(9, 12, 3, first_visible=(12, 12)), Case(40, 3, 0, span=1)])
def test_queries_that_see_nothing_get_zero_and_give_no_gradient(case):
    out, d_queries, *_ = results(fused.attend, case, case.inputs())
    blind = case.view.hidden.all(-1).expand(out.shape[:3])
    assert blind.any()
    assert (out[blind] == 0).all()
    assert (d_queries[blind] == 0).all()


TILINGS = [Case(20, 30, 10, num_rows=17), Case(40, 60, 20, span=50, num_rows=40, size=64)]
UNEVEN = Case(37, 77, 40, span=60, num_rows=50, first_visible=(0, 45), num_heads=9)
"""Tiles that are not full: of queries, of keys, and of batch rows and heads."""


@pytest.mark.parametrize(
    "case", [UNEVEN, replace(UNEVEN, dtype=torch.bfloat16, size=32, num_queries=70)]
)
def test_tiles_that_are_not_full_equal_the_reference(case, monkeypatch):
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", 40)
    assert_equals_reference(case)


@pytest.mark.parametrize(
    "case",
    [*TILINGS, replace(UNEVEN, num_heads=2), Case(70, 80, 10, span=30, dtype=torch.bfloat16)],
)
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    inputs = case.inputs()
    expected = results(fused.attend, case, inputs)
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *a, make=make, **kw: make(*a, **kw).fill_(float("nan"))
        )
    for found, before in zip(results(fused.attend, case, inputs), expected, strict=True):
        assert torch.equal(found, before)


@pytest.mark.parametrize("case", TILINGS)
def test_one_program_can_sum_the_table_alone(case, monkeypatch):
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", 1)
    assert_equals_reference(case)


def test_scores_too_large_for_float16_are_finite():
    """Scores by position are kept in it; what is out of sight is infinite there."""
    case = Case(70, 70, 0, num_rows=70, dtype=torch.bfloat16)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    queries, table = queries.abs() * 300, table.abs() * 300
    for sign in (1, -1):
        out, logsumexp = relative_attention.forward(
            queries, keys, values, sign * table, **case.place
        )
        assert logsumexp.isfinite().all()
        assert (out[:, :, 0] == values[:, :, 0]).all()
        assert out.isfinite().all()


def off_by_one(tensor: Tensor) -> Tensor:
    """The same numbers, at addresses that are no multiples of 16 bytes."""
    room = torch.empty((*tensor.shape[:-1], tensor.shape[-1] + 1), dtype=tensor.dtype)
    return room.to(tensor.device)[..., 1:].copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_may_lie_anywhere(dtype):
    case = Case(40, 80, 40, num_rows=50, num_heads=2, dtype=dtype)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    d_out = queries[:, :1].cos().expand_as(queries)

    def results(place):
        inputs = [place(tensor) for tensor in (queries, keys, values)]
        past, own = zip(*((each[:, :, :40], each[:, :, 40:]) for each in inputs[1:]), strict=True)
        options = {**case.place, "past": past}
        out, logsumexp = relative_attention.forward(inputs[0], *own, table, **options)
        sums = relative_attention.new_table_sums(table)
        d_queries, *d_own = (place(torch.full_like(each, torch.nan)) for each in (queries, *own))
        d_past = tuple(place(torch.full_like(each, torch.nan)) for each in past)
        relative_attention.backward(
            d_out if place is off_by_one else d_out.contiguous(),
            inputs[0],
            *own,
            table,
            place(out),
            logsumexp,
            table_sums=sums,
            d_queries=d_queries,
            d_keys=d_own[0],
            d_values=d_own[1],
            d_past=d_past,
            **options,
        )
        return out, d_queries, *d_own, *d_past, sums

    for one, other in zip(results(off_by_one), results(torch.clone), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("num_past", [0, 80])
def test_a_past_may_be_nothing_or_everything(num_past):
    case = Case(40, 80, 40, num_rows=50, dtype=torch.bfloat16)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    past, own = zip(
        *((each[:, :, :num_past], each[:, :, num_past:]) for each in (keys, values)), strict=True
    )
    whole = relative_attention.forward(queries, keys, values, table, **case.place)
    cut = relative_attention.forward(queries, *own, table, past=past, **case.place)
    sums = [relative_attention.new_table_sums(table) for _ in range(2)]
    expected = relative_attention.backward(
        queries, queries, keys, values, table, *whole, table_sums=sums[0], **case.place
    )
    d_past = tuple(torch.full_like(part, torch.nan) for part in past)
    found = relative_attention.backward(
        queries,
        queries,
        *own,
        table,
        *cut,
        table_sums=sums[1],
        past=past,
        d_past=d_past,
        **case.place,
    )
    joined = [torch.cat(pair, dim=2) for pair in zip(d_past, found[1:], strict=True)]
    for one, other in zip((*cut, found[0], *joined), (*whole, *expected), strict=True):
        assert_near(one, other.double(), "past", CLOSE[case.dtype])


def test_gradients_go_where_they_are_asked_and_table_sums_add_up():
    case = Case(20, 30, 10, num_rows=17, num_heads=2)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    out, logsumexp = relative_attention.forward(queries, keys, values, table, **case.place)
    assert out.transpose(1, 2).is_contiguous()
    sums = relative_attention.new_table_sums(table)
    saved = (queries, keys, values, table, out, logsumexp)
    alone = relative_attention.backward(out, *saved, **case.place, table_sums=sums)
    once = sums.sum(0)
    room = torch.full((2, 30, 3, 2, 16), 7.0, device=DEVICE)
    asked = [part.transpose(1, 2) for part in room.unbind(2)]
    relative_attention.backward(
        out,
        *saved,
        **case.place,
        table_sums=sums,
        d_queries=asked[0][:, :, 10:],
        d_keys=asked[1],
        d_values=asked[2],
    )
    asked[0] = asked[0][:, :, 10:]
    assert (room[:, :10, 0] == 7).all()
    for one, other in zip(alone, asked, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(sums.sum(0), 2 * once)


@pytest.mark.parametrize("case", TILINGS)
def test_dropout_drops_the_same_weights_forward_and_backward(case):
    case = Case(**{**case.__dict__, "size": 64, "num_heads": 2})
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    settings = {**case.place, "dropout": 0.25, "seed": torch.tensor([2**40 + 5], device=DEVICE)}
    unit = torch.eye(case.num_keys, case.size, device=DEVICE).expand(values.shape)
    weights = relative_attention.forward(queries, keys, unit, table, **settings)[0]
    kept = weights[..., : case.num_keys] != 0
    seen = ~case.view.hidden.expand(kept.shape)
    assert not kept[~seen].any()
    assert kept[seen].float().mean().item() == pytest.approx(0.75, abs=0.05)
    assert not torch.equal(kept[0, 0], kept[0, 1])

    exact = [tensor.double().requires_grad_() for tensor in (queries, keys, values, table)]
    expected = dropped_attention(case, exact, kept)
    out, logsumexp = relative_attention.forward(queries, keys, values, table, **settings)
    assert_near(out, expected, "out", 1e-5)
    sums = relative_attention.new_table_sums(table)
    found = relative_attention.backward(
        out.cos(), queries, keys, values, table, out, logsumexp, **settings, table_sums=sums
    )
    gradients = torch.autograd.grad(expected, exact, out.cos().double())
    for one, other in zip((*found, sums.sum(0)), gradients, strict=True):
        assert_near(one, other, "gradient", 1e-5)

    num_past = case.first_query
    parts = [(each[:, :, :num_past], each[:, :, num_past:]) for each in (keys, values)]
    settings["past"], own = zip(*parts, strict=True)
    cut = relative_attention.forward(queries, *own, table, **settings)
    assert_alike(cut[0], out, queries.dtype)
    d_queries, *_ = relative_attention.backward(
        out.cos(), queries, *own, table, *cut, **settings, table_sums=sums
    )
    assert_alike(d_queries, found[0], queries.dtype)


def test_checkpoints_drop_the_same_weights_again():
    case = Case(6, 6, 0)
    *inputs, table = case.inputs()

    def run(*inputs: Tensor) -> Tensor:
        return fused.attend(*inputs, table=table, view=case.view, dropout=0.5)

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
    case = Case(6, 6, 0, dtype=torch.bfloat16)
    *inputs, table = case.inputs()
    table = table.detach().float().requires_grad_()
    out = fused.attend(*inputs, table=table, view=case.view, dropout=0.0)
    (d_table,) = torch.autograd.grad(out.float().sum(), table)
    assert out.dtype == torch.bfloat16
    assert d_table.dtype == torch.float32
    assert not torch.equal(d_table, d_table.bfloat16().float())


def test_fits_knows_what_the_kernels_cannot_do():
    queries, *_ = Case(2, 2, 0).inputs()
    assert relative_attention.fits(queries)
    assert not relative_attention.fits(queries[..., :8])
    assert not relative_attention.fits(queries.double())


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the other tests compile the kernels")
def test_kernels_compile_for_hopper():
    """The interpreter lets things pass that the compiler does not."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, __file__], check=True, env=environment)


KERNELS = (
    relative_single.forward_kernel,
    relative_single.backward_kernel,
    relative_positions.scores_kernel,
    relative_positions.queries_by_table_kernel,
    relative_positions.table_kernel,
    relative_pairs.attend_kernel,
    relative_pairs.keys_kernel,
    relative_pairs.queries_by_key_kernel,
)
IN_FLOAT32 = {"logsumexp", "normalisers", "agreement", "table_sums"}
IN_INTEGERS = {"first_visible", "seed"}
FRACTIONS = {"scale", "dropout"}
NUMBERS = ("num_", "first_", "span", "width", "rows_width", "boundary")


@pytest.mark.parametrize(
    ("num_past", "num_queries", "dtype"),
    [
        (5, 1, torch.float32),
        (9, 20, torch.float32),
        (9, 20, torch.bfloat16),
        (70, 40, torch.bfloat16),
        (3, 66, torch.float32),
    ],
)
def test_a_past_that_lies_elsewhere_is_as_one_that_comes_first(num_past, num_queries, dtype):
    generator = torch.Generator().manual_seed(num_past)
    num_keys = num_past + num_queries

    def random(length):
        return torch.randn(1, 2, length, 16, generator=generator).to(DEVICE, dtype)

    queries, keys, values = random(num_queries), random(num_keys), random(num_keys)
    table = torch.randn(50, 16, generator=generator).to(DEVICE, dtype)
    d_out, place = random(num_queries), {"first_query": num_past, "span": 60}
    parts = [(part[:, :, :num_past], part[:, :, num_past:]) for part in (keys, values)]
    past, own = zip(*parts, strict=True)
    whole = relative_attention.forward(queries, keys, values, table, **place)
    cut = relative_attention.forward(queries, *own, table, past=past, **place)
    for one, two in zip(whole, cut, strict=True):
        assert_alike(one, two, dtype)
    sums = [relative_attention.new_table_sums(table) for _ in range(3)]
    expected = relative_attention.backward(
        d_out, queries, keys, values, table, *whole, table_sums=sums[0], **place
    )
    d_past = tuple(torch.full_like(part, torch.nan) for part in past)
    for wanted, own_sums in ((d_past, sums[1]), (None, sums[2])):
        found = relative_attention.backward(
            d_out,
            queries,
            *own,
            table,
            *cut,
            table_sums=own_sums,
            past=past,
            d_past=wanted,
            **place,
        )
        assert_alike(found[0], expected[0], dtype)
        for one, two in zip(found[1:], expected[1:], strict=True):
            assert_alike(one, two[:, :, num_past:], dtype)
        assert_alike(own_sums, sums[0], dtype)
    for one, two in zip(d_past, expected[1:], strict=True):
        assert_alike(one, two[:, :, :num_past], dtype)


@pytest.mark.parametrize("num_past", [0, 70])
def test_many_queries_come_in_pieces(monkeypatch, num_past):
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, 1, length, 16, generator=generator).to(DEVICE) for length in (150, 220, 220)
    )
    table = torch.randn(40, 16, generator=generator).to(DEVICE)
    place = {
        "first_query": 70,
        "span": 90,
        "first_visible": torch.tensor([0, 65], device=DEVICE),
        "past": (keys[:, :, :num_past], values[:, :, :num_past]) if num_past else None,
    }
    inputs = (queries, keys[:, :, num_past:], values[:, :, num_past:], table)
    whole = relative_attention.forward(*inputs, **place)
    sizes = []
    launch = relative_several.forward

    def watched(call, *arguments, **options):
        sizes.append(call.num_queries)
        launch(call, *arguments, **options)

    monkeypatch.setattr(relative_several, "forward", watched)
    monkeypatch.setattr(relative_attention, "MOST_SCORES", 2 * 64 * 220)
    for one, two in zip(relative_attention.forward(*inputs, **place), whole, strict=True):
        assert one.stride() == two.stride()
        assert_alike(one, two, torch.float32)
    assert sizes == [64, 64, 22]


def assert_alike(one: Tensor, two: Tensor, dtype: torch.dtype) -> None:
    """The same but for rounding: with a past a kernel is compiled anew, and may round otherwise."""
    assert one.isfinite().all()
    limit = {torch.float32: 1e-6, torch.bfloat16: 2e-3}[dtype]
    assert (one.double() - two.double()).norm() <= limit * two.double().norm()


@pytest.mark.parametrize(
    ("num_past", "num_queries", "num_wanted", "dtype"),
    [
        (5, 1, 5, torch.float32),
        (5, 1, 2, torch.bfloat16),
        (9, 20, 4, torch.float32),
        (9, 20, 4, torch.bfloat16),
        (70, 40, 37, torch.float32),
        (41, 40, 0, torch.bfloat16),
    ],
)
def test_gradients_of_a_past_add_to_those_of_its_last_tokens(
    num_past, num_queries, num_wanted, dtype
):
    generator = torch.Generator().manual_seed(num_past)

    def random(length):
        return torch.randn(2, 2, length, 16, generator=generator).to(DEVICE, dtype)

    queries, own = random(num_queries), (random(num_queries), random(num_queries))
    past, d_out = (random(num_past), random(num_past)), random(num_queries)
    table = torch.randn(50, 16, generator=generator).to(DEVICE, dtype)
    place = {"first_query": num_past, "span": 60, "past": past}
    out = relative_attention.forward(queries, *own, table, **place)

    def gradients(d_past, *, adds_past):
        sums = relative_attention.new_table_sums(table)
        found = relative_attention.backward(
            d_out,
            queries,
            *own,
            table,
            *out,
            table_sums=sums,
            d_past=d_past,
            adds_past=adds_past,
            **place,
        )
        return *found, sums

    alone = tuple(torch.empty_like(part) for part in past)
    expected = gradients(alone, adds_past=False)
    # What lies around them is left alone.
    room = torch.full((2, 2, 2, num_past + 3, 16), 0.5, device=DEVICE, dtype=dtype)
    wanted = tuple(part[:, :, 2 : 2 + num_wanted] for part in room)
    for one, other in zip(gradients(wanted, adds_past=True), expected, strict=True):
        assert torch.equal(one, other)
    for one, whole in zip(room, alone, strict=True):
        total = 0.5 + whole[:, :, num_past - num_wanted :].double()
        assert_near(one[:, :, 2 : 2 + num_wanted], total, "past", CLOSE[dtype])
        assert (one[:, :, :2] == 0.5).all()
        assert (one[:, :, 2 + num_wanted :] == 0.5).all()


def compile_for_hopper(kernel, *, block: int, size: int, dtype: str) -> None:
    choices = {"block_q": block, "block_k": block, "block_m": block, "rows_q": block, "size": size}
    choices |= {"has_first_visible": True, "has_dropout": True, "has_near": True}
    choices |= {"has_past": True, "stores_past": True, "adds_past": True}
    choices |= {"has_gradients": True, "num_classes": 8}
    types = {param.name: type_of(param, choices, dtype) for param in kernel.params}
    used = {name: value for name, value in choices.items() if name in types}
    source = ASTSource(kernel, signature=types, constexprs=used)
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


def type_of(param, choices: dict[str, object], dtype: str) -> str:
    argument = param.name
    if argument in choices:
        return "constexpr"
    if argument in IN_INTEGERS:
        return "*i64"
    if argument in FRACTIONS:
        return "fp32"
    if argument.endswith(("_batch", "_head", "_row")) or argument.startswith(NUMBERS):
        return "i32"
    kind = "fp32" if argument in IN_FLOAT32 else dtype
    if argument == "scores" and dtype == "bf16":
        kind = "fp16"
    if param.annotation != "tensor_descriptor":
        return f"*{kind}"
    block, size = choices["block_q"], choices["size"]
    if argument in IN_FLOAT32:
        return f"tensordesc<{kind}[1, {block}]>"
    if argument.endswith("scores"):
        return f"tensordesc<{kind}[1, {block}, {block}]>"
    return f"tensordesc<{kind}[1, 1, {block}, {size}]>"


if __name__ == "__main__":
    for each in KERNELS:
        compile_for_hopper(each, block=16, size=16, dtype="bf16")
        compile_for_hopper(each, block=16, size=16, dtype="fp32")
