"""FlexAttention and torch.compile beside the engine's kernels, for the steps of a Staircase.

    python benchmarks/flex_attention.py results.json               # on a GPU, about two minutes
    python benchmarks/flex_attention.py results.json --device cpu  # tiny shapes, logic only

Two things are timed, forward and backward together, by CUDA events, in bfloat16: relative-position
attention of one window (queries = keys = N * C), and a step of that window through two layers of
the core. Every result is compared with float32 attention, or the float32 plain core: the relative
error of the output and the largest one among the gradients. A variant that fails or takes too long
has its error line in the table instead.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from decoding import say, seconds
from torch import Tensor

from staircase_attention import CoreConfig, SequenceModel, Staircase
from staircase_attention.attention import View
from staircase_attention.attention import attend as plain_attend
from staircase_attention.engine.backend import FusedBackend
from staircase_attention.layers import Core
from staircase_attention.models.backend import PlainBackend

VARIANT_SECONDS = 45
TOTAL_SECONDS = 165
"""After this no other variant is started."""
NUM_LAYERS = 2
NAMES = ("queries", "keys", "values", "table")
WITHOUT_POSITIONS = "FlexAttention without positions"
"""Another function, and so wrong: what the table's part of the time is seen against."""
TOLERANCE = 5e-2
"""Largest relative error that counts as correct in bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One of the four models that the engine is measured on."""

    name: str
    width: int
    num_heads: int
    num_passes: int
    chunk_size: int
    batch: int

    @property
    def window(self) -> int:
        """N * C."""
        return self.num_passes * self.chunk_size

    @property
    def head_size(self) -> int:
        """Of queries, keys and values."""
        return self.width // self.num_heads


