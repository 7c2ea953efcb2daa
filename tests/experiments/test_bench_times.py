"""What `staircase bench` measures, and what it makes of it."""

import io
import itertools
import json
import resource

import pytest
import torch
from rich.console import Console
from small_runs import lstm_recipe, small_recipe

from staircase_attention.experiments import bench
from staircase_attention.experiments.bench import decoding, peaks, runner, updates
from staircase_attention.experiments.bench.decoding import decoding_model
from staircase_attention.experiments.bench.flops import token_weight_bytes, update_flops
from staircase_attention.experiments.bench.peaks import CopyPeak, Peaks, ProductPeak
from staircase_attention.experiments.bench.stopwatch import Laps, Stopwatch
from staircase_attention.experiments.bench.subject import subject_of

CPU = torch.device("cpu")
TINY = {
    "model.core.width": 16,
    "model.core.num_layers": 1,
    "model.core.num_heads": 2,
    "training.num_lanes": 2,
    "training.segment_length": 128,
}
COPY_RATE = 2e9
PRODUCT_RATE = 1e9


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch):
    """A machine of 1 GFLOP/s and 2 GB/s."""
    found = Peaks(
        products={
            name: ProductPeak(size=500, laps=Laps(total=0.25, each=(0.25,)))
            for name in ("float32", "bfloat16")
        },
        copy=CopyPeak(num_bytes=10**9, laps=Laps(total=1.0, each=(1.0,))),
    )
    monkeypatch.setattr(runner, "measure_peaks", lambda stopwatch, precisions: found)
    monkeypatch.setattr(decoding, "LEAST_PROMPT", 16)
    return found


def named(recipe, name):
    return subject_of(recipe.override({"name": name}))


def run(*subjects, **wanted):
    return bench.run_bench(subjects, bench.Wanted(repeats=5, **wanted), device=CPU)


def test_laps_are_counted_by_the_clock():
    ticks = itertools.count(10.0, 0.5)
    laps = Stopwatch(CPU, now=lambda: next(ticks)).laps(lambda: None, 4)
    assert laps.each == (0.5,) * 4
    assert (laps.total, laps.mean, laps.median) == (2.0, 0.5, 0.5)


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
    ticks = itertools.count(1.0, 0.03)
    watch = Stopwatch(torch.device("cuda"), now=lambda: next(ticks))
    laps = watch.laps(lambda: done.append("action"), 3)
    assert done == ["wait", "event", *["action", "event"] * 3, "wait"]
    assert laps.each == pytest.approx((0.007,) * 3)
    assert laps.mean == pytest.approx(0.01)


def test_the_machines_peaks_are_measured_on_the_device(monkeypatch):
    monkeypatch.setitem(peaks.PRODUCT_SIZE, "cpu", 64)
    monkeypatch.setitem(peaks.COPY_BYTES, "cpu", 1 << 16)
    found = peaks.measure_peaks(Stopwatch(CPU), ["float32", "bfloat16", "float32"])
    assert list(found.products) == ["float32", "bfloat16"]
    assert found.copy.bytes_per_second > 0
    product = found.products["bfloat16"]
    assert product.flops_per_second == 2 * 64**3 / product.laps.median


def test_updates_are_the_learners_own_and_shares_follow_from_their_time():
    subject = named(small_recipe(), "small")
    report = run(subject)
    (row,) = report.rows
    times = row.updates
    assert not report.failures
    assert len(times.laps.each) == 5
    assert all(seconds > 0 for seconds in (*times.laps.each, *times.warm_up, times.first_after))
    assert times.first_after >= times.warm_up[0]
    assert times.tokens == 4 * 7
    assert times.tokens_per_second == 28 / times.laps.mean
    assert times.num_skipped == 0
    share = update_flops(subject) / times.laps.mean / PRODUCT_RATE
    assert report.share_of_peak(row) == pytest.approx(share)
    assert 0 < times.peak_memory <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_warm_up_lasts_until_the_state_has_its_shape():
    long = {"model__schedule": {"name": "transformer-xl", "span": 70}}
    stairs = {"name": "staircase", "chunk_size": 4, "num_passes": 2}
    assert updates.num_warm_up(subject_of(small_recipe(training__segment_length=6))) == 5
    assert updates.num_warm_up(subject_of(small_recipe(model__schedule=stairs))) == 2 + 6 + 3
    assert updates.num_warm_up(subject_of(small_recipe(**long))) == 10 + 3


def test_the_timed_updates_are_as_many_as_take_three_seconds(monkeypatch):
    monkeypatch.setattr(updates, "SECONDS", 0.0)
    subject = named(small_recipe(), "small")
    report = bench.run_bench([subject], bench.Wanted(), device=CPU)
    assert len(report.rows[0].updates.laps.each) == updates.LEAST_LAPS


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [small_recipe, lstm_recipe])
def test_decoding_is_timed_beside_the_time_of_reading_the_weights(make, precision):
    subject = named(make(training__precision=precision), "small")
    report = run(subject, updates=False, decoding=True, num_rows=(1, 3))
    (row,) = report.rows
    assert row.updates is None
    assert list(row.decoding) == [1, 3], report.failures
    for num_rows, times in row.decoding.items():
        assert times.tokens_per_second == num_rows / times.laps.mean
        assert times.num_prompt_tokens > 16
        assert report.floor(times) == times.weight_bytes / COPY_RATE


