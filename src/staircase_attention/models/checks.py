"""Checks of what a user hands to a model: rule, received value, way out."""

import torch
from torch import Tensor

from staircase_attention.layers import CoreConfig
from staircase_attention.schedules import Schedule

EXAMPLES = {
    "core": "CoreConfig(width=512, num_layers=8, num_heads=8)",
    "schedule": "Staircase(chunk_size=64, num_passes=4)",
}


def check_parts(core: CoreConfig, schedule: Schedule) -> None:
    """Refuse parts that are not what their names say."""
    for part, kind, name in ((core, CoreConfig, "core"), (schedule, Schedule, "schedule")):
        if not isinstance(part, kind):
            raise TypeError(
                f"{name} must be a {kind.__name__}, got {part!r}; build one, as {EXAMPLES[name]}"
            )


def check_sizes(**sizes: int) -> None:
    """Refuse numbers of symbols that are not whole and positive."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be a whole number, got {size!r}; give one, as 256")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}; give the symbols there are")


def check_order(order: str) -> None:
    """Refuse an unknown way of walking the timetable."""
    if order not in ("window", "chunk"):
        raise ValueError(f"order must be 'window' or 'chunk', got {order!r}; choose one of these")


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse tokens that are not a batch of symbols of the vocabulary."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(
            f"tokens must be a tensor of int64 or int32, got {kind}; convert with tokens.long()"
        )
    if tokens.dim() != 2 or tokens.shape[0] == 0:  # noqa: PLR2004
        raise ValueError(
            f"tokens must be batch x time with at least one row, got shape {tuple(tokens.shape)}; "
            "for one sequence use tokens[None]"
        )
    # A check of the values waits for the device, which a graph under capture cannot.
    if tokens.numel() == 0 or torch.compiler.is_compiling() or _is_capturing(tokens.device):
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"token ids must be from 0 to vocab_size - 1 = {vocab_size - 1}, "
            f"got ids from {low} to {high}; check the tokeniser, or build with a larger vocab_size"
        )


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
