"""What `staircase bench` can time, at which sizes, and what it makes of the times."""

import io
import itertools
import json
import resource

import pytest
import torch
from rich.console import Console
from small_runs import lstm_recipe, small_recipe

from staircase_attention import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Staircase,
    TransformerXL,
)
from staircase_attention.experiments import bench
from staircase_attention.models import measure_cost
from staircase_attention.training.learner import NumSymbols, build_model

GPU, CPU = torch.device("cuda"), torch.device("cpu")
PRODUCT = {"size": 500, "flops_per_second": 1e9, "mean_seconds": 1.0, "median_seconds": 1.0}
PEAKS = {"float32": PRODUCT, "bfloat16": PRODUCT}


@pytest.fixture
def known_peaks(monkeypatch):
    """A machine of 1 GFLOP/s."""
    monkeypatch.setattr(bench, "measure_peaks", lambda device, precisions: PEAKS)
    monkeypatch.setattr(bench, "LEAST_PROMPT", 16)


def find(*names, device=CPU, **overrides):
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    subjects = bench.find_subjects(names, overrides=changed, device=device)
    return {subject.recipe.name: subject for subject in subjects}


def named(recipe, name="small"):
    recipe = recipe.override({"name": name})
    return bench.Subject(recipe=recipe, symbols=NumSymbols(num_inputs=4, num_outputs=3))


def run(*subjects, **wanted):
    return bench.run_bench(subjects, device=CPU, **{"repeats": 5} | wanted)


@pytest.mark.parametrize(
    ("name", "sizes", "schedule", "num_symbols"),
    [
        ("algorithm", (256, 4, 4, 128, 256), Staircase(chunk_size=16, num_passes=4), None),
        ("random-walk", (256, 4, 4, 128, 512), Staircase(chunk_size=8, num_passes=8), None),
        ("enwik8", (512, 8, 8, 256, 128), Staircase(chunk_size=64, num_passes=4), 256),
        ("reddit", (1024, 8, 8, 256, 32), Staircase(chunk_size=32, num_passes=8), 8008),
    ],
)
def test_the_engine_set_has_the_sizes_of_the_public_comparison(name, sizes, schedule, num_symbols):
    subject = find("engine", device=GPU)[f"engine/{name}"]
    core, training = subject.recipe.model.core, subject.recipe.training
    found = (core.width, core.num_layers, core.num_heads)
    assert (*found, training.segment_length, training.num_lanes) == sizes
    assert subject.recipe.model.schedule == schedule
    assert core.dropout == core.embedding_dropout == 0
    assert training.precision == "bfloat16"
    assert num_symbols in (None, subject.symbols.num_inputs)


def test_the_relative_set_has_the_models_of_the_reddit_table_at_one_size():
    subjects = find("relative").values()
    assert [subject.recipe.model.schedule for subject in subjects] == [
        TransformerXL(span=256),
        CachedStaircase(chunk_size=128, num_window_chunks=3, num_passes=1),
        Staircase(chunk_size=32, num_passes=8),
        Ladder(num_passes=8, span=256),
        FeedbackTransformer(span=512),
    ]
    with torch.device("meta"):
        millions = [build_model(one.recipe, one.symbols).num_parameters / 1e6 for one in subjects]
    assert millions == pytest.approx([117.18, 117.20, 117.18, 117.18, 102.54], abs=0.01)


def test_sets_rows_and_recipes_may_be_mixed_and_changed_and_come_once():
    names = ("engine/reddit", "parity/lstm", "engine", "enwik8-small/ladder", "base/ladder-8")
    found = find(*names, training__num_lanes=4)
    assert list(found)[:3] == ["engine/reddit", "parity/lstm", "engine/algorithm"]
    assert len(found) == 7
    assert {one.recipe.training.num_lanes for one in found.values()} == {4}
    assert {one.recipe.training.precision for one in found.values()} == {"float32"}
    # Text has the paper's vocabularies.
    assert [one.symbols.num_inputs for one in found.values()][-2:] == [256, 8008]


