"""Lose a node of an elastic run and let it come back; compare the losses with those of one process.

    python benchmarks/elastic.py /tmp/elastic

Nodes are torchrun agents on this machine, of one CPU process each. The last one is killed, and
started again later. Prints how many processes trained when, and the largest difference of a loss.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from staircase_attention import CoreConfig, Staircase
from staircase_attention.training import (
    FamilyModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
    train,
)

NUM_NODES = 3
RECIPE = Recipe(
    name="elastic",
    task=TaskChoice(
        reference="permutations",
        options={"group": "S2", "length": 10, "num_valid": 20, "num_test": 20},
    ),
    model=FamilyModel(
        core=CoreConfig(width=8, num_layers=1, num_heads=2),
        schedule=Staircase(chunk_size=3, num_passes=2),
    ),
    training=TrainingConfig(
        num_updates=600,
        # Two processes have 5 each, three have 4, 3 and 3.
        num_lanes=10,
        segment_length=7,
        optimizer=OptimizerConfig(learning_rate=1e-3, warm_up=100),
        log_every=1,
        evaluate_every=300,
        checkpoint_every=50,
    ),
)


def work(folder: Path, parallel: str) -> None:
    """What every process calls, at each start: begin the run, or resume it."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    # By its agent, which is the parent.
    folder.with_suffix(f".{os.getppid()}").write_text(str(os.getpid()))
    if os.environ.get("RANK") == "0":
        with folder.with_suffix(".starts").open("a") as starts:
            done = len(losses(folder))
            starts.write(f"{os.environ['WORLD_SIZE']} processes from about update {done}\n")
    train(RECIPE.override({"training.parallel": parallel}), folder, resume=True)


def losses(folder: Path) -> dict[int, float]:
    """The loss of every update so far; of one that was repeated, the last."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    plain = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["update"]: one["loss"] for one in plain if one["kind"] == "train"}


def start_node(
    port: int, folder: Path, parallel: str, *, is_host: bool = False
) -> subprocess.Popen[bytes]:
    """A torchrun agent with one process."""
    settings = "last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=5"
    # The node that holds the store must not be lost.
    settings += f",is_host={int(is_host)}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{NUM_NODES}"),
        *("--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d", "--rdzv-id=elastic"),
        *(f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={settings}"),
        *(__file__, str(folder), "--parallel", parallel, "--worker"),
    ]
    with folder.with_suffix(".log").open("ab") as log:
        # Otherwise restarted processes may find the addresses of those before them.
        environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def await_update(folder: Path, update: int, nodes: list[subprocess.Popen[bytes]]) -> None:
    """Return when the run has done this many updates."""
    while max(losses(folder), default=0) < update:
        if nodes[0].poll() is not None:
            raise RuntimeError(f"the first node ended early, see {folder.with_suffix('.log')}")
        time.sleep(0.2)


def main() -> None:
    """Train with three nodes, two, three again; then alone; and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="output folder; is deleted first")
    parser.add_argument("--parallel", default="fsdp", help="training.parallel of the nodes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.folder, arguments.parallel)
        return
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    many, one = arguments.folder / "many", arguments.folder / "one"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nodes = [
        start_node(port, many, arguments.parallel, is_host=number == 0)
        for number in range(NUM_NODES)
    ]
    try:
        await_update(many, 150, nodes)
        nodes[-1].kill()
        os.kill(int(many.with_suffix(f".{nodes[-1].pid}").read_text()), signal.SIGKILL)
        await_update(many, 350, nodes)
        nodes.append(start_node(port, many, arguments.parallel))
        nodes[0].wait()
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
    print(many.with_suffix(".starts").read_text(), end="")
    work(one, "ddp")
    alone, together = losses(one), losses(many)
    differences = [abs(alone[update] - together[update]) for update in alone]
    num_repeated = len((many / "metrics.jsonl").read_text().splitlines())
    num_repeated -= len((one / "metrics.jsonl").read_text().splitlines())
    print(f"{len(together)} of {len(alone)} updates, {num_repeated} lines too many or too few")
    print(f"largest difference of a loss: {max(differences):.2e}")


if __name__ == "__main__":
    main()
