"""What adding up gradients costs an update: one process under NCCL beside one alone.

    python benchmarks/exchange.py --output exchange.json

The four sizes of `benchmarks/bench.py engine`, random tokens. A process group of one exchanges with
itself, so this is the overhead of a captured exchange, not how training scales. One to two minutes
on an H200; on a CPU it uses gloo, and says nothing about GPUs.
"""

import argparse
from pathlib import Path
from typing import Any

import bench
import torch.distributed as dist

from staircase_attention.files import write_json
from staircase_attention.training.processes import Processes, choose_device


def main() -> None:
    """Time each size alone, in a group, and again in the opposite order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("exchange.json"), help="JSON file")
    parser.add_argument("--repeats", type=int, help="updates; by default about 3 s of them")
    parser.add_argument("--only", default="engine", help="a set or recipes, separated by commas")
    options = parser.parse_args()
    device = choose_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    # Not alone, as far as the learner knows; the exchange is with the group, which has one process.
    kinds = {"alone": Processes(), "in a group": Processes(count=2)}
    rows: list[dict[str, Any]] = []
    for recipe in bench.find(options.only.split(","), {}, device):
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for name in [*kinds, *reversed(kinds)]:
            found = bench.attempt(
                bench.time_updates, recipe, device, options.repeats, print, kinds[name]
            )
            times[name].append(1e3 * found.get("median_seconds", float("nan")))
            if "failure" in found:
                print(found["traceback"])
        ratio = min(times["in a group"]) / min(times["alone"])
        rows.append({"name": recipe.name, "ms": times, "ratio": ratio})
        print(recipe.name, times, f"{ratio:.3f}", flush=True)
        write_json(options.output, {"environment": bench.environment(), "rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
