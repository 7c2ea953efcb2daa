"""Times updates: the learner's own, on random tokens."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from staircase_attention.batches import Batch
from staircase_attention.experiments.bench.flops import reach_of, update_flops
from staircase_attention.experiments.bench.gpt2 import GPT2Learner, import_gpt2
from staircase_attention.experiments.bench.stopwatch import Laps, Stopwatch
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.training import FamilyModel
from staircase_attention.training.build import build_model
from staircase_attention.training.learner import Learner
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.processes import Processes

SECONDS = 3.0
"""About how long is timed, where the number of laps is left open."""
LEAST_LAPS = 5
MOST_LAPS = 2000
LEAST_WARM_UP = 5
SPARE_WARM_UP = 3
"""Updates after those in which a state grows to its full size."""
MOST_TURNS = 16
"""Shapes of a state that are waited for."""
SLOW = 2.0
"""An update this many times as long as the quickest was busy with something else as well."""
NUM_BATCHES = 4
"""Different batches, taken in turn."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateTimes:
    """What was measured of a subject's updates."""

    num_parameters: int
    first_after: float
    """Seconds from building the model to the end of the first update."""
    warm_up: tuple[float, ...]
    """Seconds of the updates before those that count, the first included."""
    laps: Laps
    tokens: int
    """Tokens an update."""
    flops: int
    """Operations an update."""
    peak_memory: int
    """Bytes."""
    memory_kind: str
    reserved_memory: int | None
    """Bytes that PyTorch held of a GPU, in use or not."""
    num_skipped: int
    """Updates whose gradients were not finite; their time is not that of others."""
    remarks: tuple[str, ...] = ()
    """What the learner had to say, as why it is not as fast as it could be."""

    @property
    def tokens_per_second(self) -> float:
        """By the mean."""
        return self.tokens / self.laps.mean

    @property
    def flops_per_second(self) -> float:
        """By the mean."""
        return self.flops / self.laps.mean

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "first_update_after_seconds": self.first_after,
            "warm_up_seconds_each": list(self.warm_up),
            **self.laps.to_plain(),
            "tokens_per_update": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "flops_per_update": self.flops,
            "flops_per_second": self.flops_per_second,
            "peak_memory_bytes": self.peak_memory,
            "peak_memory_of": self.memory_kind,
            "reserved_memory_bytes": self.reserved_memory,
            "num_skipped_updates": self.num_skipped,
            "remarks": list(self.remarks),
        }


def time_updates(
    subject: Subject, *, stopwatch: Stopwatch, repeats: int | None, say: Say
) -> UpdateTimes:
    """Build a subject, warm it up, and time its updates."""
    say("first update")
    if subject.maker == "transformers":
        import_gpt2()
    stopwatch.wait()
    began = stopwatch.now()
    work = Work(subject, stopwatch.device)
    stopwatch.forget_memory()
    warm_up = [stopwatch.lap(work.update)]
    first_after = stopwatch.now() - began
    say(f"{num_warm_up(subject) - 1} more to warm up")
    while is_cold(warm_up, num_warm_up(subject)):
        warm_up.append(stopwatch.lap(work.update))
    count = repeats or num_laps(min(warm_up[-2:]))
    say(f"{count} updates")
    return UpdateTimes(
        laps=stopwatch.laps(work.update, count),
        num_parameters=work.num_parameters,
        first_after=first_after,
        warm_up=tuple(warm_up),
        tokens=subject.tokens_per_update,
        flops=update_flops(subject),
        peak_memory=stopwatch.peak_memory,
        memory_kind=stopwatch.memory_kind,
        reserved_memory=stopwatch.reserved_memory,
        num_skipped=work.num_skipped,
        remarks=tuple(work.remarks),
    )


def is_cold(seconds: list[float], wanted: int) -> bool:
    """Whether there is more to warm up; a last update that still took long earns some more.

    >>> is_cold([9.0, 1.0, 1.0], 3), is_cold([1.0, 1.0, 9.0], 3), is_cold([1.0, 9.0] * 3, 3)
    (False, True, False)
    """
    is_slow = seconds[-1] > SLOW * min(seconds)
    return len(seconds) < wanted or (is_slow and len(seconds) < 2 * wanted)


def num_warm_up(subject: Subject) -> int:
    """Updates until the state has the shapes that it keeps, all of them, and some more.

    Where a segment is no whole number of chunks, the shapes take turns: once to run as written,
    and once to be captured.
    """
    model, length = subject.recipe.model, subject.recipe.training.segment_length
    chunk = model.schedule.chunk_length if isinstance(model, FamilyModel) else 1
    turns = min(MOST_TURNS, chunk // math.gcd(chunk, length))
    growing = math.ceil(reach_of(subject) / length)
    return max(LEAST_WARM_UP, growing + 2 * (turns - 1) + SPARE_WARM_UP)


def num_laps(seconds: float) -> int:
    """How many laps of about these seconds are timed.

    >>> num_laps(0.1), num_laps(60.0), num_laps(1e-6)
    (30, 5, 2000)
    """
    return max(LEAST_LAPS, min(MOST_LAPS, math.ceil(SECONDS / max(seconds, 1e-9))))


class Work:
    """A model that learns from random tokens, one update at a call."""

    def __init__(self, subject: Subject, device: torch.device) -> None:
        self._recipe = subject.recipe
        self._batches = itertools.cycle(random_batches(subject))
        self._lanes = range(subject.recipe.training.num_lanes)
        self._num_done = 0
        self.num_skipped = 0
        self.remarks: list[str] = []
        model = subject.recipe.model
        if isinstance(model, FamilyModel) and not model.schedule.is_state_bounded:
            self.remarks.append("its state grows: operations are those of an early update")
        torch.manual_seed(subject.recipe.seed)
        self._learner: Learner | GPT2Learner
        if subject.maker == "transformers":
            self._learner = GPT2Learner(subject, device)
        else:
            self._learner = Learner(
                subject.recipe,
                build_model(subject.recipe, subject),
                device,
                Processes(),
                carries_state=subject.carries_state,
                say=self.remarks.append,
            )

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(parameter.numel() for parameter in self._learner.model.parameters())

    def update(self) -> None:
        """One update, with the learning rate that it has in training."""
        training = self._recipe.training
        update = min(self._num_done, training.num_updates - 1)
        rate = learning_rate(training.optimizer, update, training.num_updates)
        self._num_done += 1
        batch = next(self._batches)
        if isinstance(self._learner, GPT2Learner):
            self._learner.update(batch, rate=rate)
            return
        outcome = self._learner.update(batch, lanes=self._lanes, rate=rate, wants_stop=False)
        self.num_skipped += not outcome.was_applied


def random_batches(subject: Subject) -> list[Batch]:
    """Random tokens with an answer to each, always the same ones."""
    training = subject.recipe.training
    shape = (training.num_lanes, training.segment_length)
    generator = np.random.default_rng(0)
    return [
        Batch(
            inputs=generator.integers(subject.num_inputs, size=shape),
            targets=generator.integers(subject.num_outputs, size=shape),
            is_padding=np.zeros(shape, dtype=np.bool_),
        )
        for _ in range(NUM_BATCHES)
    ]
