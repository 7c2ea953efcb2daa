"""Scores trained models on words of a group that go on for a million elements.

    python benchmarks/million_steps.py runs/s5 --output s5.json
    python benchmarks/million_steps.py runs/s5 --length 65536 --streams 256 --precision float32

Every stream is one word: START, then elements drawn as they are needed, from the seed and the
number of the stream alone. The model reads segment after segment and carries its state; neither
words nor answers are kept, so that memory does not depend on the length. Every prefix is scored.

Kept are the wrong answers at elements 1, 2 to 3, 4 to 7, ..., and for each stream the number of
errors and the element of the first. After some errors all later answers are wrong, so streams that
fail per element read say more than errors do. The file is written whenever the length has doubled,
and at the end. On a GPU the engine runs the model, and whole segments are captured as CUDA graphs.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staircase_attention.batches import IGNORED
from staircase_attention.evaluation import autocast
from staircase_attention.generation.stepper import accelerate
from staircase_attention.models import SequenceModel, State
from staircase_attention.tasks.permutations import Permutations, multiplication_table
from staircase_attention.training import load_run
from staircase_attention.training.dataset import TaskData
from staircase_attention.training.processes import choose_device

Array = NDArray[np.int64]
MEBI = 1 << 20


class Words:
    """Words of a group that never end, and their products, segment by segment."""

    def __init__(self, task: Permutations, *, streams: int, seed: int) -> None:
        table = multiplication_table(task.group, task._drawn)
        self.num_drawn, self.products = table.shape[1], table.reshape(-1)
        # A generator for each: what a stream reads depends on neither the others nor the segments.
        self.generators = [np.random.default_rng((seed, stream)) for stream in range(streams)]
        self.state = np.zeros(streams, dtype=np.int64)

    def next(self, length: int) -> tuple[Array, Array]:
        """The next elements of all streams, and the products so far: (streams, length)."""
        drawn = np.stack([one.integers(self.num_drawn, size=length) for one in self.generators])
        answers = np.empty_like(drawn)
        for step in range(length):
            self.state = self.products[self.state * self.num_drawn + drawn[:, step]]
            answers[:, step] = self.state
        return drawn, answers

    def segments(self, length: int, segment: int) -> Iterator[tuple[Array, Array]]:
        """Inputs and targets of START and this many elements."""
        shape = (len(self.generators), 1)
        start, ignored = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for first in range(0, length + 1, segment):
            number = min(segment, length + 1 - first)
            drawn, answers = self.next(number - (first == 0))
            inputs, targets = drawn + 1, answers
            if first == 0:
                inputs = np.concatenate([start, inputs], axis=1)
                targets = np.concatenate([ignored, targets], axis=1)
            yield inputs, targets


class Tally:
    """Wrong answers by element and by stream, summed on the device."""

    def __init__(self, *, length: int, streams: int, device: torch.device) -> None:
        bounds = [1 << power for power in range(1, length.bit_length())]
        self.bounds = torch.tensor(bounds, device=device)
        self.by_bucket = torch.zeros(len(bounds) + 1, dtype=torch.int64, device=device)
        self.by_stream = torch.zeros(streams, dtype=torch.int64, device=device)
        self.never = length + 1
        self.first = torch.full((streams,), self.never, dtype=torch.int64, device=device)
        self.num_elements = 0

    def add(self, wrong: Tensor, first: int) -> None:
        """Count (streams, time), where token 0 is START and `first` the first token here."""
        places = torch.arange(first, first + wrong.shape[1], device=wrong.device)
        # 0 for START, where nothing is asked, and for element 1; 1 for 2 to 3; 2 for 4 to 7; ...
        self.by_bucket.index_add_(0, torch.bucketize(places, self.bounds, right=True), wrong.sum(0))
        self.by_stream += wrong.sum(1)
        found = torch.where(wrong, places, self.never).amin(1)
        self.first = torch.minimum(self.first, found)
        self.num_elements = first + wrong.shape[1] - 1

    def to_plain(self) -> dict[str, Any]:
        """Everything counted so far."""
        first = self.first.tolist()
        lived = sum(min(one, self.num_elements) for one in first)
        num_failed = sum(one != self.never for one in first)
        bounds = [1 << power for power in range(self.num_elements.bit_length())]
        # Elements of each range that were read, by one stream.
        sizes = [min(self.num_elements, 2 * bound - 1) - bound + 1 for bound in bounds]
        wrong = self.by_bucket.tolist()[: len(bounds)]
        return {
            "num_elements": self.num_elements,
            "num_answers": self.num_elements * len(first),
            "num_wrong": sum(wrong),
            "num_failed_streams": num_failed,
            "failures_per_element": num_failed / max(1, lived),
            "wrong_from_element": {
                bound: {"wrong": one, "answers": size * len(first)}
                for bound, one, size in zip(bounds, wrong, sizes, strict=True)
            },
            "first_error": [None if one == self.never else one for one in first],
            "errors_by_stream": self.by_stream.tolist(),
        }


def score(
    model: Any,  # noqa: ANN401
    words: Words,
    *,
    length: int,
    segment: int,
    precision: torch.dtype,
    device: torch.device,
) -> Iterator[dict[str, Any]]:
    """What was counted whenever the length has doubled, and at the end."""
    from staircase_attention.engine import CapturedUpdates

    def read(inputs: tuple[Tensor, ...], states: list[Any]) -> tuple[Tensor, list[Any]]:
        tokens, targets = inputs
        with torch.no_grad(), autocast(device, precision):
            logits, state = model(tokens, states[0])
        return (logits.argmax(-1) != targets) & (targets != IGNORED), [state]

    step: Any = read
    if device.type == "cuda" and isinstance(model, SequenceModel):
        step = CapturedUpdates(read, model, report=lambda text: print(text, file=sys.stderr))
    tally = Tally(length=length, streams=len(words.generators), device=device)
    begin, states, first = time.perf_counter(), [None], 0
    for parts in words.segments(length, segment):
        inputs = tuple(on_device(part, device) for part in parts)
        wrong, states = step(inputs, states)
        tally.add(wrong, first)
        stop = first + wrong.shape[1]
        # Tokens are elements and START.
        if stop > length or (stop - 1).bit_length() > max(1, first - 1).bit_length():
            yield {
                **tally.to_plain(),
                "seconds": round(time.perf_counter() - begin, 2),
                "state_bytes": states[0].num_bytes if isinstance(states[0], State) else None,
                "resident_mib": resident() // MEBI,
                "device_mib": torch.cuda.memory_allocated() // MEBI
                if device.type == "cuda"
                else None,
            }
        first = stop


def on_device(part: Array, device: torch.device) -> Tensor:
    """A copy that does not wait for the device."""
    tensor = torch.from_numpy(part)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    """Score a run, and write what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="a run folder or pretrained:NAME")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--length", type=int, default=1 << 20)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--segment", type=int, default=1024, help="a multiple of the chunk")
    parser.add_argument("--seed", type=int, default=1, help="of the words")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    loaded = load_run(chosen.run, checkpoint=chosen.checkpoint)
    assert isinstance(loaded.data, TaskData)
    task = loaded.data.task
    if not isinstance(task, Permutations):
        parser.error(f"the run must be of the task permutations, got {task.name}")
    model = loaded.model.to(device).eval()
    accelerate(model)
    facts = {
        "run": chosen.run,
        "recipe": loaded.recipe.to_plain(),
        "update": loaded.update,
        "checksums": dict(loaded.checksums),
        "group": task.group,
        "trained_at": task.length,
        "streams": chosen.streams,
        "words_seed": chosen.seed,
        "precision": chosen.precision,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
    }
    words = Words(task, streams=chosen.streams, seed=chosen.seed)
    options = {"length": chosen.length, "segment": chosen.segment, "device": device}
    history = []
    for found in score(model, words, precision=getattr(torch, chosen.precision), **options):
        history.append({key: found[key] for key in ("num_elements", "seconds", "num_wrong")})
        history[-1] |= {key: found[key] for key in found if key.endswith(("bytes", "mib"))}
        whole = {**facts, **found, "history": history}
        chosen.output.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        print(
            f"{chosen.run} {found['num_elements']:>9,} elements: {found['num_wrong']:,} wrong, "
            f"{found['num_failed_streams']} of {chosen.streams} streams, {found['seconds']} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
