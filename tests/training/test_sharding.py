"""Sharded weights train as whole ones do, and are gathered and reduced once per update."""

import json
import os
import signal
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from small_runs import FORKS, lstm_recipe, metrics_of, small_recipe, together
from torch.profiler import ProfilerActivity, profile

from staircase_attention.tasks import Lanes, lanes_of_process, training_source
from staircase_attention.training import StopRequested, load_run, train
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import Learner, build_model
from staircase_attention.training.processes import Processes, join_processes
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.trainer import Trainer

STILL = {"model__core__dropout": 0.0, "model__core__num_layers": 2}
PASSES = {"model__schedule__num_passes": 4}
MICRO = {"training__num_micro_batches": 2}
OWN = {
    "model__core__reference": f"{Path(__file__).parents[1] / 'examples' / 'blocks.py'}:Modern",
    "model__core__num_key_value_heads": 1,
    "model__core__feed_forward_width": 10,
}
FEEDBACK = {"model__schedule": {"name": "feedback-transformer", "span": 4, "attend_self": True}}
CASES = {
    "adam": small_recipe(**STILL),
    "adamw": small_recipe(**STILL, **PASSES, **MICRO, training__optimizer__kind="adamw"),
    "muon": small_recipe(**STILL, training__optimizer__kind="muon"),
    "lstm": lstm_recipe(model__dropout=0.0),
    "bfloat16": small_recipe(**STILL, training__precision="bfloat16"),
    "own blocks": small_recipe(**STILL, **OWN),
    "own blocks, shared": small_recipe(**STILL, **OWN, **FEEDBACK),
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
    curve, sent = [], Counter()
    for number in range(3):
        batch, position = lanes.batch(position)
        with profile(activities=[ProfilerActivity.CPU]) if number == 2 else nullcontext() as last:
            outcome = learner.update(batch, lanes=own, rate=1e-2, wants_stop=False)
        curve.append([outcome.loss, outcome.gradient_norm])
    for event in last.profiler.kineto_results.events():
        if event.name().startswith("c10d::"):
            sent[event.name().removeprefix("c10d::")] += 1
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
    modes += [("adam", "fsdp-layers"), ("adamw", "fsdp-layers"), ("adam", "hsdp")]
    modes += [("own blocks", "fsdp-layers"), ("own blocks, shared", "fsdp-layers")]
    plain = [CASES[name].override({"training.parallel": mode}).to_plain() for name, mode in modes]
    # Two nodes of one process each, to hsdp.
    together(2, all_updates, tmp_path / "found", plain, LOCAL_WORLD_SIZE="1")
    found = dict(zip(modes, json.loads((tmp_path / "found").read_text()), strict=True))
    alone = {name: updates(recipe, Processes()) for name, recipe in CASES.items()}
    for (name, _), one in found.items():
        expected, is_exact = alone[name], name != "bfloat16"
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


def train_until(last, stop, folder, plain):
    """One of several processes, which all end like killed ones after `last`, or are asked to."""
    torch.set_default_dtype(torch.float64)
    record = Trainer._record

    def end_or_record(trainer, *arguments):
        record(trainer, *arguments)
        if trainer.progress.update == last:
            os._exit(0)
        if trainer.progress.update == stop:
            signal.raise_signal(signal.SIGTERM)

    Trainer._record = end_or_record
    with suppress(StopRequested):
        train(Recipe.from_plain(plain), folder, resume=True)


@pytest.mark.slow
def test_another_number_of_processes_resumes_after_each_end_with_the_losses_of_one(tmp_path):
    """10 lanes cannot be shared equally; to hsdp two processes are two nodes."""
    recipe = small_recipe(
        model__core__dropout=0.0,
        training__num_updates=40,
        training__num_lanes=10,
        training__log_every=1,
        training__evaluate_every=20,
        training__checkpoint_every=4,
    )
    whole = [None, None, tmp_path / "one", recipe.to_plain()]
    reference = FORKS.Process(target=train_until, args=whole)
    reference.start()
    # The request comes while the checkpoint of update 16 is written.
    legs = [(1, "fsdp", 10, None), (2, "hsdp", None, 15), (4, "ddp", 29, None)]
    for count, mode, last, stop in [*legs, (3, "fsdp", None, None)]:
        plain = recipe.override({"training.parallel": mode}).to_plain()
        together(count, train_until, last, stop, tmp_path / "many", plain, LOCAL_WORLD_SIZE="1")
    reference.join()
    one, many = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "many")
    assert [line["update"] for line in one] == [line["update"] for line in many]
    assert sum(line["kind"] == "train" for line in one) == 40
    losses = [torch.tensor([line["loss"] for line in run]) for run in (one, many)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
    # One process reads what three have written.
    assert load_run(tmp_path / "many", checkpoint="latest").update == 40
