"""Whether a token costs the same however long the stream: time, memory and state, as a table.

    OMP_NUM_THREADS=1 python benchmarks/stream_flatness.py --tokens 50000

Each model streams in a process of its own, on one thread, with a tiny core, so that what might
grow with the length (Python objects, positions, buffers) is not hidden behind matrix products. The
first thousand tokens after a warm-up of a thousand are compared with the last thousand, in seconds
of the processor and in resident memory. On a machine with other work even these seconds vary by
more than the question allows; so the stream is also saved before its first thousand, and at the end
the same thousand and the last one are made side by side, fifty tokens of one, fifty of the other.
"""

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.generation import (
    SamplingConfig,
    TokenStream,
    load_stream,
    save_stream,
    stream,
)
from staircase_attention.models import LSTMSequenceModel, State
from staircase_attention.schedules import Schedule

VOCAB_SIZE = 32
WIDTH = 16
THOUSAND = 1000
BLOCK = 50
PAGE = 4096
MEBI = 1 << 20
SCHEDULES: dict[str, Schedule] = {
    "staircase": Staircase(chunk_size=8, num_passes=3),
    "cached-staircase": CachedStaircase(chunk_size=8, num_window_chunks=4, num_passes=2),
    "global-cached-staircase": GlobalCachedStaircase(chunk_size=8, num_passes=1),
    "ladder ABAB": Ladder(num_passes=2, span=24),
    "ladder AABB": Ladder(num_passes=2, span=24, order="AABB"),
    "transformer-xl": TransformerXL(span=24),
    "universal-transformer": UniversalTransformer(num_passes=3, span=24),
    "feedback-transformer": FeedbackTransformer(span=24),
    "memory-network": MemoryNetwork(span=24),
}
NAMES = [*SCHEDULES, "lstm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """What a thousand tokens took, and what was held after them."""

    seconds: float
    resident: int
    state: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A stream near its beginning and at its end."""

    first: Moment
    last: Moment
    ratio: float
    """Seconds of the last thousand over those of the first, made side by side."""


def build(name: str) -> SequenceModel | LSTMSequenceModel:
    """A tiny model of one kind."""
    torch.manual_seed(0)
    if name == "lstm":
        return LSTMSequenceModel(
            vocab_size=VOCAB_SIZE, output_size=VOCAB_SIZE, width=WIDTH, num_layers=2
        ).eval()
    num_layers = 1 if name == "universal-transformer" else 2
    core = CoreConfig(width=WIDTH, num_layers=num_layers, num_heads=2)
    return SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=SCHEDULES[name]).eval()


def measure(name: str, num_tokens: int) -> Result:
    """Stream to the end, and compare it with its own beginning."""
    torch.set_num_threads(1)
    model = build(name)
    sampling = SamplingConfig(top_p=0.95, repetition_penalty=1.1)
    tokens = stream(model, [1, 2, 3], max_tokens=None, sampling=sampling)
    with tempfile.TemporaryDirectory() as folder:
        early, late = Path(folder) / "early", Path(folder) / "late"
        go_on(tokens, THOUSAND)
        save_stream(tokens, early)
        first = go_on(tokens, THOUSAND)
        go_on(tokens, num_tokens - 3 * THOUSAND)
        save_stream(tokens, late)
        last = go_on(tokens, THOUSAND)
        ratio = side_by_side(load_stream(early, model), load_stream(late, model))
    return Result(first=first, last=last, ratio=ratio)


def go_on(tokens: TokenStream, number: int) -> Moment:
    """Make some tokens."""
    begin = time.process_time()
    for _ in range(number):
        next(tokens)
    return Moment(
        seconds=time.process_time() - begin,
        resident=PAGE * int(Path("/proc/self/statm").read_text().split()[1]),
        state=_state_bytes(tokens),
    )


def side_by_side(early: TokenStream, late: TokenStream) -> float:
    """What a thousand tokens of one cost over what they cost of the other."""
    spent = {id(early): 0.0, id(late): 0.0}
    for _ in range(THOUSAND // BLOCK):
        for tokens in (early, late):
            begin = time.process_time()
            for _ in range(BLOCK):
                next(tokens)
            spent[id(tokens)] += time.process_time() - begin
    return spent[id(late)] / spent[id(early)]


def _state_bytes(tokens: TokenStream) -> int:
    state = tokens.stepper.state
    if isinstance(state, State):
        return state.num_bytes
    return sum(part.numel() * part.element_size() for part in (state.hidden, state.cell))


def row(name: str, result: Result) -> str:
    """One line of the table."""
    first, last = result.first, result.last
    cells = [
        name,
        f"{first.seconds:.2f}",
        f"{last.seconds:.2f}",
        f"{last.seconds / first.seconds:.2f}",
        f"{result.ratio:.3f}",
        f"{first.resident / MEBI:.1f}",
        f"{last.resident / MEBI:.1f}",
        f"{first.state}",
        f"{last.state}",
    ]
    return f"| {' | '.join(cells)} |"


TITLES = (
    "| model | first 1000, s | last 1000, s | ratio | ratio side by side "
    "| resident first, MiB | last, MiB | state first, bytes | last, bytes |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Print the table, line by line as models are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000, help="at least 3000")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    print(TITLES, flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for name in options.models:
            result = pool.submit(measure, name, options.tokens).result()
            print(row(name, result), flush=True)


if __name__ == "__main__":
    main()
