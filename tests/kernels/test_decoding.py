"""The decoding kernels by themselves: attention to rings against the reference, and compilation."""

import os
import subprocess
import sys

import pytest
import torch

from staircase_attention.attention import View
from staircase_attention.attention.reference import attend

pytest.importorskip("triton")
from staircase_attention.kernels.decoding_attention import attend_rings

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
def test_attention_to_a_ring_is_the_reference(num_keys, hidden):
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
    expected = attend(queries, keys, values, table=table, view=view, dropout=0.0)
    found = torch.empty(1, HEADS * SIZE, device=DEVICE)
    nothing = torch.zeros(1, HEADS, device=DEVICE)
    attend_rings[(HEADS, 1)](
        queries.to(DEVICE),
        ring(keys, first),
        ring(values, first),
        0,
        table.to(DEVICE),
        nothing,
        nothing,
        torch.tensor([start], device=DEVICE),
        torch.tensor([now], device=DEVICE),
        found,
        nothing,
        nothing,
        0,
        0,
        1,
        1,
        SIZE**-0.5,
        HEADS=HEADS,
        SIZE=SIZE,
        HALF=4,
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
        SHARES=1,
        BLOCK=16,
        EARLY=False,
    )
    torch.testing.assert_close(found.cpu(), expected.reshape(1, -1), rtol=1e-5, atol=1e-5)


COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from staircase_attention.kernels import decoding

names = decoding.norm_rows.arg_names
facts = {"WIDTH": 1024, "BLOCK": 1024, "EARLY": True}
kinds = dict.fromkeys(names, "*fp32") | {"target": "*bf16", "rows": "i32", "epsilon": "fp32"}
kinds |= dict.fromkeys(facts, "constexpr")
source = ASTSource(decoding.norm_rows, kinds, {(names.index(one),): facts[one] for one in facts})
options = {"launch_pdl": True}
ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx
"""


@pytest.mark.slow
def test_a_kernel_that_begins_early_compiles_for_hopper(tmp_path):
    surroundings = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    surroundings["TRITON_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], env=surroundings, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
