"""The decoding kernels by themselves: attention to rings, norms of rows, and compilation."""

import os
import subprocess
import sys

import pytest
import torch

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    SequenceModel,
    Staircase,
    TransformerXL,
)
from staircase_attention.attention import View
from staircase_attention.attention.reference import attend
from staircase_attention.engine.decoding import Weights
from staircase_attention.engine.decoding.layout import Layout
from staircase_attention.engine.decoding.memory import Memory
from staircase_attention.engine.decoding.tiles import attention_tiles

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from staircase_attention.engine.decoding.launches import Launches
from staircase_attention.engine.kernels.decoding import norm_rows, product_few
from staircase_attention.engine.kernels.decoding_attention import attend_rings

HEADS, SIZE, SPAN, DISTANCES = 2, 6, 40, 9
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def ring(tensor, first):
    """Tokens from position `first` on, each in its place of a ring of a span."""
    places = torch.arange(first, first + tensor.shape[2]) % SPAN
    held = torch.full((*tensor.shape[:2], SPAN, SIZE), torch.nan)
    held[:, :, places] = tensor
    return held.to(DEVICE)


@pytest.mark.parametrize("num_keys", [1, 7, 40])
@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_attention_to_a_ring_is_the_reference(num_keys, hidden, shares):
    generator = torch.Generator().manual_seed(num_keys)
    now = 100
    first = now + 1 - num_keys
    keys, values = torch.randn(2, 1, HEADS, num_keys, SIZE, generator=generator)
    queries = torch.randn(1, HEADS, 1, SIZE, generator=generator)
    table = torch.randn(DISTANCES, SIZE, generator=generator)
    start = first + min(hidden, num_keys - 1)
    view = View(
        num_queries=1,
        num_keys=num_keys,
        first_query=num_keys - 1,
        first_visible=torch.tensor([start - first]),
        device=queries.device,
    )
    exact = [tensor.double() for tensor in (queries, keys, values)]
    expected = attend(*exact, table=table.double(), view=view, dropout=0.0)
    found, partial, highest, total = (
        torch.full((shares, HEADS * SIZE), torch.nan, device=DEVICE) for _ in range(4)
    )
    counts = torch.zeros(HEADS, dtype=torch.int32, device=DEVICE)
    attend_rings[(HEADS, shares)](
        queries.to(DEVICE),
        ring(keys, first),
        ring(values, first),
        0,
        table.to(DEVICE),
        found,
        found,
        torch.tensor([start], device=DEVICE),
        torch.tensor([now], device=DEVICE),
        found,
        partial,
        highest,
        total,
        counts,
        0,
        0,
        1,
        1,
        SIZE**-0.5,
        HEADS=HEADS,
        SIZE=SIZE,
        UNITS=8,
        CAPACITY=SPAN,
        CACHED=0,
        CHUNK=1,
        PASSES=1,
        CHUNKS=0,
        STAIRS=False,
        SPAN=SPAN,
        SELF=1,
        DISTANCES=DISTANCES,
        ROTARY=False,
        SHARES=shares,
        BLOCK=16,
        EARLY=False,
    )
    torch.testing.assert_close(found[0].cpu().double(), expected.flatten(), rtol=1e-5, atol=1e-6)
    assert not counts.any()


