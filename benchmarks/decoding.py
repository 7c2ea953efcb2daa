"""What a token costs a decoder, beside the least it can cost: reading the weights once per pass.

    python benchmarks/decoding.py                # all models, batches of 1, 8 and 64
    python benchmarks/decoding.py --steps        # one row: drafts, and several tokens in one step

Models have the shape of the paper's 117M ones, random weights and bfloat16. A decoder first fills
its window, so that every token costs what any later one does; then 200 tokens are timed between two
events. The floor is the bytes of all weights that a token must read over the bandwidth of a copy on
this device. Tokens per second are those of all rows together. `--steps` times models of the size of
Enwik8's at batch 1: what self-speculation makes of them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from staircase_attention import (
    CoreConfig,
    Ladder,
    ParallelLoop,
    SequenceModel,
    Staircase,
    TransformerXL,
)
from staircase_attention.engine.decoding import Decoder
from staircase_attention.schedules import Schedule

SCHEDULES: dict[str, Schedule] = {
    "transformer-xl, span 256": TransformerXL(span=256),
    "parallel loop, N 4, span 256": ParallelLoop(num_passes=4, span=256),
    "staircase, N 8, C 32": Staircase(chunk_size=32, num_passes=8),
}
STEPPED: dict[str, Schedule] = {
    "transformer-xl, span 256": TransformerXL(span=256),
    "parallel loop, N 4, span 256": ParallelLoop(num_passes=4, span=256),
    "ladder, N 8, span 256": Ladder(num_passes=8, span=256),
    "staircase, N 8, C 64": Staircase(chunk_size=64, num_passes=8),
}
DRAFT_PASSES = (1, 2)
NUM_TOKENS = (1, 4, 8, 16)
BATCHES = (1, 8, 64)
VOCAB_SIZE = 8008
WINDOW = 256
NUM_STEPS = 200
MICRO = 1e6
# A line is seen at once, also where a run is cut short.
say = partial(print, flush=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the table."""

    name: str
    batch: int
    early: bool
    micros: float
    floor: float
    num_kernels: int
    is_captured: bool

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return self.batch * MICRO / self.micros

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.batch} | {'early' if self.early else 'in turn'} "
            f"| {self.micros:.1f} | {self.floor:.1f} | {self.micros / self.floor:.2f} "
            f"| {self.tokens_per_second:,.0f} | {self.num_kernels} | {self.is_captured} |"
        )


def seconds(run: Callable[[], object], *, repeats: int, warm_up: int = 20) -> float:
    """Device seconds of one run."""
    for _ in range(warm_up):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def copy_bandwidth() -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), repeats=20, warm_up=5)


def build(schedule: Schedule, width: int = 1024) -> SequenceModel:
    """A model of the paper's larger size, or narrower."""
    core = CoreConfig(width=width, num_layers=8, num_heads=8, feed_forward_width=4 * width)
    with torch.device("cuda"):
        model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule)
    return model.bfloat16().eval()


def floor_seconds(decoder: Decoder, schedule: Schedule, bandwidth: float) -> float:
    """All layers' weights once per pass, and the output's once."""
    weights = decoder.weights
    num_passes = schedule.num_passes if isinstance(schedule, Staircase) else 1
    parts = (weights.projections, weights.output, weights.expand, weights.contract)
    matrices = sum(one.nbytes for one in parts)
    return (num_passes * matrices + weights.logits.nbytes) / bandwidth


def measure(
    name: str, model: SequenceModel, batch: int, bandwidth: float, *, early: bool
) -> tuple[Measured, torch.Tensor, Decoder]:
    """Time a decoder with a full window; also its first logits, to compare."""
    decoder = Decoder(model, model.initial_state(batch), early=early)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB_SIZE, (batch, 8), generator=generator).cuda()
    first = torch.stack([decoder.step(token).clone() for token in tokens.T], dim=1)
    for _ in range(WINDOW + 8):
        decoder.step(tokens[:, 0])
    taken = seconds(lambda: decoder.step(tokens[:, 0]), repeats=NUM_STEPS)
    row = Measured(
        name=name,
        batch=batch,
        early=early,
        micros=MICRO * taken,
        floor=MICRO * floor_seconds(decoder, model.schedule, bandwidth),
        num_kernels=decoder.num_kernels,
        is_captured=decoder.is_captured,
    )
    return row, first, decoder


