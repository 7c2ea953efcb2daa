"""Models and inputs for the tests: small, of any shape, in float64, with nothing near zero."""

from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    ParallelLoop,
    SequenceModel,
    Staircase,
    State,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.schedules import Schedule, make_schedule

VOCAB_SIZE = 7
OUTPUT_SIZE = 5
EXACT = {"rtol": 0.0, "atol": 1e-9}


def small(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


class WithoutSelf(CachedStaircase):
    """Tokens see cached chunks only: neither themselves nor the rest of their chunk."""

    __slots__ = ()
    attends_self = False


@st.composite
def cached_staircases(draw: st.DrawFn) -> CachedStaircase:
    chunks = draw(small(1, 4))
    return CachedStaircase(
        chunk_size=draw(small(1, 4)),
        num_window_chunks=chunks,
        num_passes=draw(small(0, chunks)),
    )


SCHEDULES: dict[str, st.SearchStrategy[Schedule]] = {
    "staircase": st.builds(Staircase, chunk_size=small(1, 4), num_passes=small(1, 4)),
    "cached-staircase": cached_staircases(),
    "global-cached-staircase": st.builds(
        GlobalCachedStaircase, chunk_size=small(1, 4), num_passes=small(0, 3)
    ),
    "ladder": st.builds(
        Ladder,
        num_passes=small(1, 3),
        span=small(1, 9),
        order=st.sampled_from(["ABAB", "AABB"]),
        span_includes_self=st.booleans(),
    ),
    "transformer-xl": st.builds(TransformerXL, span=small(1, 9), span_includes_self=st.booleans()),
    "universal-transformer": st.builds(
        UniversalTransformer,
        num_passes=small(1, 3),
        span=small(1, 9),
        span_includes_self=st.booleans(),
    ),
    "parallel-loop": st.builds(ParallelLoop, num_passes=small(1, 4), span=small(1, 9)),
    "feedback-transformer": st.builds(
        FeedbackTransformer,
        span=small(1, 6),
        share_keys_values=st.booleans(),
        memory=st.sampled_from(["mix", "top"]),
        attend_self=st.booleans(),
    ),
    "memory-network": st.builds(MemoryNetwork, span=small(1, 6)),
}
"""Every model of the family, in every small shape."""
ALTERNATE = f"{Path(__file__).parent}/examples/alternate.py:AlternateCached"
"""A schedule from a user's own file."""


@st.composite
def alternate_schedules(draw: st.DrawFn) -> Schedule:
    window = draw(small(1, 6))
    options = {"chunk_size": draw(small(1, 3)), "num_window_chunks": window}
    return make_schedule(ALTERNATE, {**options, "num_passes": draw(small(0, min(window, 3)))})


ALL_SCHEDULES = SCHEDULES | {"alternate-cached": alternate_schedules()}


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "norm": st.sampled_from(["layer", "rms"]),
    "feed_forward": st.sampled_from(["relu", "gelu", "swiglu"]),
    "num_key_value_heads": st.none(),
    "qk_norm": st.booleans(),
    "bias": st.booleans(),
    "num_prelude_layers": small(0, 2),
    "num_coda_layers": small(0, 2),
    "injection": st.sampled_from(["none", "add", "normed", "gated"]),
}
"""What the paper's core leaves at its default."""
MODERN: dict[str, Any] = {
    "norm": "rms",
    "feed_forward": "swiglu",
    "num_key_value_heads": 1,
    "qk_norm": True,
    "bias": False,
    "num_prelude_layers": 1,
    "num_coda_layers": 1,
    "injection": "gated",
}


@st.composite
def cores(draw: st.DrawFn, schedule: Schedule) -> CoreConfig:
    heads, half_size = draw(st.sampled_from([1, 2, 3, 4])), draw(small(2, 3))
    positions = draw(st.sampled_from(["relative", "relative", "rotary"]))
    # A table shorter than the reach clips distances, which must be exact too.
    max_distance = draw(st.none() | small(1, 9)) if positions == "relative" else None
    newer = draw(st.just({}) | st.fixed_dictionaries(SETTINGS))
    if "num_key_value_heads" in newer:
        divisors = [number for number in range(1, heads + 1) if heads % number == 0]
        newer["num_key_value_heads"] = draw(st.sampled_from(divisors))
    return CoreConfig(
        **newer,
        width=2 * heads * half_size,
        num_layers=1 if isinstance(schedule, UniversalTransformer) else draw(small(1, 3)),
        num_heads=heads,
        feed_forward_width=draw(st.none() | small(1, 5)),
        positions=positions,
        max_distance=max_distance,
    )


@st.composite
def models(draw: st.DrawFn, name: str) -> SequenceModel:
    schedule = draw(ALL_SCHEDULES[name])
    return build(schedule, draw(cores(schedule)), seed=draw(small(0, 999)))


def build(schedule: Schedule, core: CoreConfig | None = None, *, seed: int = 0) -> SequenceModel:
    """A model in float64 whose every parameter is random and matters."""
    if core is None:
        layers = 1 if isinstance(schedule, UniversalTransformer) else 2
        core = CoreConfig(width=8, num_layers=layers, num_heads=2)
    model = SequenceModel(
        vocab_size=VOCAB_SIZE, output_size=OUTPUT_SIZE, core=core, schedule=schedule
    ).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7, generator=generator)
    return model.eval()


def random_tokens(batch_size: int, length: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB_SIZE, (batch_size, length), generator=generator)


@st.composite
def tokens(draw: st.DrawFn, *, max_batch: int = 3, max_length: int = 19) -> Tensor:
    return random_tokens(
        draw(small(1, max_batch)), draw(small(1, max_length)), seed=draw(small(0, 999))
    )


def feed(model: SequenceModel, pieces: list[Tensor], **options: Any) -> tuple[Tensor, State | None]:
    """The logits of a stream fed in pieces, and its state at the end."""
    state, outputs = None, []
    for piece in pieces:
        logits, state = model(piece, state, **options)
        outputs.append(logits)
    return torch.cat(outputs, dim=1), state


EXAMPLES: dict[str, Schedule] = {
    "staircase": Staircase(chunk_size=3, num_passes=3),
    "cached": CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2),
    "global": GlobalCachedStaircase(chunk_size=3, num_passes=1),
    "ladder": Ladder(num_passes=2, span=5),
    "ladder-AABB": Ladder(num_passes=2, span=5, order="AABB"),
    "xl": TransformerXL(span=5),
    "universal": UniversalTransformer(num_passes=3, span=5),
    "feedback": FeedbackTransformer(span=4),
    "memory": MemoryNetwork(span=4),
    "parallel-loop": ParallelLoop(num_passes=3, span=5),
}
"""One of each kind, for tests that need no more."""


def example_models() -> list[SequenceModel]:
    """One of each schedule, and one whose core has all that the paper's has not."""
    core = CoreConfig(width=8, num_layers=1, num_heads=2, positions="rotary", **MODERN)
    return [*map(build, EXAMPLES.values()), build(EXAMPLES["cached"], core)]


def name_of(model: SequenceModel) -> str:
    order = getattr(model.schedule, "order", "")
    return f"{model.schedule.name}-{order}" if order else model.schedule.name