@pytest.mark.parametrize("width", [5, 16, 22])
@pytest.mark.parametrize("num_norms", [1, 3])
def test_norms_of_rows_are_layer_norms(width, num_norms):
    """Also of rows that are far from zero, where plain sums of squares would cancel."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(4, width, generator=generator) + torch.tensor([0.0, 1.0, 30.0, 1e3])[:, None]
    gains, shifts = torch.randn(2, num_norms, width, generator=generator)
    found = torch.full((num_norms, 4, width), torch.nan, device=DEVICE)
    norm_rows[(4, num_norms)](
        rows.to(DEVICE),
        gains.to(DEVICE),
        shifts.to(DEVICE),
        found,
        4,
        1e-5,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        EARLY=False,
    )
    normed = torch.nn.functional.layer_norm(rows.double(), (width,))
    expected = normed * gains.double()[:, None] + shifts.double()[:, None]
    errors = (found.cpu().double() - expected).abs().amax(dim=(0, 2))
    assert (errors < torch.tensor([1e-6, 1e-6, 2e-5, 5e-4])).all(), errors


def test_shares_fill_a_large_gpu_and_no_more():
    def chosen(rows, *, keys=256, dtype=torch.bfloat16, is_rotary=False):
        tiles = attention_tiles(rows, 8, keys, 128, dtype, is_rotary=is_rotary)
        return tiles.shares, tiles.block, tiles.num_warps

    assert chosen(1) == (8, 32, 4)
    assert chosen(8) == (2, 64, 8)
    assert chosen(64) == (1, 32, 4)
    assert chosen(1, keys=40) == (2, 32, 4)
    assert chosen(1, keys=1) == (1, 16, 2)
    assert chosen(8, dtype=torch.float32) == (2, 32, 4)
    assert chosen(64, is_rotary=True) == (1, 16, 2)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="the other tests compile the kernels")
def test_kernels_compile_for_hopper():
    """The interpreter lets things pass that the compiler does not, and knows no early launches."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, __file__], check=True, env=environment)


MODELS = {
    "transformer-xl": (TransformerXL(span=256), 1, torch.bfloat16, "relative"),
    "staircase": (Staircase(chunk_size=32, num_passes=2), 8, torch.bfloat16, "relative"),
    "feedback": (FeedbackTransformer(span=256), 64, torch.bfloat16, "relative"),
    "cached": (
        CachedStaircase(chunk_size=32, num_window_chunks=8, num_passes=2),
        8,
        torch.float32,
        "rotary",
    ),
}
SHARED_MEMORY = 227 * 1024
"""What a program can have on a Hopper GPU."""
KINDS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32"}
KINDS |= {int: "i32", float: "fp32"}


class Compiled(Launches):
    """Launches that are compiled for a Hopper GPU instead of being launched."""

    def _launch(self, kernel, grid, *arguments, **options):
        assert self.early
        assert all(number > 0 for number in grid)
        constants = {**options, "EARLY": True}
        settings = {
            name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants
        }
        names = kernel.arg_names
        given = dict(zip(names, arguments, strict=False))
        kinds = {
            name: KINDS[getattr(one, "dtype", type(one))] for name, one in given.items()
        } | dict.fromkeys(constants, "constexpr")
        assert set(kinds) == set(names)
        even = [
            index
            for index, name in enumerate(names)
            if isinstance(given.get(name), torch.Tensor) and given[name].data_ptr() % 16 == 0
        ]
        source = ASTSource(
            fn=kernel,
            signature={name: kinds[name] for name in names},
            constexprs={(names.index(name),): one for name, one in constants.items()},
            attrs={(index,): [["tt.divisibility", 16]] for index in even},
        )
        made = triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={"launch_pdl": True, **settings}
        )
        assert made.metadata.shared <= SHARED_MEMORY, (kernel, made.metadata.shared)
        ptx = made.asm["ptx"]
        assert "griddepcontrol.wait" in ptx
        assert "griddepcontrol.launch_dependents" in ptx
        # Loads that are on their way while something is worked on.
        assert "cp.async" in ptx or kernel in (norm_rows, product_few)
        return made


def compile_all(schedule, rows, dtype, positions):
    """Every launch of a token of a model as wide as the paper's."""
    core = CoreConfig(
        width=1024, num_layers=1, num_heads=8, feed_forward_width=4096, positions=positions
    )
    model = SequenceModel(vocab_size=300, core=core, schedule=schedule).to(dtype)
    layout = Layout.of(schedule, 1)
    memory = Memory(
        layout,
        model.initial_state(rows).streams[0],
        num_layers=1,
        num_caches=1,
        num_heads=8,
        head_size=128,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return Compiled(Weights.of(model, dtype), layout, memory, num_heads=8, early=True)


if __name__ == "__main__":
    for each in MODELS.values():
        compile_all(*each)
