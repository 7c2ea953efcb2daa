"""Sharded weights train as whole ones do, and are gathered and reduced once per update."""

import json

import pytest
import torch
import torch.distributed as dist
from small_runs import lstm_recipe, small_recipe, together
from torch.profiler import ProfilerActivity, profile

from staircase_attention.tasks import Lanes, lanes_of_process, training_source
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner, build_model
from staircase_attention.training.processes import Processes, join_processes
from staircase_attention.training.recipe import Recipe

STILL = {"model__core__dropout": 0.0, "model__core__num_layers": 2}
PASSES = {"model__schedule__num_passes": 4}
MICRO = {"training__num_micro_batches": 2}
CASES = {
    "adam": small_recipe(**STILL),
    "adamw": small_recipe(**STILL, **PASSES, **MICRO, training__optimizer__kind="adamw"),
    "muon": small_recipe(**STILL, training__optimizer__kind="muon"),
    "lstm": lstm_recipe(model__dropout=0.0),
    "bfloat16": small_recipe(**STILL, training__precision="bfloat16"),
}


def updates(recipe, processes):
    """Loss and gradient norm of three updates, the collectives of the last, dtypes of weights."""
    is_exact = recipe.training.precision == "float32"
    task, config = build_dataset(recipe), recipe.training
    torch.manual_seed(0)
    model = build_model(recipe, task)
    learner = Learner(recipe, model.double() if is_exact else model, torch.device("cpu"), processes)
    lanes = Lanes(
        source=training_source(task.task, 0),
        num_lanes=config.num_lanes,
        segment_length=config.segment_length,
    )
    own, position = lanes_of_process(processes.rank, processes.count, 4), lanes.first_position()
    curve = []
    for _ in range(3):
        batch, position = lanes.batch(position)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            outcome = learner.update(batch, lanes=own, rate=1e-2, wants_stop=False)
        curve.append([outcome.loss, outcome.gradient_norm])
    sent = {
        event.key.removeprefix("c10d::"): event.count
        for event in profiled.key_averages()
        if event.key.startswith("c10d::")
    }
    dtypes = {str(parameter.dtype) for parameter in learner.model.parameters()}
    return {"curve": curve, "sent": sent, "dtypes": sorted(dtypes)}


def all_updates(file, cases):
    """One of several processes, of which the first writes what it found."""
    processes = join_processes(torch.device("cpu"), 60.0)
    found = [updates(Recipe.from_plain(plain), processes) for plain in cases]
    dist.barrier()
    if processes.is_first:
        file.write_text(json.dumps(found))


GATHERED_ONCE = {"_allgather_base_": 1, "_reduce_scatter_base_": 1, "allreduce_": 2}


@pytest.mark.slow
def test_sharded_updates_are_those_of_one_process_and_collectives_do_not_grow_with_passes(tmp_path):
    modes = [(name, "fsdp") for name in CASES]
    modes += [("adam", "fsdp-layers"), ("adamw", "fsdp-layers"), ("muon", "hsdp")]
    plain = [CASES[name].override({"training.parallel": mode}).to_plain() for name, mode in modes]
    # Two nodes of one process each, to hsdp.
    together(2, all_updates, tmp_path / "found", plain, LOCAL_WORLD_SIZE="1")
    found = dict(zip(modes, json.loads((tmp_path / "found").read_text()), strict=True))
    for (name, _), one in found.items():
        expected, is_exact = updates(CASES[name], Processes()), name != "bfloat16"
        tolerance = 1e-9 if is_exact else 0.05
        torch.testing.assert_close(
            torch.tensor(one["curve"]),
            torch.tensor(expected["curve"]),
            rtol=tolerance,
            atol=tolerance,
        )
        assert one["dtypes"] == ["torch.float64" if is_exact else "torch.float32"]
    # However many passes and micro-batches there are.
    for name in ("adam", "adamw", "lstm", "bfloat16"):
        assert found[name, "fsdp"]["sent"] == GATHERED_ONCE
    # Muon's matrices have three shapes.
    assert found["muon", "fsdp"]["sent"] == GATHERED_ONCE | {"allgather_into_tensor_coalesced_": 3}
    # 2 layers, 3 + 1 or 3 + 3 steps, forward and backward; everything but layers once.
    layers = {name: found[name, "fsdp-layers"]["sent"] for name in ("adam", "adamw")}
    assert layers["adam"] == GATHERED_ONCE | {"_allgather_base_": 17, "_reduce_scatter_base_": 3}
    assert layers["adamw"]["_reduce_scatter_base_"] == 1 + 2 * 2
