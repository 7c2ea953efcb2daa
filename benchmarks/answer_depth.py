"""After how many layers a model knows its answers, chunk by chunk of long words of a group.

    python benchmarks/answer_depth.py runs/s3 --length 127

A chunk's depth is the first layer, counted over all passes, after which the output projection gives
at most 5% wrong answers in it. A recurrence that hands on its state at the same depth goes on for
ever; one whose depth grows from chunk to chunk ends with the layers.
"""

import argparse

import torch
from million_steps import Words

from staircase_attention.batches import IGNORED
from staircase_attention.inspect import inspect
from staircase_attention.models import SequenceModel
from staircase_attention.tasks.permutations import Permutations
from staircase_attention.training import load_run
from staircase_attention.training.dataset import TaskData

MOST_WRONG = 0.05


@torch.no_grad()
def main() -> None:
    """Print errors after each pass, and depths, by chunk."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="a run folder or pretrained:NAME")
    parser.add_argument("--length", type=int, default=127)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seed", type=int, default=7, help="of the words")
    chosen = parser.parse_args()
    run = load_run(chosen.run)
    model, data = run.model.eval(), run.data
    assert isinstance(model, SequenceModel)
    assert isinstance(data, TaskData)
    assert isinstance(data.task, Permutations)
    words = Words(data.task, streams=chosen.streams, seed=chosen.seed)
    parts = next(words.segments(chosen.length, chosen.length + 1))
    tokens, targets = (torch.from_numpy(part) for part in parts)
    seen, chunk = inspect(model, tokens), model.schedule.chunk_length

    def errors(at: int, layer: int) -> list[float]:
        answers = model.output(model.output_norm(seen.hidden(at, layer))).argmax(-1)
        wrong = (answers != targets) & (targets != IGNORED)
        return [part.float().mean().item() for part in wrong.split(chunk, dim=1)]

    num_layers = model.config.num_layers
    by_layer = [errors(at, layer) for at, layer in seen.path if isinstance(at, int)]
    for number, found in enumerate(by_layer[num_layers - 1 :: num_layers], start=1):
        print(f"wrong after pass {number}, %:", *(f"{100 * one:.0f}" for one in found))
    depths = [
        next((depth for depth, one in enumerate(found, start=1) if one <= MOST_WRONG), "-")
        for found in zip(*by_layer, strict=True)
    ]
    print(f"depth, of {len(by_layer)} layers:", *depths)


if __name__ == "__main__":
    main()
