"""Kernels compile for the GPU they are written for, as calls there would compile them."""

import os
import subprocess
import sys

import pytest
import torch

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    ParallelLoop,
    SequenceModel,
    TransformerXL,
)
from staircase_attention.engine.decoding.decoder import DecoderMemory
from staircase_attention.engine.decoding.plan import Layout, Planner, measured
from staircase_attention.engine.decoding.weights import Weights
from staircase_attention.schedules import Schedule

MOST_PARAMETERS = 30
SHARED_MEMORY = 227 * 1024
"""Bytes that a program can have on Hopper."""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile the kernels")
def test_kernels_compile_for_hopper():
    """The interpreter lets things pass that the compiler does not."""
    # Assembled as they are: nothing runs.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "DISABLE_PTXAS_OPT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, __file__], env=environment, check=True)


def compile_launches(compiled: set[str]) -> None:
    """Let launches compile their kernels for Hopper instead, specialised as for these arguments."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)

    def run(self, *args, grid, warmup, **kwargs):
        kwargs |= {"debug": False, "instrumentation_mode": ""}
        bind = create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = bind(*args, **kwargs)
        options, *source = self._pack_args(backend, kwargs, bound, specialization, options)
        made = triton.compile(ASTSource(self, *source), target=target, options=options.__dict__)
        assert made.metadata.shared <= SHARED_MEMORY, (self, made.metadata.shared)
        assert len(self.params) <= MOST_PARAMETERS, self
        if kwargs.get("EARLY"):
            assert "griddepcontrol.wait" in made.asm["ptx"]
            assert "griddepcontrol.launch_dependents" in made.asm["ptx"]
            # Loads that are on their way while something is computed.
            has_stages = self.__name__ in ("attend_segments", "product_many")
            assert "cp.async" in made.asm["ptx"] or not has_stages
        compiled.add(f"{self.__module__.split('.')[-1]}.{self.__name__}")
        return made

    JITFunction.run = run


def attend(
    num_queries: int,
    num_past: int,
    *,
    size: int,
    heads: int = 2,
    plain: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    group: int | None = None,
) -> None:
    """Forward and backward; not plain: with everything that can be asked for.

    With groups of heads there is no table.
    """
    from staircase_attention.engine.kernels import relative_attention
    from staircase_attention.engine.kernels.relative_parts import Call, Gradients

    queries = torch.zeros(1, heads, num_queries, size, dtype=dtype)
    keys, values = torch.zeros(2, 1, heads // (group or 1), num_queries, size, dtype=dtype)
    past = torch.zeros(2, 1, heads // (group or 1), num_past, size, dtype=dtype)
    table = torch.zeros(1 if plain else 99, size, dtype=dtype) if group is None else None
    options = {"first_query": num_past, "span": 1 if plain else None, "past": tuple(past)}
    if not plain:
        options |= {"dropout": 0.1, "seed": torch.zeros(1, dtype=torch.int64)}
        options["first_visible"] = torch.zeros(1, dtype=torch.int64)
    call = Call(queries=queries, keys=keys, values=values, table=table, **options)
    out, logsumexp = relative_attention.forward(call)
    gradients = Gradients(
        queries=queries,
        keys=keys,
        values=values,
        past=None if plain else tuple(torch.zeros_like(past)),
        adds_past=not plain,
        table_sums=None if table is None else torch.zeros(8, *table.shape),
    )
    relative_attention.backward(call, out, out, logsumexp, gradients)


def note_layers(num_keys: int, size: int, *, heads: int) -> None:
    """A query of each of two layers, and gradients of keys and values that these share."""
    from staircase_attention.engine.kernels import relative_attention
    from staircase_attention.engine.kernels.relative_parts import Call
    from staircase_attention.engine.kernels.single_query import Notes

    keys = torch.zeros(1, heads, num_keys, size, dtype=torch.bfloat16)
    first_visible, seed = torch.zeros(2, 1, dtype=torch.int64)
    call = Call(
        queries=keys[:, :, :1],
        keys=keys,
        values=keys,
        table=torch.zeros(99, size, dtype=torch.bfloat16),
        first_query=num_keys,
        first_visible=first_visible,
        dropout=0.1,
        seed=seed,
    )
    out, logsumexp = relative_attention.forward(call)
    notes = Notes(call, num_layers=2)
    notes.add_query(0, call, out, out, logsumexp, torch.empty_like(out))
    notes.sum_keys(range(2), keys, keys, first_key=0, adds=True)
    notes.sum_table(torch.zeros(8, *call.table.shape))


def launch_row_kernels(num_rows: int, width: int) -> None:
    """Norms, activation and cross-entropy."""
    from staircase_attention.engine.kernels import activation, cross_entropy, norm

    hidden, vector = torch.zeros(num_rows, width), torch.zeros(width)
    addend = hidden.bfloat16()
    total, normed, mean, rstd = norm.forward(
        hidden, addend, vector, vector, vector, eps=1e-5, dtype=torch.bfloat16
    )
    norm.add(hidden, addend, None)
    sums = torch.zeros(norm.NUM_PROGRAMS, width)
    norm.add_backward(hidden, sums=sums, addend_dtype=torch.bfloat16)
    rms = {"eps": 1e-5, "dtype": torch.bfloat16, "centres": False}
    total, normed, _, rstd = norm.forward(hidden, addend, None, vector, None, **rms)
    sums = torch.zeros(norm.NUM_PROGRAMS, 3, width)
    norm.backward(None, normed, total, vector, None, rstd, sums=sums, addend_dtype=None)
    sums = torch.zeros(norm.NUM_PROGRAMS, 3, width)
    norm.backward(hidden, normed, total, vector, mean, rstd, sums=sums, addend_dtype=torch.bfloat16)
    inner = torch.zeros(num_rows, 4 * width, dtype=torch.bfloat16)
    seed = torch.zeros(1, dtype=torch.int64)
    activation.forward(inner, vector.repeat(4), kind="relu", dropout=0.1, seed=seed)
    sums = torch.zeros(activation.NUM_PROGRAMS, 4 * width)
    relu = {"kind": "relu", "dropout": 0.1, "seed": None}
    activation.backward(inner, inner, None, sums=sums, **relu)
    gated = {"kind": "swiglu", "dropout": 0.0, "seed": None}
    half = activation.forward(inner, None, **gated)
    activation.backward(half, inner, None, sums=None, **gated)
    dropped = {"kind": "gelu", "dropout": 0.1, "seed": seed}
    activation.forward(inner, vector.repeat(4), **dropped)
    activation.backward(inner, inner, vector.repeat(4), sums=sums, **dropped)
    losses, wrong = torch.zeros(num_rows), torch.zeros(num_rows, dtype=torch.int8)
    targets = torch.zeros(num_rows, dtype=torch.int64)
    cross_entropy.score_rows(inner, targets, losses, wrong, ignore_index=-1, overwrites=True)


def launch_gated_product(num_rows: int, width: int) -> None:
    """The gradient of a feed-forward block's inner layer, four times as wide as its output."""
    from staircase_attention.engine.kernels import activation

    gradients, weights, inner = (
        torch.zeros(*shape, dtype=torch.bfloat16)
        for shape in ((num_rows, width), (width, 4 * width), (num_rows, 4 * width))
    )
    sums = torch.zeros(activation.NUM_PROGRAMS, 4 * width)
    activation.fits = lambda *_: True
    activation.gated_product(gradients, weights, inner, dropout=0.0, sums=sums)


