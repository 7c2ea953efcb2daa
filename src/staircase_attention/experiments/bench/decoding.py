"""Times decoding: one token of every row at a time, through the public streams."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from staircase_attention.experiments.bench.flops import reach_of, token_weight_bytes
from staircase_attention.experiments.bench.stopwatch import Laps, Stopwatch
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.experiments.bench.updates import LEAST_WARM_UP, Say, num_laps
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.models import SequenceModel
from staircase_attention.training.build import Model, build_model, precision_of

LEAST_PROMPT = 256
"""Tokens before those that are timed, so that windows are full."""
NUM_TRIAL_ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingTimes:
    """What was measured of decoding with one number of rows."""

    num_rows: int
    num_prompt_tokens: int
    """Of each row."""
    prompt_seconds: float
    """For taking all prompts in, for the first time."""
    laps: Laps
    """Rounds: one new token of every row."""
    weight_bytes: int
    """Bytes of weights that a round must read."""
    peak_memory: int
    memory_kind: str

    @property
    def tokens_per_second(self) -> float:
        """Of all rows, by the mean."""
        return self.num_rows / self.laps.mean

    def floor(self, bytes_per_second: float) -> float:
        """Seconds in which a machine that copies so fast could read the weights."""
        return self.weight_bytes / bytes_per_second

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "num_rows": self.num_rows,
            "num_prompt_tokens": self.num_prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            **self.laps.to_plain(),
            "tokens_per_second": self.tokens_per_second,
            "weight_bytes_per_round": self.weight_bytes,
            "peak_memory_bytes": self.peak_memory,
            "peak_memory_of": self.memory_kind,
        }


def decoding_model(subject: Subject, device: torch.device) -> Model:
    """The subject's model with random weights, in the numbers of its precision."""
    torch.manual_seed(subject.recipe.seed)
    model = build_model(subject.recipe, subject)
    return model.to(device=device, dtype=precision_of(subject.recipe)).eval()


def time_decoding(
    subject: Subject,
    model: Model,
    *,
    num_rows: int,
    stopwatch: Stopwatch,
    repeats: int | None,
    say: Say,
) -> DecodingTimes:
    """Take random prompts in, and time the tokens that follow."""
    chunk = model.schedule.chunk_length if isinstance(model, SequenceModel) else 1
    length = prompt_length(subject, chunk)
    prompts = torch.randint(
        subject.num_inputs, (num_rows, length), generator=torch.Generator().manual_seed(0)
    )
    stopwatch.forget_memory()
    say(f"decoding {num_rows} rows: prompt")
    stopwatch.wait()
    began = stopwatch.now()
    tokens = stream(model, prompts, max_tokens=None, sampling=SamplingConfig(temperature=0.0))
    stopwatch.wait()
    prompt_seconds = stopwatch.now() - began
    say(f"decoding {num_rows} rows: warm-up")
    # A round costs more or less by its place in a chunk: whole chunks are taken.
    warm = stopwatch.laps(tokens.next_round, max(LEAST_WARM_UP, chunk))
    likely = min(warm.median, stopwatch.laps(tokens.next_round, NUM_TRIAL_ROUNDS).median)
    count = repeats or math.ceil(num_laps(likely) / chunk) * chunk
    say(f"decoding {num_rows} rows: {count} tokens")
    return DecodingTimes(
        laps=stopwatch.laps(tokens.next_round, count),
        num_rows=num_rows,
        num_prompt_tokens=length,
        prompt_seconds=prompt_seconds,
        weight_bytes=token_weight_bytes(model),
        peak_memory=stopwatch.peak_memory,
        memory_kind=stopwatch.memory_kind,
    )


def prompt_length(subject: Subject, chunk: int) -> int:
    """Whole chunks that fill every window, and one token that is fed with the first round."""
    return math.ceil(max(LEAST_PROMPT, reach_of(subject)) / chunk) * chunk + 1
