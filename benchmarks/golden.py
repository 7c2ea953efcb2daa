"""Golden curves: the metrics of short runs, byte for byte, before and after a change of the code.

    python benchmarks/golden.py golden/            # train, and keep metrics.jsonl of every run
    python benchmarks/golden.py golden/ --against benchmarks/results/2026-11-16-golden-cpu.json

A run on one CPU thread is reproducible to the byte on one machine with one version of PyTorch, so
both sides of a comparison are made on the same machine. `--demo` adds the two runs of the demo.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

SHORT = ["training.num_updates=40", "training.evaluate_every=20", "training.log_every=1"]
# Segments that end inside a chunk, with dropout: states, random numbers and resumed lanes matter.
CUT = ["training.segment_length=11", "model.core.dropout=0.1", "model.core.num_layers=2"]
SCHEDULES = {
    "staircase": '{"name": "staircase", "chunk_size": 2, "num_passes": 3}',
    "cached-staircase": '{"name": "cached-staircase", "chunk_size": 2, "num_window_chunks": 4,'
    ' "num_passes": 2}',
    "cached-staircase-m0": '{"name": "cached-staircase", "chunk_size": 4, "num_window_chunks": 3,'
    ' "num_passes": 0}',
    "global-cached-staircase": '{"name": "global-cached-staircase", "chunk_size": 4,'
    ' "num_passes": 1}',
    "ladder-abab": '{"name": "ladder", "num_passes": 3, "span": 16}',
    "ladder-aabb": '{"name": "ladder", "num_passes": 2, "span": 16, "order": "AABB"}',
    "transformer-xl": '{"name": "transformer-xl", "span": 16}',
    "feedback": '{"name": "feedback-transformer", "span": 8}',
    "memory-network": '{"name": "memory-network", "span": 8}',
}
RUNS = {
    name: ["parity/staircase", *SHORT, *CUT, f"model.schedule={schedule}"]
    for name, schedule in SCHEDULES.items()
} | {
    "universal-transformer": [
        "parity/staircase",
        *SHORT,
        'model.schedule={"name": "universal-transformer", "num_passes": 3, "span": 16}',
    ],
    "rotary": ["parity/staircase", *SHORT, *CUT, "model.core.positions=rotary"],
    "muon": ["parity/staircase", *SHORT, *CUT, "training.optimizer.kind=muon"],
    "micro-batches": ["parity/staircase", *SHORT, *CUT, "training.num_micro_batches=4"],
    "growth": ["parity/staircase", *SHORT, "training.growth.first_tokens=4"],
    "lstm": ["parity/lstm", *SHORT],
    "random-walk": ["random-walk-small/staircase", *SHORT],
    "algorithm": ["algorithm-small/staircase", *SHORT],
}
DEMO = {"demo-staircase": ["parity/staircase"], "demo-transformer-xl": ["parity/transformer-xl"]}
# Since the authors' distribution is the default, the old one has a name.
OLD_DISTRIBUTION = "task.options.distribution=redraw"


def train(name: str, arguments: list[str], folder: Path) -> str:
    """Train one run; the SHA-256 of its metrics."""
    start = "from staircase_attention.cli import main; main()"
    command = [sys.executable, "-c", start, "train", *arguments]
    output = folder / name
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--output", str(output)], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    return hashlib.sha256((output / "metrics.jsonl").read_bytes()).hexdigest()


def main() -> None:
    """Train all runs, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, help="JSON file of an earlier call")
    parser.add_argument("--demo", action="store_true", help="also the two runs of the demo")
    parser.add_argument("--only", help="comma-separated names of runs")
    parser.add_argument("--before-redraw", action="store_true", help="code without the option")
    options = parser.parse_args()
    runs = RUNS | (DEMO if options.demo else {})
    if not options.before_redraw:
        runs["algorithm"] = [*runs["algorithm"], OLD_DISTRIBUTION]
    if options.only:
        runs = {name: runs[name] for name in options.only.split(",")}
    found = {name: train(name, arguments, options.folder) for name, arguments in runs.items()}
    if options.against:
        expected = json.loads(options.against.read_text())["metrics_sha256"]
        differ = [name for name, digest in found.items() if expected[name] != digest]
        print("\n".join(f"{'DIFFERS' if name in differ else 'same'}  {name}" for name in found))
        sys.exit(1 if differ else 0)
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__}
    report = {"machine": platform.machine(), **facts, "metrics_sha256": found}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