def rotate(num_heads: int) -> None:
    """Vectors of some heads, there and back."""
    from staircase_attention.engine.kernels import rotary

    vectors = torch.zeros(2, num_heads, 9, 128, dtype=torch.bfloat16)
    for backwards in (False, True):
        rotary.rotate(
            vectors,
            torch.zeros(2, 99, 64),
            first=1,
            out=vectors,
            backwards=backwards,
            adds=backwards,
        )


def decode(
    schedule: Schedule,
    rows: int,
    dtype: torch.dtype,
    positions: str,
    *,
    num_tokens: int = 1,
    width: int = 512,
    **settings,
) -> None:
    """Every launch of a token, or several. Wider models take longer to compile."""
    from staircase_attention.engine.decoding.launches import Launches

    shape = {"width": width, "num_layers": 1, "num_heads": width // 128}
    core = CoreConfig(**shape, positions=positions, **settings)
    model = SequenceModel(vocab_size=300, core=core, schedule=schedule).to(dtype)
    stream = model.initial_state(rows).streams[0]
    memory = DecoderMemory(model, stream, measured(schedule, core.depth), dtype)
    planner = Planner(schedule, core.depth)
    launches = Launches(
        Weights.of(model, dtype),
        memory,
        attends_self=planner.attends_self,
        early=True,
        num_tokens=num_tokens,
    )
    for launch in launches.all(planner.plan(Layout.of(stream), 0).form):
        launch()


def main() -> None:
    """Compile each kernel with all of its options, and with numbers that Triton takes as 1."""
    compiled: set[str] = set()
    compile_launches(compiled)
    # One query, a single tile and several of them. Tiles of 16 queries compile fastest: dropout
    # takes hundreds of instructions for each thread of a larger tile.
    note_layers(10, 16, heads=1)
    note_layers(70, 128, heads=2)
    attend(9, 5, size=16)
    attend(9, 60, size=64)
    # A single tile in float32, and several of 64 queries.
    attend(2, 1, size=64, heads=1, plain=True, dtype=torch.float32)
    attend(70, 1, size=64, heads=1, plain=True)
    attend(9, 5, size=16, heads=4, group=4)
    attend(130, 1, size=128, heads=8, plain=True, group=4)
    rotate(1)
    rotate(10)
    launch_row_kernels(1, 256)
    launch_gated_product(64, 256)
    launch_gated_product(1, 512)
    # As wide as the paper's widest.
    decode(TransformerXL(span=256), 1, torch.bfloat16, "relative", num_tokens=4, width=1024)
    decode(FeedbackTransformer(span=256), 64, torch.bfloat16, "relative", width=1024)
    cached = CachedStaircase(chunk_size=32, num_window_chunks=8, num_passes=2)
    decode(cached, 8, torch.float32, "rotary")
    modern = {"norm": "rms", "feed_forward": "swiglu", "num_key_value_heads": 2, "bias": False}
    decode(TransformerXL(span=256), 1, torch.bfloat16, "rotary", **modern)
    loop = ParallelLoop(num_passes=4, span=256)
    decode(loop, 1, torch.bfloat16, "relative")
    decode(loop, 8, torch.bfloat16, "rotary", **modern, injection="gated", num_coda_layers=1)
    assert compiled == {
        "activation._backward_kernel",
        "activation._forward_kernel",
        "activation._gated_product_kernel",
        "cross_entropy._score_kernel",
        "decoding.embed_rows",
        "decoding.norm_rows",
        "decoding.product_few",
        "decoding.product_many",
        "decoding_attention.attend_segments",
        "norm._backward_kernel",
        "norm._forward_kernel",
        "norm._sum_columns_kernel",
        "relative_several_kernels.attend_kernel",
        "relative_several_kernels.keys_kernel",
        "relative_several_kernels.queries_by_key_kernel",
        "relative_several_kernels.queries_by_table_kernel",
        "relative_several_kernels.scores_kernel",
        "relative_several_kernels.table_kernel",
        "relative_single.backward_kernel",
        "relative_single.forward_kernel",
        "rotary.rotate_kernel",
        "single_query.forward_kernel",
        "single_query.keys_kernel",
        "single_query.queries_kernel",
        "single_query.table_kernel",
    }, compiled


if __name__ == "__main__":
    main()
