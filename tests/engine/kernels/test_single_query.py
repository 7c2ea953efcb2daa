"""One query at a time: the same function as the reference, at the ends of every range."""

import os
import subprocess
import sys

import pytest
import torch
import triton
from attention_cases import (
    DEVICE,
    Case,
    assert_equals_reference,
    assert_near,
    dropped_attention,
    single_queries,
)
from hypothesis import given, settings
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from staircase_attention.engine.kernels import (
    relative_attention,
    single_query,
    single_query_backward,
)


@settings(max_examples=8)
@given(case=single_queries())
def test_odd_shapes_equal_the_reference(case):
    assert_equals_reference(case)


BLIND = Case(1, 70, 70, first_visible=(3, 70), num_rows=40, num_heads=2)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(1, 1, 0), id="itself"),
        pytest.param(Case(1, 1, 1, num_rows=1), id="one key"),
        pytest.param(Case(1, 150, 150, num_heads=2), id="three blocks"),
        pytest.param(Case(1, 150, 150, num_rows=37), id="a table cut short within a block"),
        pytest.param(Case(1, 150, 150, num_rows=33), id="a table cut short between blocks"),
        pytest.param(Case(1, 150, 150, num_rows=1), id="one vector for all distances"),
        pytest.param(Case(1, 9, 80, num_rows=50), id="keys beyond the table"),
        pytest.param(Case(1, 150, 150, span=20), id="a window"),
        pytest.param(Case(1, 150, 150, span=90, num_rows=30), id="a window beyond the table"),
        pytest.param(Case(1, 90, 40), id="keys to come"),
        pytest.param(Case(1, 9, 80, span=5), id="all keys too far"),
        pytest.param(BLIND, id="a row that sees nothing"),
        pytest.param(Case(1, 5, 5, num_heads=17), id="many heads"),
        pytest.param(Case(1, 70, 70, size=64, dtype=torch.bfloat16), id="bfloat16"),
        pytest.param(Case(1, 70, 70, size=128, dtype=torch.bfloat16), id="wide, bfloat16"),
        pytest.param(Case(1, 40, 40, size=128), id="wide, float32"),
    ],
)
def test_shapes_of_models_equal_the_reference(case):
    assert_equals_reference(case)


def all_results(case: Case, inputs: list[Tensor], table_sums: Tensor, **options) -> list[Tensor]:
    """The output, its normalisers and the gradients."""
    out, logsumexp = relative_attention.forward(*inputs, **case.place)
    d_out = inputs[0].cos()
    gradients = relative_attention.backward(
        d_out, *inputs, out, logsumexp, **case.place, table_sums=table_sums, **options
    )
    return [out, logsumexp, *gradients]


def test_a_row_that_sees_nothing_gets_zero_and_gives_no_gradient():
    inputs = [tensor.detach() for tensor in BLIND.inputs()]
    sums = relative_attention.new_table_sums(inputs[-1])
    out, logsumexp, *gradients = all_results(BLIND, inputs, sums)
    assert (logsumexp[1] == -float("inf")).all()
    assert logsumexp[0].isfinite().all()
    for tensor in (out, *gradients):
        assert (tensor[1] == 0).all()
        assert tensor[0].any()
    assert (gradients[1][0, :, :3] == 0).all()


ORDINARY = Case(1, 150, 150, span=120, num_rows=37, first_visible=(0, 50))


@pytest.mark.parametrize("case", [ORDINARY, BLIND])
def test_what_memory_held_before_does_not_matter_and_runs_are_equal(case, monkeypatch):
    inputs = [tensor.detach() for tensor in case.inputs()]
    sums = relative_attention.new_table_sums(inputs[-1])
    expected = [*all_results(case, inputs, sums), sums]
    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **kw: make(*a, **kw).fill_(float("nan")))
    sums = relative_attention.new_table_sums(inputs[-1])
    for found, before in zip([*all_results(case, inputs, sums), sums], expected, strict=True):
        assert torch.equal(found, before)


def test_what_is_out_of_sight_is_not_read():
    inputs = [tensor.detach() for tensor in ORDINARY.inputs()]
    sums = relative_attention.new_table_sums(inputs[-1])
    expected = [*all_results(ORDINARY, inputs, sums), sums]
    for tensor in inputs[1:3]:
        tensor[:, :, :31] = float("nan")
        tensor[1, :, :50] = float("nan")
    sums = relative_attention.new_table_sums(inputs[-1])
    for found, before in zip([*all_results(ORDINARY, inputs, sums), sums], expected, strict=True):
        assert torch.equal(found, before)


def test_one_slot_can_sum_the_table_alone(monkeypatch):
    monkeypatch.setattr(single_query_backward, "HEADS_AT_ONCE", 16)
    case = Case(1, 20, 20, num_rows=9, num_heads=9)
    inputs = [tensor.detach() for tensor in case.inputs()]
    many = relative_attention.new_table_sums(inputs[-1])
    all_results(case, inputs, many)
    one = torch.zeros_like(many[:1])
    all_results(case, inputs, one)
    torch.testing.assert_close(one[0], many.sum(0), rtol=1e-4, atol=1e-4)
    assert many.any(-1).any(-1).sum() == 2