def test_the_core_is_read_once_a_pass_and_the_embedding_not_at_all():
    model = decoding_model(subject_of(small_recipe()), CPU)
    core = sum(weight.numel() for weight in model.core.parameters())
    rest = sum(
        weight.numel() for part in (model.output_norm, model.output) for weight in part.parameters()
    )
    assert token_weight_bytes(model) == 4 * (2 * core + rest)


def test_the_relative_set_gives_ratios_to_transformer_xl():
    pytest.importorskip("transformers")
    names = ["relative/transformer-xl", "relative/staircase-n8-c32", "relative/gpt-2"]
    subjects, _ = bench.find_subjects(names, overrides=TINY, device=CPU)
    report = run(*subjects)
    assert not report.failures
    base, stairs, gpt = report.rows
    assert report.ratio_to_baseline(base) == 1
    ratio = stairs.updates.laps.mean / base.updates.laps.mean
    assert report.ratio_to_baseline(stairs) == ratio
    assert gpt.updates.num_parameters == 8008 * 16 + 128 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16
    assert report.to_plain()["rows"][2]["config"]["options"]["attn_implementation"] == "sdpa"
    (left_out,) = run(subjects[2], updates=False, decoding=True).rows
    assert left_out.decoding == {}


def test_operations_of_a_gpt_agree_with_pytorchs_counter():
    pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    from staircase_attention.experiments.bench.gpt2 import GPT2Learner, gpt2_flops

    subjects, _ = bench.find_subjects(["relative/gpt-2"], overrides=TINY, device=CPU)
    learner = GPT2Learner(subjects[0], CPU)
    assert learner.model.config._attn_implementation == "sdpa"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        learner.model(input_ids=torch.zeros(1, 128, dtype=torch.int64))
    assert counter.get_total_flops() == pytest.approx(gpt2_flops(subjects[0]), rel=0.05)


def test_what_fails_takes_nothing_else_with_it(monkeypatch):
    real = runner.time_updates

    def failing(subject, **options):
        if subject.name == "big":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if subject.name == "bad":
            raise RuntimeError("first line\nsecond line")
        return real(subject, **options)

    monkeypatch.setattr(runner, "time_updates", failing)
    saved = []
    report = bench.run_bench(
        [named(small_recipe(), name) for name in ("big", "good", "bad")],
        bench.Wanted(repeats=5, decoding=True, num_rows=(1,)),
        device=CPU,
        save=lambda report: saved.append(report.to_plain()),
    )
    big, good, bad = report.rows
    assert big.updates.reason == "out of memory"
    assert bad.updates.reason == "RuntimeError: first line second line"
    assert good.updates.tokens_per_second > 0
    assert len(report.failures) == 2
    assert all(row.decoding[1].tokens_per_second > 0 for row in report.rows)
    assert [plain["is_complete"] for plain in saved] == [False, False, True]
    assert [len(plain["rows"]) for plain in saved] == [1, 2, 3]
    text = printed(report)
    assert "out of memory" in text
    assert "RuntimeError: first line" in text


def test_what_the_learner_remarks_is_shown(monkeypatch):
    class Slow(updates.Learner):
        def __init__(self, *arguments, say, **options):
            super().__init__(*arguments, say=say, **options)
            say("this is the slow way")

    monkeypatch.setattr(updates, "Learner", Slow)
    report = run(named(small_recipe(), "small"))
    assert report.to_plain()["rows"][0]["updates"]["remarks"] == ["this is the slow way"]
    assert "this is the slow way" in printed(report)


def test_a_state_without_bound_is_remarked_upon():
    growing = {"name": "global-cached-staircase", "chunk_size": 3, "num_passes": 1}
    report = run(named(small_recipe(model__schedule=growing), "small"))
    assert "its state grows" in report.rows[0].updates.remarks[0]


def printed(report):
    """The tables in a terminal of 100 columns."""
    console = Console(width=100, record=True, file=io.StringIO())
    for table in bench.tables(report):
        console.print(table)
    return console.export_text()


def test_tables_fit_in_100_columns():
    longest = named(small_recipe(), "reddit-layer-pattern/abababababababab")
    text = printed(run(longest, decoding=True, num_rows=(1, 2)))
    headings = text.split()
    for word in ("updates", "mean", "median", "tokens", "peak", "memory", "decoding", "floor"):
        assert word in headings
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_file_holds_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("STAIRCASE_SOMETHING", "1")
    subject = named(small_recipe(), "small")
    report = run(subject, decoding=True, num_rows=(2,))
    report.write(tmp_path / "bench.json")
    plain = json.loads((tmp_path / "bench.json").read_text())
    assert set(plain) == {
        "command",
        "environment",
        "format",
        "is_complete",
        "notes",
        "peaks",
        "rows",
        "written",
    }
    known = plain["environment"]
    assert known["packages"]["torch"]
    assert known["num_cores"] > 0
    assert known["cuda"] is None
    assert known["variables"]["STAIRCASE_SOMETHING"] == "1"
    assert "command" not in known
    (row,) = plain["rows"]
    assert row["config"]["recipe"] == subject.recipe.to_plain()
    assert len(row["updates"]["seconds_each"]) == row["updates"]["num_laps"] == 5
    assert row["updates"]["share_of_peak"] > 0
    assert row["decoding"][0]["ratio_to_floor"] > 0
    assert plain["peaks"]["products"]["float32"]["flops_per_second"] == PRODUCT_RATE


@pytest.mark.parametrize(
    "wrong", [{"updates": False}, {"repeats": 0}, {"decoding": True, "num_rows": (0,)}]
)
def test_what_cannot_be_timed_is_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        bench.Wanted(**wrong)