def measure_steps(name: str, model: SequenceModel) -> str:
    """Microseconds of drafts in some passes, and of several tokens in one step, with full windows.

    Each is taken back, so that all are made at the same place; that is part of the time.
    """
    decoder = Decoder(model, model.initial_state(1), slack=max(NUM_TOKENS))
    token = torch.zeros(1, max(NUM_TOKENS), dtype=torch.int64, device="cuda")
    for _ in range(2 * model.schedule.default_max_distance):
        decoder.step(token[:, 0])

    def taken(number: int, most_passes: int | None = None) -> str:
        if number > decoder.room:
            return "-"

        def step() -> None:
            decoder.step(token[:, :number], most_passes)
            decoder.undo(number)

        return f"{MICRO * seconds(step, repeats=NUM_STEPS):.1f}"

    times = [taken(1, passes) for passes in DRAFT_PASSES] + [taken(one) for one in NUM_TOKENS]
    return f"| {name} | {' | '.join(times)} |"


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to what is expected."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def check(model: SequenceModel, first: torch.Tensor) -> None:
    """Say how far a decoder's logits are from the model's own."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB_SIZE, (len(first), 8), generator=generator).cuda()
    try:
        expected, _ = model(tokens)
        say(f"  relative distance from the model's own logits: {distance(first, expected):.1e}")
    except Exception as error:
        say(f"  the model itself failed: {error}")


def growth(rows: list[Measured], name: str) -> str:
    """How much tokens per second grow from the smallest batch to the largest."""
    best = {
        batch: max(row.tokens_per_second for row in rows if row.batch == batch and row.name == name)
        for batch in {row.batch for row in rows if row.name == name}
    }
    if len(best) < 2:  # noqa: PLR2004
        return ""
    low, high = min(best), max(best)
    return f"{name}: from batch {low} to {high} tokens/s grow {best[high] / best[low]:.1f}x"


@torch.no_grad()
def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    if options.steps:
        drafts = " | ".join(f"draft, {one} of the passes" for one in DRAFT_PASSES)
        say(f"| us | {drafts} | {' | '.join(f'{one} tokens' for one in NUM_TOKENS)} |")
        say("|---" * (1 + len(DRAFT_PASSES) + len(NUM_TOKENS)) + "|")
        for name, schedule in STEPPED.items():
            say(measure_steps(name, build(schedule, width=512)))
        return
    bandwidth = copy_bandwidth()
    say(f"{torch.cuda.get_device_name()}: a copy moves {bandwidth / 1e12:.2f} TB/s")
    rows = []
    for name, schedule in SCHEDULES.items():
        model = build(schedule)
        for batch in options.batches:
            by_kind = {}
            for early in (False, True):
                try:
                    row, first, decoder = measure(name, model, batch, bandwidth, early=early)
                except Exception as error:
                    say(f"{name}, batch {batch}, early={early} failed: {error!r}")
                    continue
                rows.append(row)
                by_kind[early] = first
                say(row)
                del decoder
                torch.cuda.empty_cache()
            if by_kind:
                check(model, next(iter(by_kind.values())))
            if len(by_kind) == 2:  # noqa: PLR2004
                gap = distance(by_kind[True], by_kind[False])
                say(f"  early and in turn differ by {gap:.1e} (must be 0)")
    say("\n| model | batch | kernels begin | us | floor, us | ratio | tokens/s | kernels | graph |")
    say("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        say(row)
    for name in SCHEDULES:
        say(growth(rows, name))


if __name__ == "__main__":
    main()
