"""A run to a checkpoint and back: weights, optimiser, states, data position, random generators."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from staircase_attention.models import LSTMState, State, put_together, take_apart
from staircase_attention.training.checkpoint import (
    WEIGHTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointName,
    process_file,
)
from staircase_attention.training.learner import Learner
from staircase_attention.training.objective import Carried

OPTIMIZER = "optimizer.safetensors"
RANDOM = "random"
"""Prefix of the random generators' states among a process's tensors."""


def write_snapshot(
    folder: CheckpointFolder, name: CheckpointName, learner: Learner, trainer: Mapping[str, Any]
) -> None:
    """Save a run, whole or not at all; every process writes what only it has."""
    processes = learner.processes
    if processes.is_first:
        folder.abandon()
    processes.wait()
    headers, tensors = _process_parts(learner)
    folder.write_part(name, process_file(processes.rank), tensors)
    if processes.is_first:
        folder.write_part(name, WEIGHTS, _on_cpu(learner.model.state_dict()))
        folder.write_part(name, OPTIMIZER, _on_cpu(learner.optimizer.tensors()))
    processes.wait()
    if processes.is_first:
        shares = {"num_processes": processes.count, "states": headers}
        folder.finish(name, {**trainer, **shares})
    processes.wait()


def restore_snapshot(checkpoint: Checkpoint, learner: Learner) -> None:
    """Put a learner where a checkpoint was taken."""
    learner.model.load_state_dict(checkpoint.tensors[WEIGHTS])
    learner.optimizer.load(checkpoint.tensors[OPTIMIZER])
    parts = [_read_states(checkpoint, rank) for rank in range(checkpoint.trainer["num_processes"])]
    if len(parts) == learner.processes.count and len(parts[0]) == len(learner.states):
        states = parts[learner.processes.rank]
        _restore_random(checkpoint.tensors[process_file(learner.processes.rank)], learner)
    else:
        states = _deal_anew([state for part in parts for state in part], learner)
    learner.states = [None if state is None else state.to(learner.device) for state in states]


def _process_parts(learner: Learner) -> tuple[list[Any], dict[str, Tensor]]:
    """The states and random generators of this process, as plain data and tensors."""
    headers: list[Any] = []
    tensors = {f"{RANDOM}.cpu": torch.get_rng_state()}
    if learner.device.type == "cuda":
        tensors[f"{RANDOM}.cuda"] = torch.cuda.get_rng_state(learner.device)
    for number, state in enumerate(learner.states):
        if state is None:
            headers.append(None)
            continue
        header, parts = take_apart(state)
        headers.append(json.loads(json.dumps(header)))
        tensors |= {f"{number}/{name}": tensor.cpu() for name, tensor in parts.items()}
    return headers, tensors


def _read_states(checkpoint: Checkpoint, rank: int) -> list[Carried]:
    """The states of one process; the headers are alike in all processes, as lanes are."""
    tensors = checkpoint.tensors[process_file(rank)]
    states: list[Carried] = []
    for number, header in enumerate(checkpoint.trainer["states"]):
        prefix = f"{number}/"
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        states.append(None if header is None else put_together(header, own))
    return states


def _deal_anew(states: list[Carried], learner: Learner) -> list[Carried]:
    """The lanes of this process out of states that were shared out in another way."""
    kinds: list[State] = [state for state in states if isinstance(state, State)]
    cells: list[LSTMState] = [state for state in states if isinstance(state, LSTMState)]
    if not kinds and not cells:
        return [None] * len(learner.states)
    whole = State.join(kinds) if kinds else LSTMState.join(cells)
    share = whole.batch_size // (learner.processes.count * len(learner.states))
    first = learner.processes.rank * len(learner.states) * share
    return [
        whole.select(range(first + number * share, first + (number + 1) * share))
        for number in range(len(learner.states))
    ]


def _restore_random(tensors: Mapping[str, Tensor], learner: Learner) -> None:
    torch.set_rng_state(tensors[f"{RANDOM}.cpu"])
    if learner.device.type == "cuda" and f"{RANDOM}.cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{RANDOM}.cuda"], learner.device)


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