def test_operations_are_three_forward_passes_of_all_lanes():
    subject = find("engine/reddit")["engine/reddit"]
    model = subject.recipe.model
    cost = measure_cost(vocab_size=8008, core=model.core, schedule=model.schedule, segment=256)
    assert bench.update_flops(subject) == 3 * 32 * cost.flops
    assert bench.update_flops(subject) == pytest.approx(42e12, rel=0.01)


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


def test_updates_are_the_trainers_own_and_everything_is_in_the_file(known_peaks):
    subject = named(small_recipe())
    report = run(subject, decode=True, batches=(2,))
    assert json.loads(json.dumps(report)) == report
    assert bench.failures(report) == []
    times, decoding = report["rows"]
    assert (times["what"], decoding["what"]) == ("updates", "decoding, batch 2")
    assert len(times["seconds_each"]) == times["num_laps"] == 5
    assert all(one > 0 for one in times["seconds_each"])
    assert times["tokens_per_second"] == 4 * 7 / times["mean_seconds"]
    assert times["num_skipped_updates"] == 0
    share = bench.update_flops(subject) / times["mean_seconds"] / 1e9
    assert times["share_of_peak"] == pytest.approx(share)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 0 < times["peak_memory_bytes"] <= most
    assert times["recipe"] == subject.recipe.to_plain()
    assert report["environment"]["packages"]["torch"]


def test_warm_up_lasts_until_the_state_has_had_all_its_shapes():
    long = {"model__schedule": {"name": "transformer-xl", "span": 70}}
    stairs = {"model__schedule": {"name": "staircase", "chunk_size": 4, "num_passes": 2}}
    assert bench.num_warm_up(named(small_recipe(training__segment_length=6))) == 5
    assert bench.num_warm_up(named(small_recipe(**stairs))) == 2 + 6 + 3
    assert bench.num_warm_up(named(small_recipe(**long))) == 10 + 3


@pytest.mark.parametrize(
    ("make", "precision"), [(small_recipe, "float32"), (lstm_recipe, "bfloat16")]
)
def test_decoding_is_timed_with_several_numbers_of_rows(known_peaks, make, precision):
    subject = named(make(training__precision=precision))
    report = run(subject, updates=False, decode=True, batches=(1, 3))
    assert bench.failures(report) == []
    for num_rows, times in zip((1, 3), report["rows"], strict=True):
        assert times["what"] == f"decoding, batch {num_rows}"
        assert times["tokens_per_second"] == num_rows / times["mean_seconds"]
        assert times["num_prompt_tokens"] > 16


def test_what_fails_stops_nothing_else_and_is_shown(known_peaks, monkeypatch, tmp_path):
    real = bench.time_updates

    def failing(subject, *options):
        if subject.recipe.name == "big":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if subject.recipe.name == "bad":
            raise RuntimeError("first line\nsecond line")
        return real(subject, *options)

    monkeypatch.setattr(bench, "time_updates", failing)
    saved = []
    monkeypatch.setattr(bench, "write_json", lambda _, one: saved.append(len(one["rows"])))
    subjects = [named(small_recipe(), name) for name in ("big", "good", "bad")]
    report = run(*subjects, output=tmp_path / "bench.json")
    big, good, bad = report["rows"]
    assert big["failure"] == "out of memory"
    assert "Traceback" in big["traceback"]
    assert bad["failure"] == "RuntimeError: first line second line"
    assert good["tokens_per_second"] > 0
    assert len(bench.failures(report)) == 2
    assert saved == [1, 2, 3]
    assert "out of memory" in printed(report)
    assert "RuntimeError: first line" in printed(report)


def printed(report):
    """The table in a terminal of 100 columns."""
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(bench.result_table(report))
    return console.export_text()


def test_the_table_fits_into_100_columns(known_peaks):
    longest = named(small_recipe(), "reddit-layer-pattern/abababababababab")
    text = printed(run(longest, decode=True, batches=(1, 2)))
    words = text.split()
    for word in ("updates", "mean", "median", "tokens", "peak", "memory", "decoding,"):
        assert word in words
    assert max(len(line) for line in text.splitlines()) <= 100
