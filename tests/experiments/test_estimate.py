"""Estimates: what they follow, what they refuse, and how near they are to what was measured."""

import json
import math
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from staircase_attention.cli.app import app
from staircase_attention.experiments.catalog import find_recipe
from staircase_attention.experiments.estimate import Machine, estimate
from staircase_attention.training import Recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


REDDIT = "reddit/staircase-n8-c32"
NAMES = [
    "random-walk/staircase-n8-c8",
    "reddit/cached-staircase-c128",
    "enwik8/staircase-n4-c64",
]
NO_DROPOUT = {"model.core.dropout": 0.0, "model.core.embedding_dropout": 0.0}


def recipe(name: str = REDDIT, **overrides: object) -> Recipe:
    """Of the size that was measured."""
    settings = {path.replace("__", "."): value for path, value in overrides.items()}
    size = {"training.num_lanes": 32, "training.precision": "bfloat16"}
    return find_recipe(name).override(NO_DROPOUT | size | settings)


def test_every_stored_measurement_is_near_its_estimate() -> None:
    script = runpy.run_path(str(BENCHMARKS / "estimate_errors.py"))
    for row in script["stored"]():
        found = estimate(row.recipe, row.symbols)
        assert abs(found["update_seconds"] / row.seconds - 1) < 0.15, row.name
        if row.memory:
            assert abs(found["memory_bytes"] / row.memory - 1) < 0.10, row.name


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    lanes=st.sampled_from([8, 32, 128]),
)
def test_more_lanes_take_more_memory_and_time_but_less_of_it_each(name: str, lanes: int) -> None:
    few, many = (estimate(recipe(name, training__num_lanes=count)) for count in (lanes, 2 * lanes))
    assert few["memory_bytes"] < many["memory_bytes"] < 2 * few["memory_bytes"]
    assert few["update_seconds"] < many["update_seconds"] < 2 * few["update_seconds"]
    # All lanes on one GPU, half on each of two, or one half after the other.
    shared = estimate(recipe(name, training__num_lanes=2 * lanes), num_gpus=2)
    assert few["update_seconds"] < shared["update_seconds"]
    parts = recipe(name, training__num_lanes=2 * lanes, training__num_micro_batches=2)
    in_turns = estimate(parts)
    assert many["update_seconds"] < in_turns["update_seconds"]
    assert few["memory_bytes"] < in_turns["memory_bytes"] < many["memory_bytes"]


def test_recomputing_trades_time_for_memory() -> None:
    plain, again = estimate(recipe()), estimate(recipe(training__recompute=True))
    assert again["memory_bytes"] < 0.5 * plain["memory_bytes"]
    assert 1.2 < again["update_seconds"] / plain["update_seconds"] < 1.4


def test_gradients_between_nodes_take_longer_than_within_one() -> None:
    found = [estimate(recipe(), num_gpus=8, num_nodes=nodes) for nodes in (1, 4)]
    links = [one["seconds"]["collectives"] for one in found]
    # 117M gradients of 4 bytes, 7/8 of them out and in, at 450 and 2 x 50 GB/s, of which 80%.
    assert math.isclose(links[0], 2 * 7 / 8 * 117_180_232 * 4 / 360e9 + 60e-6, rel_tol=1e-6)
    assert links[1] > 4 * links[0]


def test_sharding_saves_memory_and_a_part_of_what_is_sent() -> None:
    whole, shared, by_node = (
        estimate(recipe(training__parallel=parallel), num_gpus=32, num_nodes=4)
        for parallel in ("ddp", "fsdp", "hsdp")
    )
    memory = [one["memory"]["weights and optimiser"] for one in (shared, by_node, whole)]
    # Per weight: 2 gathered, 2 for its gradient, and a part of 16; or 2 and all of 16.
    assert [round(one / 117_180_232, 6) for one in memory] == [4.5, 6.0, 18.0]
    # 2 bytes gathered and 4 scattered instead of 8 reduced.
    links = [one["seconds"]["collectives"] - 100e-6 for one in (shared, whole)]
    assert math.isclose(links[0] / links[1], 6 / 8)


def test_a_host_that_launches_slowly_sets_the_pace_of_sharded_updates() -> None:
    def paced(launch: float) -> float:
        sharded = recipe(training__parallel="fsdp")
        found = estimate(sharded, num_gpus=8, machine=Machine(launch=launch))
        return float(found["update_seconds"] - found["seconds"]["collectives"])

    # A second per launch, or two, is all there is; with none, the kernels are.
    assert math.isclose(paced(2), 2 * paced(1))
    assert paced(0) < 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["random-walk/lstm"], "the paper's core"),
        ([REDDIT, "model.core.norm=rms"], "the paper's core"),
        ([REDDIT, "training.engine=plain"], "training.engine=fast"),
        ([REDDIT, "training.parallel=fsdp-layers"], "ddp, fsdp, hsdp"),
        ([REDDIT, "training.passes.kind=uniform"], "no training.passes"),
        ([REDDIT, "training.passes.loss=ends"], "no training.passes"),
        ([REDDIT, "--gpus", "3"], "must be a multiple of 3"),
        ([REDDIT, "--gpus", "8", "--nodes", "3"], "nodes must divide gpus"),
        ([REDDIT, "--gpus", "0"], "gpus must be"),
    ],
)
def test_what_cannot_be_estimated_is_refused_in_one_line(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["estimate", *words])
    assert reason in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_command_reports_memory_time_cost_and_assumptions() -> None:
    words = ["estimate", REDDIT, "--gpus", "32", "--nodes", "4", "--price", "2"]
    text = CliRunner().invoke(app, words).stdout
    for part in ("memory per GPU", "time per update", "bound by", "whole run", "cost "):
        assert part in text
    assert "450 GB/s in a node, 50 GB/s per GPU between nodes" in text
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert math.isclose(facts["cost"], 2 * facts["gpu_hours"])
    assert math.isclose(facts["gpu_hours"], 32 * facts["hours"])


def test_a_model_that_does_not_fit_is_said_not_to() -> None:
    words = [REDDIT, "model.core.width=8192", "model.core.num_heads=64"]
    assert "TOO MUCH" in CliRunner().invoke(app, ["estimate", *words]).stdout
