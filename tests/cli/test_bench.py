"""`staircase bench` from the command line."""

import json

import pytest

from staircase_attention.experiments import bench

TINY = ("training.num_lanes=2", "--repeats", "5")


@pytest.fixture(autouse=True)
def small_peaks(monkeypatch):
    """Measure the machine in a moment."""
    for kind in ("cpu", "cuda"):
        monkeypatch.setitem(bench.PRODUCT_SIZE, kind, 64)
    monkeypatch.setattr(bench, "LEAST_PROMPT", 16)
    monkeypatch.setenv("COLUMNS", "100")


def test_bench_prints_a_table_and_writes_a_file(staircase, tmp_path):
    path = tmp_path / "bench.json"
    decoding = ("--decode", "--batch", "2", "--batch", "3")
    words = ("parity/staircase", "parity/lstm", *TINY, *decoding, "--output", str(path))
    status, out, err = staircase("bench", *words)
    assert status == 0, err
    assert "parity/staircase: 5 updates" in err
    assert f"wrote {path}" in err
    lines = out.splitlines()
    assert "float32 products of 64³" in lines[0]
    names = [line.split()[0] for line in lines if "parity/" in line]
    assert names == ["parity/staircase"] * 3 + ["parity/lstm"] * 3
    whats = [line.strip() for line in lines if "decoding" in line]
    assert whats == ["decoding, batch 2", "decoding, batch 3"] * 2
    plain = json.loads(path.read_text())
    product = plain["peaks"]["float32"]
    assert product["flops_per_second"] == 2 * 64**3 / product["median_seconds"]
    assert plain["command"].startswith("staircase bench parity/staircase")
    assert [row["recipe"]["training"]["num_lanes"] for row in plain["rows"]] == [2] * 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["bench.json"]


def test_a_failure_shows_in_its_row_and_in_the_exit_status(staircase, monkeypatch):
    monkeypatch.setattr(bench, "random_batches", None)
    status, out, _ = staircase("bench", "parity/staircase", "--quiet")
    assert status == 1
    assert "TypeError" in out
