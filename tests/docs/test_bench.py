"""What `benchmarks/bench.py` can time, at which sizes, and what it makes of the times."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
from small_runs import lstm_recipe, small_recipe

from staircase_attention import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Staircase,
    TransformerXL,
)
from staircase_attention.experiments.estimate import num_symbols
from staircase_attention.models import measure_cost
from staircase_attention.training.learner import build_model

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench.py"
spec = importlib.util.spec_from_file_location("bench", SCRIPT)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """Measure the machine in a moment."""
    monkeypatch.setattr(bench, "PRODUCT_SIZE", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(bench, "LEAST_PROMPT", 16)


def find(*names, device=CPU, **overrides):
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    return {recipe.name: recipe for recipe in bench.find(names, changed, device)}


def call(monkeypatch, capsys, *words):
    """Run the script; give its status and what it printed."""
    monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "sizes", "schedule"),
    [
        ("algorithm", (256, 4, 4, 128, 256), Staircase(chunk_size=16, num_passes=4)),
        ("random-walk", (256, 4, 4, 128, 512), Staircase(chunk_size=8, num_passes=8)),
        ("enwik8", (512, 8, 8, 256, 128), Staircase(chunk_size=64, num_passes=4)),
        ("reddit", (1024, 8, 8, 256, 32), Staircase(chunk_size=32, num_passes=8)),
    ],
)
def test_the_engine_set_has_the_sizes_of_the_public_comparison(name, sizes, schedule):
    recipe = find("engine", device=GPU)[f"engine/{name}"]
    core, training = recipe.model.core, recipe.training
    found = (core.width, core.num_layers, core.num_heads)
    assert (*found, training.segment_length, training.num_lanes) == sizes
    assert recipe.model.schedule == schedule
    assert core.dropout == core.embedding_dropout == 0
    assert training.precision == "bfloat16"


def test_the_relative_set_has_the_models_of_the_reddit_table_at_one_size():
    recipes = find("relative").values()
    assert [recipe.model.schedule for recipe in recipes] == [
        TransformerXL(span=256),
        CachedStaircase(chunk_size=128, num_window_chunks=3, num_passes=1),
        Staircase(chunk_size=32, num_passes=8),
        Ladder(num_passes=8, span=256),
        FeedbackTransformer(span=512),
    ]
    with torch.device("meta"):
        millions = [build_model(one, num_symbols(one)).num_parameters / 1e6 for one in recipes]
    assert millions == pytest.approx([117.18, 117.20, 117.18, 117.18, 102.54], abs=0.01)


def test_sets_rows_and_recipes_may_be_mixed_and_changed_and_come_once():
    names = ("engine/reddit", "parity/lstm", "engine", "enwik8-small/ladder", "base/ladder-8")
    found = find(*names, training__num_lanes=4)
    assert list(found)[:3] == ["engine/reddit", "parity/lstm", "engine/algorithm"]
    assert len(found) == 7
    assert {one.training.num_lanes for one in found.values()} == {4}
    assert {one.training.precision for one in found.values()} == {"float32"}
    # Text has the paper's vocabularies.
    assert [num_symbols(one).num_inputs for one in found.values()][-2:] == [256, 8008]


def test_operations_are_three_forward_passes_of_all_lanes():
    recipe = find("engine/reddit")["engine/reddit"]
    model = recipe.model
    cost = measure_cost(vocab_size=8008, core=model.core, schedule=model.schedule, segment=256)
    assert bench.update_flops(recipe) == 3 * 32 * cost.flops
    assert bench.update_flops(recipe) == pytest.approx(42e12, rel=0.01)


def test_on_a_gpu_laps_are_counted_by_events_and_waited_for(monkeypatch):
    done = []

    class Event:
        clock = itertools.count(0.0, 7.0)

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")
            self.time = next(self.clock)

        def elapsed_time(self, later):
            return later.time - self.time

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    laps = bench.laps(lambda: done.append("action"), 3, GPU)
    assert done == ["wait", "event", *["action", "event"] * 3, "wait"]
    assert laps["seconds_each"] == pytest.approx([0.007] * 3)
    assert laps["mean_seconds"] == laps["seconds_in_all"] / 3


def test_it_prints_a_table_and_writes_a_file(monkeypatch, capsys, tmp_path):
    path = tmp_path / "bench.json"
    decoding = ("--decode", "--batch", 2, "--batch", 3, "--repeats", 5, "--output", path)
    words = ("parity/staircase", "parity/lstm", "training.num_lanes=2", *decoding)
    status, out, err = call(monkeypatch, capsys, *words)
    assert status == 0, err
    assert "parity/staircase: 5 updates" in err
    assert "float32 products of 64³" in out
    names = [line.split("  ")[0] for line in out.splitlines() if "parity/" in line]
    ends = ("", ", batch 2", ", batch 3")
    assert names == [f"parity/{name}{end}" for name in ("staircase", "lstm") for end in ends]
    report = json.loads(path.read_text())
    assert report["environment"]["packages"]["torch"]
    product = report["peaks"]["float32"]
    assert product["flops_per_second"] == 2 * 64**3 / product["median_seconds"]
    updates, alone, *_ = report["rows"]
    assert [row["recipe"]["training"]["num_lanes"] for row in report["rows"]] == [2] * 6
    assert len(updates["seconds_each"]) == updates["num_laps"] == 5
    assert updates["tokens_per_second"] == 2 * 25 / updates["mean_seconds"]
    assert updates["num_skipped_updates"] == updates["memory_before_bytes"] == 0
    recipe = find("parity/staircase", training__num_lanes=2)["parity/staircase"]
    share = bench.update_flops(recipe) / updates["mean_seconds"] / product["flops_per_second"]
    assert updates["share_of_peak"] == pytest.approx(share)
    assert updates["peak_memory_bytes"] > 0
    assert alone["what"] == "decoding, batch 2"
    assert alone["tokens_per_second"] == 2 / alone["mean_seconds"]
    assert alone["num_prompt_tokens"] > 16


def test_warm_up_lasts_until_the_state_has_had_all_its_shapes():
    long = {"model__schedule": {"name": "transformer-xl", "span": 70}}
    stairs = {"model__schedule": {"name": "staircase", "chunk_size": 4, "num_passes": 2}}
    assert bench.num_warm_up(small_recipe(training__segment_length=6)) == 5
    assert bench.num_warm_up(small_recipe(**stairs)) == 2 + 6 + 3
    assert bench.num_warm_up(small_recipe(**long)) == 10 + 3


def test_what_fails_stops_nothing_else_and_is_shown(monkeypatch, tmp_path):
    real = bench.time_updates

    def failing(recipe, *options):
        if recipe.name == "big":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if recipe.name == "bad":
            raise RuntimeError("first line\nsecond line")
        return real(recipe, *options)

    monkeypatch.setattr(bench, "time_updates", failing)
    saved = []
    monkeypatch.setattr(bench, "write_json", lambda _, one: saved.append(len(one["rows"])))
    made = {"big": small_recipe, "good": lstm_recipe, "bad": small_recipe}
    recipes = [make().override({"name": name}) for name, make in made.items()]
    path = tmp_path / "bench.json"
    report = bench.run(recipes, CPU, repeats=5, output=path, say=lambda _: None)
    big, good, bad = report["rows"]
    assert big["failure"] == "out of memory"
    assert "Traceback" in big["traceback"]
    assert bad["failure"] == "RuntimeError: first line second line"
    assert good["tokens_per_second"] > 0
    assert saved == [1, 2, 3]
    lines = list(bench.table(report))
    assert lines[-3].split(maxsplit=1) == ["big", "out of memory"]
    assert lines[-1].split(maxsplit=1)[1].startswith("RuntimeError: first line")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("parity/stairs", "did you mean 'parity/staircase'?"),
        ("engine --decode --batch 0", "must be an integer of at least 1"),
        ("engine --batch 4", "add --decode"),
        ("engine --no-updates", "nothing to time"),
        ("engine --repeats 0", "must be an integer of at least 1"),
        ("engine training.num_lane=4", "did you mean 'num_lanes'?"),
        ("engine --output no/such/folder/bench.json", "--output must be"),
    ],
)
def test_what_a_user_got_wrong_is_refused_before_anything_is_timed(
    monkeypatch, capsys, words, reason
):
    status, out, err = call(monkeypatch, capsys, *words.split())
    assert (status, out) == (2, "")
    assert reason in err.splitlines()[-1]