SIZES = (
    Size(name="algorithm", width=256, num_heads=4, num_passes=4, chunk_size=16, batch=256),
    Size(name="random-walk", width=256, num_heads=4, num_passes=8, chunk_size=8, batch=512),
    Size(name="enwik8", width=512, num_heads=8, num_passes=4, chunk_size=64, batch=128),
    Size(name="reddit", width=1024, num_heads=8, num_passes=8, chunk_size=32, batch=32),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One variant at one size."""

    what: str
    size: str
    variant: str
    milliseconds: float | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    first_call_seconds: float | None = None
    error: str | None = None

    def __str__(self) -> str:
        start = f"| {self.what} | {self.size} | {self.variant} "
        if self.error is not None:
            return f"{start}| {self.error[:90]} | | |"
        return (
            f"{start}| {self.milliseconds:.3f} ms | {self.output_error:.1e} "
            f"| {self.gradient_error:.1e} |"
        )


Inputs = list[Tensor]
Work = Callable[[Inputs], Tensor]
"""From leaves that take gradients to an output."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError when the time is over."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def view_of(size: Size, device: torch.device) -> View:
    """A window without a past."""
    window = size.window
    return View(num_queries=window, num_keys=window, first_query=0, device=device)


def attention_inputs(size: Size, device: torch.device) -> Inputs:
    """Queries, keys, values [batch, heads, window, size] and the table [window, size]."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (size.batch, size.num_heads, size.window, size.head_size)
    shapes = [shape, shape, shape, (size.window, size.head_size)]
    return [torch.randn(one, generator=generator, device=device) for one in shapes]


def relative(attend: Callable[..., Tensor], view: View) -> Work:
    """Attention by a function with our signature."""

    def work(inputs: Inputs) -> Tensor:
        queries, keys, values, table = inputs
        return attend(queries, keys, values, table=table, view=view, dropout=0.0)

    return work


class EngineAttention(torch.autograd.Function):
    """The kernels alone, without a past; the fused core calls them in its own backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        """Attention of queries, keys, values and a table."""
        from staircase_attention.engine.kernels import relative_attention, relative_parts

        named = dict(zip(NAMES, inputs, strict=True))
        out, logsumexp = relative_attention.forward(relative_parts.Call(**named, first_query=0))
        ctx.save_for_backward(*inputs, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]  # noqa: ANN401
        """The gradients of all four."""
        from staircase_attention.engine.kernels import relative_attention, relative_parts

        *inputs, out, logsumexp = ctx.saved_tensors
        found = dict(zip(NAMES[:3], map(torch.empty_like, inputs), strict=False))
        named, table = dict(zip(NAMES, inputs, strict=True)), inputs[-1]
        sums = table.new_zeros(relative_attention.NUM_TABLE_SUMS, *table.shape, dtype=torch.float32)
        gradients = relative_parts.Gradients(past=None, adds_past=False, table_sums=sums, **found)
        call = relative_parts.Call(**named, first_query=0)
        relative_attention.backward(call, d_out, out, logsumexp, gradients)
        return *found.values(), sums.sum(0).to(table.dtype)


def flex(size: Size, device: torch.device, *, has_table: bool) -> Work:
    """FlexAttention: scores gain P[query, query - key], where P = Q Rᵀ / √d."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    mask = create_block_mask(is_visible, None, None, size.window, size.window, device=device.type)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
        by_distance = (queries @ table.T) * size.head_size**-0.5

        def add_position(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
        ) -> Tensor:
            distance = torch.clamp(query - key, min=0)
            return score + by_distance[batch, head, query, distance]

        modify = add_position if has_table else None
        found: Tensor = flex_attention(queries, keys, values, score_mod=modify, block_mask=mask)
        return found

    # Without compilation FlexAttention computes all scores; that is for a CPU's tiny shapes only.
    run = attend if device.type == "cpu" else torch.compile(attend)
    return lambda inputs: run(*inputs)


def build_core(size: Size, device: torch.device) -> Core:
    """Two layers of a model of this size."""
    torch.manual_seed(0)
    model = SequenceModel(
        vocab_size=16,
        core=CoreConfig(width=size.width, num_layers=NUM_LAYERS, num_heads=size.num_heads),
        schedule=Staircase(chunk_size=size.chunk_size, num_passes=size.num_passes),
    )
    return model.core.to(device)


def core_step(
    core: Core, view: View, *, fused: bool, compiles: bool, dtype: torch.dtype | None
) -> Work:
    """A window through all layers, in autocast; the inputs are hidden states and parameters."""
    layers = range(NUM_LAYERS)

    def step(runner: Callable[..., object], hidden: Tensor) -> Tensor:
        trip = runner(hidden, layers=layers, past=[[] for _ in layers], view=view)
        found: Tensor = trip.hidden  # type: ignore[attr-defined]
        return found

    run = torch.compile(step) if compiles else step

    def work(inputs: Inputs) -> Tensor:
        hidden, enabled = inputs[0], dtype is not None
        with torch.autocast(hidden.device.type, dtype or torch.bfloat16, enabled=enabled):
            # The fused core casts weights once per forward pass, so that it is made here.
            backend = FusedBackend() if fused else PlainBackend()
            return run(backend.runner(core, hidden, recompute=False), hidden)

    return work


def results(work: Work, inputs: Inputs, weights: Tensor) -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    output = work(inputs)
    gradients = torch.autograd.grad(
        (output.float() * weights).sum(), inputs, materialize_grads=True
    )
    return [output.detach().float(), *(one.float() for one in gradients)]


def milliseconds(work: Work, inputs: Inputs, weights: Tensor, *, repeats: int) -> float:
    """Of a forward and backward pass; the best of three averages."""

    def once() -> None:
        output = work(inputs)
        torch.autograd.grad(output, inputs, weights.to(output.dtype), materialize_grads=True)

    if not weights.is_cuda:
        start = time.perf_counter()
        once()
        return 1e3 * (time.perf_counter() - start)
    return min(1e3 * seconds(once, repeats=repeats, warm_up=3) for _ in range(3))


def errors(found: list[Tensor], expected: list[Tensor]) -> tuple[float, float]:
    """Relative errors of the output, and the largest of the gradients'."""
    relative_errors = [
        float((one - other).norm() / other.norm().clamp(min=1e-12))
        for one, other in zip(found, expected, strict=True)
    ]
    return relative_errors[0], max(relative_errors[1:])


def measure(row: Row, make: Callable[[], Work], inputs: Inputs, expected: list[Tensor]) -> Row:
    """A variant's time and errors, or why there are none."""
    weights = weights_like(expected[0])
    try:
        with time_limit(VARIANT_SECONDS):
            start = time.perf_counter()
            work = make()
            found = results(work, inputs, weights)
            if weights.is_cuda:
                torch.cuda.synchronize()
            first = time.perf_counter() - start
            output_error, gradient_error = errors(found, expected)
            taken = milliseconds(work, inputs, weights, repeats=20)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return replace(row, error=f"{type(error).__name__}: {lines[0]}")
    is_same = row.variant != WITHOUT_POSITIONS
    wrong = is_same and max(output_error, gradient_error) > TOLERANCE
    return replace(
        row,
        milliseconds=taken,
        output_error=output_error,
        gradient_error=gradient_error,
        first_call_seconds=first,
        variant=f"{row.variant} (WRONG)" if wrong else row.variant,
    )


def weights_like(output: Tensor) -> Tensor:
    """Fixed random numbers that stand for the gradient of a loss."""
    generator = torch.Generator(output.device).manual_seed(1)
    return torch.randn(output.shape, generator=generator, device=output.device)


def attention_variants(size: Size, device: torch.device) -> dict[str, Callable[[], Work]]:
    """By name; made when their turn comes."""
    view = view_of(size, device)
    compiles = device.type != "cpu"
    return {
        # The kernels are for GPUs.
        "engine": lambda: (
            (lambda inputs: EngineAttention.apply(*inputs))
            if compiles
            else relative(plain_attend, view)
        ),
        "plain": lambda: relative(plain_attend, view),
        "FlexAttention": lambda: flex(size, device, has_table=True),
        WITHOUT_POSITIONS: lambda: flex(size, device, has_table=False),
        "plain, torch.compile": lambda: relative(
            torch.compile(plain_attend) if compiles else plain_attend, view
        ),
    }


def attention_rows(
    size: Size, device: torch.device, dtype: torch.dtype
) -> Iterator[Callable[[], Row]]:
    """One measurement after another."""
    exact = [one.requires_grad_() for one in attention_inputs(size, device)]
    view = view_of(size, device)
    output = relative(plain_attend, view)(exact)
    expected = results(relative(plain_attend, view), exact, weights_like(output))
    inputs = [one.detach().to(dtype).requires_grad_() for one in exact]
    for name, make in attention_variants(size, device).items():
        row = Row(what="attention", size=size.name, variant=name)
        yield lambda row=row, make=make: measure(row, make, inputs, expected)


def core_rows(size: Size, device: torch.device, dtype: torch.dtype) -> Iterator[Callable[[], Row]]:
    """The same for a step through the core."""
    core, view = build_core(size, device), view_of(size, device)
    generator = torch.Generator(device).manual_seed(2)
    shape = (size.batch, size.window, size.width)
    hidden = torch.randn(shape, generator=generator, device=device).requires_grad_()
    inputs = [hidden, *core.parameters()]
    exact = core_step(core, view, fused=False, compiles=False, dtype=None)
    expected = results(exact, inputs, weights_like(exact(inputs)))
    kinds = {
        "engine": (True, False),
        "plain": (False, False),
        "plain, torch.compile": (False, True),
    }
    for name, (fused, compiles) in kinds.items():
        row = Row(what="core step", size=size.name, variant=name)

        def make(*, fused: bool = fused, compiles: bool = compiles) -> Work:
            compiles = compiles and device.type != "cpu"
            return core_step(core, view, fused=fused, compiles=compiles, dtype=dtype)

        yield lambda row=row, make=make: measure(row, make, inputs, expected)


def main() -> None:
    """Measure all, print a table, and write the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="where the JSON goes")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    sizes, dtype = list(SIZES), torch.bfloat16
    if device.type == "cpu":
        sizes = [replace(one, width=64, num_heads=4, batch=1, chunk_size=4) for one in SIZES[:1]]
        dtype = torch.float32
    began = time.perf_counter()
    rows: list[Row] = []
    for kind in (attention_rows, core_rows):
        for size in sizes:
            torch._dynamo.reset()
            for measured in kind(size, device, dtype):
                if time.perf_counter() - began > TOTAL_SECONDS:
                    say(f"out of time before the rest of {kind.__name__} at {size.name}")
                    break
                rows.append(measured())
                say(rows[-1])
                options.output.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    say(f"\ntorch {torch.__version__}, {time.perf_counter() - began:.0f} s")
    say("| what | size | variant | forward and backward | output error | gradient error |")
    say("|---|---|---|---|---|---|")
    for row in rows:
        say(row)


if __name__ == "__main__":
    main()
