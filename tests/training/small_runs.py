"""Recipes that train in a second or two, and how to train one in a process of its own."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import torch

from staircase_attention import CoreConfig, Staircase
from staircase_attention.cores import STOP_AT_END_OF_INPUT, watch_input
from staircase_attention.display import Display, Lines
from staircase_attention.training import (
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
    train,
)

PARITY = {"group": "S2", "length": 10, "num_valid": 20, "num_test": 20}


def small_recipe(**changes):
    """A tiny Staircase with dropout, so that random generators matter."""
    recipe = Recipe(
        name="small",
        task=TaskChoice(reference="permutations", options=PARITY),
        model=FamilyModel(
            core=CoreConfig(width=8, num_layers=1, num_heads=2, dropout=0.1),
            schedule=Staircase(chunk_size=3, num_passes=2),
        ),
        training=TrainingConfig(
            num_updates=12,
            num_lanes=4,
            segment_length=7,
            optimizer=OptimizerConfig(learning_rate=1e-2, warm_up=3),
            log_every=2,
            evaluate_every=5,
            checkpoint_every=4,
        ),
    )
    return recipe.override({name.replace("__", "."): value for name, value in changes.items()})


def lstm_recipe(**changes):
    plain = small_recipe().to_plain() | {
        "model": {"kind": LSTMModel.kind, "width": 8, "num_layers": 2, "dropout": 0.1}
    }
    return Recipe.from_plain(plain).override(
        {name.replace("__", "."): value for name, value in changes.items()}
    )


class KilledError(Exception):
    """Stands for a kill."""


def kill():
    raise KilledError


class Interrupting(Display):
    """A display that does something to the run at one update, and keeps the messages."""

    def __init__(self, update=None, action=kill):
        self.update, self.action, self.said = update, action, []

    def advance(self, update, **facts):
        if update == self.update:
            self.action()

    def say(self, text):
        self.said.append(text)


FORKS = multiprocessing.get_context("forkserver")
"""Processes that have imported everything already."""
FORKS.set_forkserver_preload(
    ["staircase_attention.training.run", "torch._dynamo", "torch.distributed.fsdp"]
)


def together(count, target, *arguments, **environment):
    """Call a function in several processes, as torchrun would start them, to their end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    settings = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        FORKS.Process(
            target=_with_environment,
            args=[settings | environment | {"RANK": str(rank)}, target, arguments],
        )
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * count


def _with_environment(environment, target, arguments):
    os.environ |= environment
    torch.set_num_threads(1)
    target(*arguments)


def train_or_resume(folder, plain):
    """Begin a run, or go on with it, and print how far it is."""
    torch.set_num_threads(1)
    train(Recipe.from_plain(plain), folder, resume=True, progress=Lines(every_seconds=0))


def train_watching(folder, plain, reader):
    """Begin a run that stops when nobody can write to its standard input."""
    os.dup2(reader.fileno(), 0)
    os.environ[STOP_AT_END_OF_INPUT] = "1"
    watch_input()
    train_or_resume(folder, plain)


def fork_process(folder, recipe, **environment):
    """`train_or_resume` in a process of its own, at once, whose output goes to a file."""
    output_of(folder).write_text("")
    process = FORKS.Process(target=_into_file, args=[folder, recipe.to_plain(), environment])
    process.start()
    return process


def _into_file(folder, plain, environment):
    os.environ.update(environment)
    with (
        output_of(folder).open("w", buffering=1) as output,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        train_or_resume(folder, plain)


def losing_a_process(folder, plain, signal_name):
    """One of two processes; the first, at update 5, sends the second a signal, but only once."""
    torch.set_num_threads(1)
    pid = Path(f"{folder}.pid")
    is_first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if os.environ["RANK"] == "1":
        pid.write_text(str(os.getpid()))

    def send():
        if signal_name is not None and is_first_try:
            os.kill(int(pid.read_text()), signal.Signals[signal_name])

    display = Interrupting(5, send)
    train(Recipe.from_plain(plain), folder, resume=True, progress=display)


def output_of(folder):
    """Where a run in a process of its own prints."""
    return Path(f"{folder}.output")


def metrics_of(folder):
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def final_bytes(folder):
    """The weights after the last update, and all metrics."""
    folder = Path(folder)
    last = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return (last / "weights.safetensors").read_bytes(), (folder / "metrics.jsonl").read_bytes()