def test_gradients_in_float32_need_not_be_rounded():
    case = Case(1, 20, 20, dtype=torch.bfloat16)
    inputs = [tensor.detach() for tensor in case.inputs()]
    sums = relative_attention.new_table_sums(inputs[-1])
    room = torch.full((2, 2, 1, 20, 16), float("nan"), device=DEVICE)
    found = all_results(case, inputs, sums, d_keys=room[0], d_values=room[1])
    plain = all_results(case, inputs, sums)
    for one, other in zip(found[3:], plain[3:], strict=True):
        assert_near(one, other.double(), "gradient", 1e-2)
        assert not torch.equal(one, other.float())


def test_dropout_drops_the_same_weights_forward_and_backward():
    case = Case(1, 60, 60, span=50, num_rows=37, size=64, num_heads=4)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    options = {**case.place, "dropout": 0.25, "seed": torch.tensor([2**40 + 5], device=DEVICE)}
    unit = torch.eye(60, 64, device=DEVICE).expand(values.shape)
    kept = relative_attention.forward(queries, keys, unit, table, **options)[0][..., :60] != 0
    seen = ~case.view.hidden.expand(kept.shape)
    assert not kept[~seen].any()
    assert kept[seen].float().mean().item() == pytest.approx(0.75, abs=0.06)
    assert not torch.equal(kept[0, 0], kept[0, 1])

    exact = [tensor.double().requires_grad_() for tensor in (queries, keys, values, table)]
    expected = dropped_attention(case, exact, kept)
    out, logsumexp = relative_attention.forward(queries, keys, values, table, **options)
    assert_near(out, expected, "out", 1e-5)
    sums = relative_attention.new_table_sums(table)
    found = relative_attention.backward(
        out.cos(), queries, keys, values, table, out, logsumexp, **options, table_sums=sums
    )
    gradients = torch.autograd.grad(expected, exact, out.cos().double())
    for one, other in zip((*found, sums.sum(0)), gradients, strict=True):
        assert_near(one, other, "gradient", 1e-5)


def test_dropout_drops_what_the_kernels_for_many_queries_drop():
    case = Case(2, 20, 20, size=32, num_heads=2)
    queries, keys, values, table = (tensor.detach() for tensor in case.inputs())
    options = {"first_query": 20, "dropout": 0.5, "seed": torch.tensor([9], device=DEVICE)}
    both = relative_attention.forward(queries, keys, values, table, **options)[0]
    first = relative_attention.forward(queries[:, :, :1], keys, values, table, **options)[0]
    torch.testing.assert_close(first, both[:, :, :1])


def test_the_output_lies_by_time_and_inputs_may_be_strided():
    case = Case(1, 30, 30, num_heads=2, size=32)
    inputs = [tensor.detach() for tensor in case.inputs()]
    sums = relative_attention.new_table_sums(inputs[-1])
    found = all_results(case, inputs, sums)
    assert found[0].transpose(1, 2).is_contiguous()
    dense = [tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs]
    odd = [tensor.mT.contiguous().mT for tensor in inputs]
    for others in (dense, odd):
        for one, other in zip(all_results(case, others, sums), found, strict=True):
            assert torch.equal(one, other)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the other tests compile the kernels")
def test_kernels_compile_for_hopper():
    """The interpreter lets things pass that the compiler does not."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, __file__], check=True, env=environment)


KINDS = dict.fromkeys(("logsumexp", "weights", "d_scores", "table_sums"), "*fp32")
KINDS |= {"first_visible": "*i64", "seed": "*i64", "scale": "fp32", "dropout": "fp32"}
STEPS = ("_batch", "_head", "_row")
NUMBERS = ("first_query", "span", "nearest", "layer", "first_layer", "first_key")
FLAGS = {"has_first_visible": True, "has_dropout": True}


def compile_for_hopper(kernel, options: dict, *, kind: str = "*bf16", kept_in: str = "*bf16"):
    """Compile as a call on a GPU would, which knows that strides and addresses are even."""
    constants = {**FLAGS, **options}
    num_warps = constants.pop("num_warps", 4)
    names = kernel.arg_names

    def kind_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in ("d_keys", "d_values"):
            return kept_in
        is_number = name.endswith(STEPS) or name.startswith("num_")
        is_number = is_number or name in NUMBERS
        return KINDS.get(name, "i32" if is_number else kind)

    kinds = {name: kind_of(name) for name in names}
    even = [name for name in names if kinds[name].startswith("*") or name.endswith(STEPS)]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={(names.index(name),): constants[name] for name in names if name in constants},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps})


def compile_all():
    """Each kernel, for heads of 128 in bfloat16."""
    plain = single_query.blocks(128, 6)
    yield compile_for_hopper(single_query.forward_kernel, plain)
    yield compile_for_hopper(single_query_backward.queries_kernel, plain)
    for num_summed, kept_in in ((1, "*bf16"), (8, "*fp32"), (8, "*bf16")):
        keys = {"num_summed": num_summed, "block": 32, "size": 128, "num_warps": 4}
        for adds in (False, True):
            options = {**keys, "adds": adds}
            yield compile_for_hopper(single_query_backward.keys_kernel, options, kept_in=kept_in)
    table = {"block": single_query_backward.DISTANCES, "size": 128}
    table |= {"block_heads": single_query_backward.HEADS_AT_ONCE}
    yield compile_for_hopper(single_query_backward.table_kernel, table)


if __name__ == "__main__":
    for each in compile_all():
        assert "cubin" in each.asm
