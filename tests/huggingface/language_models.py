"""Small causal language models of every kind, and a plain loop to compare `generate()` with."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from building import EXAMPLES as SCHEDULES
from staircase_attention import CoreConfig, SequenceModel, UniversalTransformer
from staircase_attention.huggingface import StaircaseConfig, StaircaseForCausalLM
from staircase_attention.schedules import Schedule

VOCAB_SIZE = 29
SEED = 2
SMALL = {
    "vocab_size": VOCAB_SIZE,
    "width": 16,
    "num_layers": 2,
    "num_heads": 2,
    "schedule": {"name": "staircase", "chunk_size": 4, "num_passes": 2},
}


def build(
    schedule: Schedule | str = "staircase",
    *,
    vocab_size: int = VOCAB_SIZE,
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> SequenceModel:
    """A model that does not repeat itself, so that a wrong state makes other tokens."""
    schedule = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    layers = 1 if isinstance(schedule, UniversalTransformer) else 2
    core = CoreConfig(width=16, num_layers=layers, num_heads=2, **settings)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(SEED)
        model = SequenceModel(vocab_size=vocab_size, core=core, schedule=schedule)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() == 1:
                parameter.add_(0.1 * noise)
            else:
                inputs = 1 if name == "embedding.weight" else parameter.shape[1]
                parameter.copy_(2.0 * noise / inputs**0.5)
    return model.to(dtype).eval()


def small_model(seed: int = 0) -> StaircaseForCausalLM:
    torch.manual_seed(seed)
    return StaircaseForCausalLM(StaircaseConfig(**SMALL))


def prompt(length: int, *, rows: int = 1, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (rows, length), generator=generator)


@torch.no_grad()
def greedy(model: SequenceModel, tokens: Tensor, num_new: int) -> Tensor:
    """The likeliest token, again and again."""
    logits, state = model(tokens)
    for left in reversed(range(num_new)):
        newest = logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, newest], dim=1)
        if left:
            logits, state = model(newest, state)
    return tokens


def padded_left(rows: list[Tensor], *, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as one batch, and its mask."""
    longest = max(row.shape[-1] for row in rows)
    tokens = torch.full((len(rows), longest), pad)
    mask = torch.zeros_like(tokens)
    for number, row in enumerate(rows):
        start = longest - row.shape[-1]
        tokens[number, start:] = row
        mask[number, start:] = 1
    return tokens, mask


def padded_right(rows: list[Tensor], *, pad: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of unequal length as one batch, its mask, and its labels."""
    longest = max(row.shape[1] for row in rows)
    rests = [longest - row.shape[1] for row in rows]
    pairs = list(zip(rows, rests, strict=True))
    tokens = torch.cat([functional.pad(row, (0, rest), value=pad) for row, rest in pairs])
    labels = torch.cat([functional.pad(row, (0, rest), value=-100) for row, rest in pairs])
    mask = torch.cat([functional.pad(torch.ones_like(row), (0, rest)) for row, rest in pairs])
    return tokens, mask, labels
