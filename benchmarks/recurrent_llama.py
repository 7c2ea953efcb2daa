r"""Gives a trained Llama-shaped model recurrence, and trains it further beside itself without.

    python benchmarks/recurrent_llama.py ../shared/data/enwik8.xz recurrent-llama.json

Batches mix segments of Enwik8 (predict the next byte) with words of S5 (elements drawn evenly; at
every one, the product so far). The base model is trained once; then two copies see the same further
tokens in the same order, one as it is, one with some layers in a recurrence. Bits per byte are of
the test split, in fresh segments; errors on words are those at their positions 1 to 32, 33 to 64,
65 to 128, ... up to a segment's length.
"""

import argparse
import copy
import json
import lzma
import math
import platform
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from staircase_attention.huggingface import recurrent
from staircase_attention.schedules import make_schedule
from staircase_attention.tasks.permutations import group_elements, multiplication_table

NUM_BYTES = 256
IGNORED = -100
# A window as long as a segment: the recurrent model begins with the loss of the base.
DEFAULT_SCHEDULE = (
    '{"name": "cached-staircase", "chunk_size": 8, "num_window_chunks": 64, "num_passes": 2}'
)


class Mixture:
    """Batches of text and words, drawn from a seed: the same for every model."""

    def __init__(self, options: argparse.Namespace, text: np.ndarray, seed: int) -> None:
        self.options, self.text = options, text
        self.generator = np.random.default_rng(seed)
        # [elements, drawn]: the product of an element and something drawn.
        self.table = multiplication_table("S5", group_elements("S5"))

    def words(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Symbols after the bytes, and the product at every symbol."""
        drawn = self.generator.integers(len(self.table), size=(number, self.options.segment))
        products = np.zeros_like(drawn)
        now = np.zeros(number, dtype=np.int64)
        for place in range(self.options.segment):
            now = products[:, place] = self.table[now, drawn[:, place]]
        return NUM_BYTES + drawn, NUM_BYTES + products

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets; words are of any length up to a segment's, log-uniformly."""
        options = self.options
        num_words = round(options.rows * options.word_share)
        starts = self.generator.integers(
            0, len(self.text) - options.segment, options.rows - num_words
        )
        places = starts[:, None] + np.arange(options.segment + 1)
        rows = self.text[np.minimum(places, len(self.text) - 1)].astype(np.int64)
        inputs, products = self.words(num_words)
        logs = self.generator.uniform(0, math.log(options.segment + 1), num_words)
        lengths = np.exp(logs).astype(np.int64)
        products = np.where(np.arange(options.segment) < lengths[:, None], products, IGNORED)
        both = np.concatenate([rows[:, :-1], inputs]), np.concatenate([rows[:, 1:], products])
        tokens, targets = (torch.from_numpy(part).to(options.device) for part in both)
        return tokens, targets


def autocast(options: argparse.Namespace) -> torch.autocast:
    """Products in the chosen precision."""
    return torch.autocast(
        torch.device(options.device).type,
        dtype=torch.bfloat16,
        enabled=options.precision == "bfloat16",
    )


def gates_of(model: nn.Module) -> list[nn.Parameter]:
    """How much of each later pass a recurrent model takes."""
    return [one for name, one in model.named_parameters() if name.endswith("core.gates")]


def train(
    model: nn.Module, data: Mixture, options: argparse.Namespace, *, updates: int, rate: float
) -> dict[str, Any]:
    """AdamW with a warm-up and a cosine; the gates of a recurrence learn faster."""
    gates = gates_of(model)
    others = [one for one in model.parameters() if all(one is not gate for gate in gates)]
    groups = [{"params": others, "factor": 1.0}, {"params": gates, "factor": options.gate_factor}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up, losses, begin = max(1, updates // 20), [], time.perf_counter()
    model.train()
    for update in range(updates):
        share = min(1.0, (update + 1) / warm_up)
        share *= 0.1 + 0.45 * (1 + math.cos(math.pi * update / updates))
        for group in optimizer.param_groups:
            group["lr"] = rate * share * group["factor"]
            group["weight_decay"] = 0.1 if group["factor"] == 1 else 0.0
        tokens, targets = data.batch()
        with autocast(options):
            logits = model(input_ids=tokens, use_cache=False).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % options.log_every == 0 or update == updates - 1:
            losses.append([update, round(loss.item(), 4)])
            print(f"{update + 1} of {updates}: {losses[-1][1]}", flush=True)
    return {"updates": updates, "seconds": time.perf_counter() - begin, "losses": losses}


@torch.no_grad()
def evaluate(model: nn.Module, test: np.ndarray, options: argparse.Namespace) -> dict[str, Any]:
    """Bits per byte of the test text, and errors on words by position."""
    model.eval()
    segment, rows = options.segment, options.rows
    text = test[: options.test_bytes - options.test_bytes % segment + 1].astype(np.int64)
    starts = np.arange(0, len(text) - segment, segment)
    bits, count = 0.0, 0
    for some in np.array_split(starts, max(1, len(starts) // rows)):
        chosen = torch.from_numpy(text[some[:, None] + np.arange(segment + 1)]).to(options.device)
        with autocast(options):
            logits = model(input_ids=chosen[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(), chosen[:, 1:].flatten(), reduction="sum"
        )
        bits, count = bits + float(loss) / math.log(2), count + chosen[:, 1:].numel()
    # The same words for every model, and none of training.
    data, wrong = Mixture(options, test, seed=10**6), np.zeros(segment)
    num_batches = max(1, options.test_words // rows)
    for _ in range(num_batches):
        inputs, products = data.words(rows)
        with autocast(options):
            tokens = torch.from_numpy(inputs).to(options.device)
            logits = model(input_ids=tokens, use_cache=False).logits
        found = logits[..., NUM_BYTES:].argmax(-1).cpu().numpy() + NUM_BYTES
        wrong += (found != products).mean(0) / num_batches
    edges = [0, *(edge for edge in (32, 64, 128, 256, 512) if edge < segment), segment]
    errors = {f"{low + 1}-{high}": wrong[low:high].mean().item() for low, high in pairwise(edges)}
    return {"bits_per_byte": bits / count, "num_bytes": count, "word_errors": errors}


def parse() -> argparse.Namespace:
    """All budgets are options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("enwik8", type=Path, help="the raw file, or .xz")
    parser.add_argument("output", type=Path, help="JSON")
    numbers = {"seed": 0, "width": 320, "inner_width": 864, "layers": 8, "heads": 5}
    numbers |= {"first": 2, "last": 6, "segment": 512, "rows": 64, "log_every": 50}
    numbers |= {"base_updates": 4000, "further_updates": 2000}
    numbers |= {"test_bytes": 1_000_000, "test_words": 1024}
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    rates = {"rate": 1e-3, "further_rate": 5e-4, "gate_factor": 10.0, "word_share": 0.25}
    for name, default in rates.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    parser.add_argument(
        "--schedule",
        default=DEFAULT_SCHEDULE,
        help="name and options, as JSON; several runs may share --base",
    )
    parser.add_argument("--base", type=Path, help="folder of a base model: read, or written")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    return parser.parse_args()


def main() -> None:
    """Train, fork, train further, report after each."""
    options = parse()
    opened = lzma.open if options.enwik8.suffix == ".xz" else open
    with opened(options.enwik8, "rb") as file:
        text = np.frombuffer(file.read(), dtype=np.uint8)
    parts = np.split(text, [len(text) * 90 // 100, len(text) * 95 // 100])
    plain = json.loads(options.schedule)
    schedule = make_schedule(plain.pop("name"), plain)
    torch.manual_seed(options.seed)
    report: dict[str, Any] = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "machine": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.machine(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    if options.base and (options.base / "config.json").exists():
        base = LlamaForCausalLM.from_pretrained(options.base).to(options.device)
    else:
        config = LlamaConfig(
            vocab_size=NUM_BYTES + len(group_elements("S5")),
            hidden_size=options.width,
            intermediate_size=options.inner_width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            max_position_embeddings=2 * options.segment,
            bos_token_id=None,
            eos_token_id=None,
        )
        base = LlamaForCausalLM(config).to(options.device)
        data = Mixture(options, parts[0], seed=options.seed)
        learnt = train(base, data, options, updates=options.base_updates, rate=options.rate)
        report["base_training"] = learnt
        if options.base:
            base.save_pretrained(options.base)
    report["num_parameters"] = sum(one.numel() for one in base.parameters())
    layers = (options.first, options.last)
    models = {
        "without": copy.deepcopy(base),
        "with": recurrent(copy.deepcopy(base), layers=layers, schedule=schedule),
    }
    report["base"] = evaluate(base, parts[2], options)
    del base
    for name, model in models.items():
        before = evaluate(model, parts[2], options) if name == "with" else report["base"]
        data = Mixture(options, parts[0], seed=options.seed + 1)
        learnt = train(
            model, data, options, updates=options.further_updates, rate=options.further_rate
        )
        after = evaluate(model, parts[2], options)
        gates = [one.abs().mean().item() for one in gates_of(model)]
        result = {"before": before, "after": after, "training": learnt, "mean_gates": gates}
        report[f"{name}_recurrence"] = result
        options.output.write_text(json.dumps(report, indent=2) + "\n")
        print(name, json.dumps(after), flush=True)


if __name__ == "__main__":
    main()
