"""`staircase demo`: every model built, drawn and streamed on this machine."""

import time

import torch
from rich.console import Console
from rich.table import Table

from staircase_attention.drawing import picture, render_terminal
from staircase_attention.layers import CoreConfig
from staircase_attention.models import SequenceModel
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    Schedule,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)

FAMILY: tuple[Schedule, ...] = (
    Staircase(chunk_size=8, num_passes=3),
    CachedStaircase(chunk_size=8, num_window_chunks=4, num_passes=2),
    GlobalCachedStaircase(chunk_size=8, num_passes=1),
    Ladder(num_passes=3, span=24),
    TransformerXL(span=24),
    UniversalTransformer(num_passes=3, span=24),
    FeedbackTransformer(span=4),
    MemoryNetwork(span=4),
)
LENGTH = 100


def demo() -> None:
    """Build every model, draw it, and stream a sequence through it."""
    console = Console()
    torch.manual_seed(0)
    tokens = torch.randint(256, (1, LENGTH))
    results = Table(title=f"A sequence of {LENGTH} tokens, at once and one token at a time")
    for heading in ("model", "parameters", "largest difference", "state bytes", "tokens/s"):
        results.add_column(heading, justify="left" if heading == "model" else "right")
    for schedule in FAMILY:
        console.print(render_terminal(picture(schedule)))
        console.print()
        results.add_row(*stream(schedule, tokens))
    console.print(results)


@torch.no_grad()
def stream(schedule: Schedule, tokens: torch.Tensor) -> list[str]:
    """One row of the table: the same stream whole and in pieces, in float64."""
    layers = 1 if isinstance(schedule, UniversalTransformer) else 2
    core = CoreConfig(width=64, num_layers=layers, num_heads=4)
    model = SequenceModel(vocab_size=256, core=core, schedule=schedule).double().eval()
    whole, _ = model(tokens)
    began = time.perf_counter()
    state, pieces = model.initial_state(1), []
    for token in torch.split(tokens, 1, dim=1):
        logits, state = model(token, state)
        pieces.append(logits)
    speed = LENGTH / (time.perf_counter() - began)
    difference = (torch.cat(pieces, dim=1) - whole).abs().max().item()
    return [
        schedule.name,
        f"{model.num_parameters:,}",
        f"{difference:.0e}",
        f"{state.num_bytes:,}",
        f"{speed:,.0f}",
    ]
