"""The row-wise kernels compile for the GPU they are written for, without one."""

import os
import subprocess
import sys

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from staircase_attention.engine.kernels import activation, gated_product, norm, rows

TARGET = GPUTarget("cuda", 90, 32)
STATISTICS = {"mean_ptr": "*fp32", "rstd_ptr": "*fp32"}


@pytest.mark.slow
def test_kernels_compile_for_hopper():
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, __file__], env=environment, check=True)


def compile_all() -> None:
    """Compile every kernel in its main variants."""
    for hidden, addend, width, num_rows in (
        ("*fp32", "*bf16", 1024, 65536),
        ("*bf16", "*bf16", 300, 1),
        ("*fp32", None, 512, 100),
    ):
        compile_norm(hidden, addend, width, num_rows)
    for kind in ("*bf16", "*fp32"):
        compile_one(
            activation._relu_dropout_kernel,
            {"inner_ptr": kind, "bias_ptr": "*fp32", "seed_ptr": "*i64"},
            {"rows": "i32", "threshold": "i32", "scale": "fp32"},
            {"WIDTH": 2048, "ROWS": activation.ROWS, "COLUMNS": activation.COLUMNS, "DROPS": True},
        )
        compile_one(
            rows._sum_columns_kernel,
            {"source_ptr": kind, "gate_ptr": kind, "out_ptr": kind, "sums_ptr": "*fp32"},
            {"rows": "i32", "scale": "fp32"},
            {"WIDTH": 301, "ROWS": rows.ROWS, "COLUMNS": rows.COLUMNS, "STAGES": rows.STAGES},
        )
        compile_one(
            rows._score_kernel,
            {
                "logits_ptr": kind,
                "targets_ptr": "*i64",
                "losses_ptr": "*fp32",
                "wrong_ptr": "*i8",
            },
            {"rows": "i32", "ignore_index": "i32"},
            {"SIZE": 5001, "STRIDE": 5056, "ROWS": 1, "COLUMNS": 2048, "OVERWRITES": True},
            num_warps=8,
        )
    for num_inputs in (256, 1024):
        compile_gated_product(gated_product.Tiles.of(num_inputs))


def compile_gated_product(tiles: gated_product.Tiles) -> None:
    """Compile the product with a gate in it."""
    by_columns = f"tensordesc<bf16[{tiles.rows}, {tiles.columns}]>"
    compile_one(
        gated_product._gated_product_kernel,
        {"sums_ptr": "*fp32"},
        {
            "gradients": f"tensordesc<bf16[{tiles.rows}, {tiles.inputs}]>",
            "weights": f"tensordesc<bf16[{tiles.inputs}, {tiles.columns}]>",
            "gates": by_columns,
            "out": by_columns,
            "num_rows": "i32",
            "num_inputs": "i32",
            "scale": "fp32",
            "num_shares": "i32",
        },
        {
            "WIDTH": 4096,
            "NUM_TILES": 4096 // tiles.columns,
            "ROWS": tiles.rows,
            "COLUMNS": tiles.columns,
            "INPUTS": tiles.inputs,
            "STAGES": tiles.num_stages,
            "KEEPS_WEIGHTS": tiles.keeps_weights,
        },
        num_warps=tiles.num_warps,
    )


def compile_norm(hidden: str, addend: str | None, width: int, num_rows: int) -> None:
    """Compile both ways of a layer norm, with or without an addend."""
    normed = addend or "*bf16"
    count = {"rows": "i32"} if num_rows > 1 else {}
    one = {} if num_rows > 1 else {"rows": 1}
    tile = norm._tile(num_rows, width, norm.FORWARD_ELEMENTS, norm.FORWARD_PER_WARP)
    compile_one(
        norm._forward_kernel,
        {
            "hidden_ptr": hidden,
            "addend_ptr": addend,
            "addend_bias_ptr": addend and "*fp32",
            "weight_ptr": "*fp32",
            "bias_ptr": "*fp32",
            "total_ptr": hidden,
            "normed_ptr": normed,
            **STATISTICS,
        },
        {**count, "eps": "fp32"},
        {**one, "WIDTH": width, "ROWS": tile[0], "COLUMNS": tile[1]},
        num_warps=tile[2],
    )
    tile = norm._tile(num_rows, width, norm.BACKWARD_ELEMENTS, norm.BACKWARD_PER_WARP)
    compile_one(
        norm._backward_kernel,
        {
            "d_total_ptr": addend and hidden,
            "d_normed_ptr": normed,
            "total_ptr": hidden,
            "weight_ptr": "*fp32",
            **STATISTICS,
            "d_hidden_ptr": hidden,
            "d_addend_ptr": addend if addend != hidden else None,
            "sums_ptr": "*fp32",
        },
        count,
        {
            **one,
            "WIDTH": width,
            "ROWS": tile[0],
            "COLUMNS": tile[1],
            "HAS_ADDEND": addend is not None,
            "STAGES": norm.STAGES,
        },
        num_warps=tile[2],
    )


def compile_one(
    kernel: triton.JITFunction,
    pointers: dict[str, str | None],
    scalars: dict[str, str],
    constants: dict[str, int | bool],
    num_warps: int = 4,
) -> None:
    """Compile a kernel for given kinds of arguments; a pointer that is None is a constant."""
    missing = {name: None for name, kind in pointers.items() if kind is None}
    known = {name: kind for name, kind in pointers.items() if kind is not None}
    fixed = constants | missing
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: (known | scalars).get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): constant for name, constant in fixed.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in known},
    )
    compiled = triton.compile(source, target=TARGET, options={"num_warps": num_warps})
    assert "cubin" in compiled.asm


if __name__ == "__main__":
    compile_all()
