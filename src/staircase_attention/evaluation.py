"""Loss and error of a trained model, in total and by position.

Every answer is counted once, and state is carried through every lane.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import input_error
from staircase_attention.data import TokenSplit
from staircase_attention.display import Display, Lines, counted, words
from staircase_attention.tasks import Episodes, evaluation_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Loss and error over a number of answers."""

    loss: float
    """Mean negative log-likelihood per answer, in nats."""
    error: float
    """Fraction of answers that were not the model's first choice."""
    num_answers: int

    @classmethod
    def of(cls, loss: float, num_wrong: float, num_answers: int) -> "Score":
        """From sums over the answers."""
        return cls(loss=loss / num_answers, error=num_wrong / num_answers, num_answers=num_answers)

    def to_plain(self) -> dict[str, Any]:
        """The score as plain data."""
        return asdict(self)


def title(split: str, score: Mapping[str, Any]) -> str:
    """The name of a split, and how much of it was scored if not all.

    >>> title("test", {"num_tokens": 16384, "split_tokens": 5000000})
    'test (first 16,384 of 5,000,000 tokens)'
    """
    part, whole = score.get("num_tokens"), score.get("split_tokens")
    if whole is None or part == whole:
        return split
    return f"{split} (first {part:,} of {counted(whole, 'tokens')})"


def measures(score: Mapping[str, Any]) -> str:
    """The measures of a score in words: what is no count.

    >>> measures({"loss": 0.5, "error": 0.25, "num_answers": 8})
    'error 25.00%  loss 0.5000'
    """
    known = {name: value for name, value in score.items() if isinstance(value, float)}
    return words({name: known[name] for name in ("mean_passes", "error") if name in known} | known)


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str,
    precision: torch.dtype = torch.float32,
    carries_state: bool = True,
) -> Score:
    """Score a model on consecutive batches; options as of `answered`."""
    device = torch.device(device)
    # Summed on the device in float64: no synchronisation per batch, no rounding.
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    num_answers = 0
    for batch, logits, targets in answered(
        model, batches, device=device, precision=precision, carries_state=carries_state
    ):
        totals += torch.stack([part.double() for part in loss_and_wrong(logits, targets)])
        num_answers += batch.num_answers
    if num_answers == 0:
        rule = "batches must ask for at least one answer"
        raise input_error(rule, "none", "make them again if they have been iterated over before")
    loss, wrong = totals.tolist()
    return Score.of(loss, wrong, num_answers)


def displayed(batches: Iterable[Batch], num_tokens: int, display: Display) -> Iterator[Batch]:
    """The same batches, and now and then a line of how far they are."""
    lines, done = Lines(), 0
    lines.say = display.say  # type: ignore[method-assign]
    lines.begin("", done, num_tokens)
    for batch in batches:
        yield batch
        done += batch.num_answers
        lines.advance(done)


def score_by_position(
    model: nn.Module,
    batches: Iterable[Batch],
    positions: Iterable[NDArray[np.int64]],
    **options: Any,  # noqa: ANN401
) -> dict[int, Score]:
    """The scores of the answers at positions 0, 1, 2 to 3, 4 to 7, ...; options as of `answered`.

    `positions` gives, for every batch, an array of its shape. The key is the lower bound of each
    range. Every answer is counted once, as in `evaluate`.
    """
    # Per range the sums of loss, wrong answers and answers.
    sums: dict[int, Any] = defaultdict(float)
    answers = answered(model, batches, **options)
    for (batch, logits, targets), places in zip(answers, positions, strict=True):
        asked = batch.targets != IGNORED
        losses = token_losses(logits, targets, reduction="none").view(targets.shape)
        wrong = logits.argmax(-1) != targets
        facts = np.stack([part.double().cpu().numpy()[asked] for part in (losses, wrong)], -1)
        # A place is m 2^e with m in [1/2, 1): 2^(e-1) is its range's lower bound. Of 0, e is 0, and
        # the half is cut off.
        bounds = np.ldexp(0.5, np.frexp(places[asked])[1]).astype(np.int64)
        for bound in np.unique(bounds).tolist():
            here = facts[bounds == bound]
            sums[bound] += np.array([*here.sum(0), len(here)])
    return {
        bound: Score.of(loss, wrong, round(count))
        for bound, (loss, wrong, count) in sorted((one, sums[one].tolist()) for one in sums)
    }


def episode_positions(
    episodes: Episodes, *, num_lanes: int, segment_length: int
) -> Iterator[NDArray[np.int64]]:
    """Where tokens stand in their episodes, counted from 0, by batch."""
    # Dealt into lanes in the same way as the tokens.
    places = np.arange(len(episodes.inputs)) - np.repeat(episodes.starts, episodes.lengths)
    numbered = replace(episodes, inputs=places)
    for batch in evaluation_batches(numbered, num_lanes=num_lanes, segment_length=segment_length):
        yield batch.inputs


class Places:
    """A split whose tokens say how far they are from the first one of their document.

    Its batches are those of the split, with the positions of the answers as targets. A document's
    first token, which is predicted from the document before it, is at 0.
    """

    def __init__(self, split: TokenSplit) -> None:
        self.num_tokens = split.num_tokens
        self.end_symbol = None if split.end_symbol is None else IGNORED
        self.document_starts = np.asarray(split.document_starts, dtype=np.int64)

    def rows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The places of tokens from each start on."""
        tokens = (starts[:, None] + np.arange(length)) % self.num_tokens
        documents = np.searchsorted(self.document_starts, tokens, side="right") - 1
        return tokens - self.document_starts[documents]


def answered(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    carries_state: bool = True,
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Each batch with the model's logits and the targets, both on the device.

    Without gradients and dropout; afterwards the model is in its former mode again. Without
    `carries_state` every batch starts from an empty state, as episodes that fill their segments do.
    """
    state, was_training = None, model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                inputs, targets = (
                    torch.from_numpy(part).to(device) for part in (batch.inputs, batch.targets)
                )
                with autocast(device, precision):
                    logits, state = model(inputs, state if carries_state else None)
                # Inputs are checked by the model, but a split's last answer is never an input.
                if (largest := int(batch.targets.max(initial=0))) >= logits.shape[-1]:
                    rule = f"answers must be below the model's {logits.shape[-1]} outputs"
                    raise input_error(rule, largest, "use data that was prepared for this model")
                yield batch, logits, targets
    finally:
        model.train(was_training)


def loss_and_wrong(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss over the answers, and the number of wrong ones."""
    wrong = ((logits.argmax(-1) != targets) & (targets != IGNORED)).sum()
    return token_losses(logits, targets, reduction="sum"), wrong


def token_losses(logits: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
    """Cross-entropy, in float32 at least."""
    flat = logits.flatten(0, 1)
    # A sum of many losses would lose its last digits in half precision.
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    return functional.cross_entropy(
        flat, targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Matrix products in `precision`; nothing changes if that is float32."""
    enabled = precision != torch.float32
    return torch.autocast(device.type, dtype=precision if enabled else None, enabled=enabled)
