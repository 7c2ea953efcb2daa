"""The report shows what was run, for how long, beside the paper's numbers, and omits nothing."""

import html
import io
import json
import math
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_staircase import result
from rich.console import Console
from small_corpora import SOME, text_of, write_lines

from staircase_attention.data import prepare_text
from staircase_attention.display import print_table
from staircase_attention.experiments import find_recipe, reproduce, results, table_rows
from staircase_attention.experiments.figures import curve_figure, image
from staircase_attention.experiments.paper import Spread
from staircase_attention.experiments.report import (
    Report,
    orders,
    partial_scores,
    screen_table,
    short,
    table_cells,
    troubles,
    write_report,
)
from staircase_attention.experiments.results import RunRecord, latest_facts, read_run, read_runs
from staircase_attention.training import RunResult

COLLECT = Path(__file__).parents[2] / "benchmarks" / "collect_runs.py"
ONE = Path("transformer-xl", "seed-0")
TROUBLE = {
    "random-walk/ladder-4, 1": "diverge",
    "random-walk/ladder-8, 1": "diverge without a score",
    "random-walk/ladder-8, 2": "fail",
}


def make_result(recipe, error):
    return RunResult(**result(recipe.to_plain(), error))


@pytest.fixture(scope="module")
def folder(fakes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    fakes.let(error=0.30, trouble=TROUBLE)
    rows = ["staircase-n8-c8", "cached-staircase-c4", "ladder-4", "ladder-8"]
    reproduce("random-walk", folder=folder, rows=rows, seeds=3, updates=5_000)
    rows = ["transformer-xl"]
    reproduce("random-walk", folder=folder, rows=rows, seeds=1)
    return folder


@pytest.fixture(scope="module")
def lines(folder):
    text = html.unescape((folder / "report.html").read_text())
    cells = [re.findall("<t[hd]>(.*?)</t[hd]>", line) for line in text.splitlines()]
    return {line[1]: line for line in cells if len(line) > 5}


@pytest.fixture(scope="module")
def plain(folder):
    report = json.loads((folder / "report.json").read_text())
    return report | {"rows": {row["name"]: row for row in report["rows"]}}


def test_a_report_says_which_scores_are_of_the_first_tokens_only():
    whole = make_result(find_recipe("parity/lstm"), 0.5)
    part = replace(whole, valid={"num_tokens": 9, "split_tokens": 5000}, test=None)
    runs = [RunRecord(seed=0, status="finished", result=one) for one in (whole, part, part, None)]
    assert partial_scores(runs) == ["valid (first 9 of 5,000 tokens)"]


CELLS = {
    "staircase-n8-c8": {
        "Valid, ours": "31.00 ± 1.00",
        # The double logs at updates 4,750 and 5,000 of 5,000, where e^-5.7 and e^-6 of the way
        # from 95% to the error are still to go: 0.29% on average, of 64 points.
        "Train, ours": "31.19 ± 1.00",
        "Test, ours": "31.10 ± 1.00",
        "Best seed, ours": "30.10 (seed 0)",
        "Valid, paper": "0.2 ± 0.1",
        "Best seed, paper": "0.1",
        "Recurrent steps": "8",
        "Step size": "64",
    },
    # Its budget is what it really had.
    "cached-staircase-c4": {
        "Model": "Cached Staircase †",
        "Seeds": "3 of 5",
        "Updates": "5k of 50k †",
        "Tokens": "328M of 3.28G",
        "Time per run": "1:02:05",
        "Parameters": "3.18M",
    },
    # It has its full length, and one seed has no deviation.
    "transformer-xl": {
        "Model": "Transformer-XL",
        "Updates": "50k of 50k",
        "Valid, ours": "30.00",
    },
    "ladder-2": {"Valid, ours": "not run", "Test, paper": "75.1 ± 12.6"},
    "lstm": {"Valid, paper": "-"},
    # A diverged run counts with its best weights, if it has a score.
    "ladder-4": {"Seeds": "3 of 10", "Updates": "2.5k to 5k of 50k †"},
    "ladder-8": {"Seeds": "1 of 10"},
}


@pytest.mark.parametrize("row", CELLS)
def test_a_row_shows_our_errors_and_budget_beside_the_paper_s(lines, row):
    found = dict(zip(lines["Row"], lines[row], strict=True))
    assert CELLS[row].items() <= found.items()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    text = write_lines(folder / "text.jsonl", [text_of(number, 400) for number in range(300)])
    return prepare_text(text, folder / "corpus", tokeniser="bytes", held_out=SOME).folder


def test_rows_of_a_corpus_show_bits_per_byte(fakes, tmp_path, corpus):
    fakes.let(error=0.30)
    report = reproduce(
        "enwik8-fast",
        folder=tmp_path / "runs",
        rows=["ladder-4"],
        seeds=2,
        updates=200,
        overrides={"task.folder": str(corpus)},
    )
    [row] = [table_cells(row) for row in report.rows if row.label == "ladder-4"]
    assert row["Valid, ours"] == "1.220 ± 0.028"
    assert row["Best seed, ours"] == "1.204 (seed 0)"
    assert (row["Test, paper"], row["Best seed, paper"]) == ("1.11", "1.11")
    assert row["Train, ours"] == "-"
    assert "Solved after" not in row
    assert report.to_plain()["unit"] == screen_table(report).caption == "bits per byte"
    curve = next(row for row in report.rows if row.runs).runs[0].curve
    assert curve[-1] == (200, pytest.approx(1.2, rel=0.01))


def test_rows_of_words_show_perplexity_the_paper_s_order_and_resumed_runs(fakes, tmp_path, corpus):
    fakes.let(error=0.30)
    overrides = {"task.folder": str(corpus)}
    options = {"folder": tmp_path, "rows": ["ladder-4"], "seeds": 1, "overrides": overrides}
    report = reproduce("words", **options)
    board = tmp_path / "ladder-4" / "seed-0" / "tensorboard"
    board.mkdir(exist_ok=True)
    for start in ("1", "2"):
        (board / f"events.{start}").touch()
    report = reproduce("words", **options)
    [row] = [table_cells(row) for row in report.rows if row.label == "ladder-4"]
    assert (row["Test, ours"], row["Test, paper"]) == ("30.10", "23.3")
    page = (tmp_path / "report.html").read_text()
    assert "<p>In perplexity. " in page
    assert "Ladder, valid: ladder-8 &lt; ladder-4" in page
    assert "ladder-4, seed 0: stopped and resumed (2 starts)" in page


def scored(row, perplexity):
    """A row with one run of this perplexity, on both splits."""
    found = make_result(row.recipe, 0.5)
    score = {**found.test, "perplexity": perplexity}
    found = replace(found, valid=score, test=score)
    return replace(row, runs=(RunRecord(seed=0, status="finished", result=found),))


def test_the_paper_s_order_holds_for_scores_in_its_order_and_else_names_the_pairs():
    rows = {row.name: scored(row, row.paper.valid.mean**2) for row in table_rows("words")}
    lines = dict(line.split(", valid: ") for line in orders(list(rows.values())))
    assert all(line.endswith(": holds") for line in lines.values())
    order = "ladder-8 < ladder-4 < aaaabbbb < aabb < ladder-2 < transformer-xl: "
    assert lines["Ladder"] == f"{order}holds"
    rows["ladder-4"] = scored(rows["ladder-4"], 600.0)
    rows["aabb"] = replace(rows["aabb"], runs=())
    rows["feedback"] = replace(rows["feedback"], runs=())
    lines = dict(line.split(", valid: ") for line in orders(list(rows.values())))
    broken = "does not hold (ladder-4 600.000, aaaabbbb 566.440)"
    assert lines["Ladder"] == f"{order}{broken}"
    assert lines["Feedback Transformer"] == "feedback < transformer-xl: not run"
    assert not orders(table_rows("random-walk"))
    tied = next(line for line in orders(table_rows("enwik8-fast")) if line.startswith("Staircase"))
    assert "staircase-n2-c128 = staircase-n4-c64 < transformer-xl" in tied


def test_all_rows_are_in_the_data_with_every_run(plain):
    rows = plain["rows"]
    assert len(rows) == 15
    assert rows["ladder-2"]["ours"] is None
    assert rows["transformer-xl"]["is_shortened"] is False
    assert rows["ladder-4"]["is_shortened"] is True
    runs = rows["ladder-8"]["runs"]
    assert [run["status"] for run in runs] == ["finished", "diverged", "failed"]
    assert runs[0]["result"]["num_tokens"] == 5_000 * 512 * 128
    assert rows["ladder-8"]["ours"]["test"]["deviation"] is None


def test_runs_that_diverged_or_failed_are_listed(folder):
    text = (folder / "report.html").read_text()
    assert "ladder-4, seed 1: diverged at update 2,500 after 3 rollbacks; counts with" in text
    assert "ladder-8, seed 1: diverged at update 2,500 after 3 rollbacks; has no score" in text
    assert "ladder-8, seed 2: failed" in text


def test_runs_that_did_not_learn_are_listed():
    [row, *_] = table_rows("algorithm")
    result = replace(make_result(row.recipe, 0.9), outcome="did not learn")
    runs = (RunRecord(seed=4, status="finished", result=result),)
    [line] = troubles([replace(row, runs=runs)])
    assert line.endswith(", seed 4: did not learn: no better than the best constant guess")


def test_the_report_names_its_table_its_command_and_its_environment(folder, plain):
    text = (folder / "report.html").read_text()
    for piece in ("tab:random_walk", "Command: ", "torch ", "Python 3"):
        assert piece in text
    assert plain["table"] == "tab:random_walk"
    assert plain["environment"]["packages"]["torch"]


def test_a_report_names_the_machines_of_its_runs_wherever_it_is_written(tmp_path, fake):
    options = {"folder": tmp_path, "rows": ["lstm"], "seeds": 3}
    reproduce("random-walk", **options)
    (tmp_path / "lstm" / "seed-2" / "environment.json").write_text("torn")
    reproduce("random-walk", **options)
    text = (tmp_path / "report.html").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("<li>Run on ")]
    assert line.startswith("<li>Run on A Fine GPU, ")
    assert line.endswith(", torch 9.9 (2 runs)</li>")
    assert "<li>Written " in text


def test_a_machine_that_somebody_wrote_into_a_run_later_is_not_named(small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    assert read_run(run, 0).environment["device"]
    (run / "environment.json").write_text('{"device": "A Finer GPU"}')
    assert read_run(run, 0).environment == {}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_screen_shows_a_table_of_its_width_with_the_rows_that_were_run(tmp_path, fake, width):
    report = reproduce("random-walk", folder=tmp_path, rows=["lstm", "ladder-2"], seeds=1)
    file = io.StringIO()
    Console(file=file, width=width).print(screen_table(report))
    lines = file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert {line.split()[0] for line in lines if line.strip()} >= {"lstm", "ladder-2"}
    assert "transformer-xl" not in file.getvalue()
    assert "|" not in file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_that_is_too_narrow_for_the_words_of_a_table_gets_whole_lines(
    tmp_path, fake, monkeypatch, capsys, width
):
    report = reproduce("random-walk", folder=tmp_path, rows=["ladder-2"], seeds=1)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(screen_table(report))
    assert "…" not in capsys.readouterr().out


def test_fewer_tokens_are_a_short_budget_even_with_all_updates():
    [row] = [row for row in table_rows("random-walk") if row.name == "ladder-2"]
    small = find_recipe("random-walk/ladder-2").override({"training.num_lanes": 8})
    run = RunRecord(seed=0, status="finished", result=make_result(small, 0.5))
    assert replace(row, runs=(run,)).is_shortened


def test_the_best_seed_is_chosen_by_validation_error():
    [row, *_] = table_rows("algorithm")
    results = [make_result(row.recipe, error) for error in (0.3, 0.2)]
    results[0].test["error"] = 0.0
    runs = [RunRecord(seed=n, status="finished", result=result) for n, result in enumerate(results)]
    assert replace(row, runs=tuple(runs)).best is results[1]


def read_lines(folder, metrics, timing=(), torn=""):
    """The record of a run with these lines; some JSON is torn."""
    run = folder / "seed-0"
    run.mkdir()
    for name, lines in (("metrics", metrics), ("timing", timing)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / f"{name}.jsonl").write_text(torn + text + '{"kind": "val')
    [record] = read_runs(folder)
    return record


def errors(kind, *points):
    return [{"kind": kind, "update": update, "error": error} for update, error in points]


def test_a_curve_leaves_out_what_a_rollback_undid_and_torn_lines(tmp_path):
    lines = errors("valid", (10, 0.5), (20, 0.9))
    lines += [{"kind": "rollback", "update": 10}, *errors("valid", (20, 0.4))]
    record = read_lines(tmp_path, lines, torn='{"update": 10, "wall_sec\n')
    assert record.curve == ((10, 50.0), (20, 40.0))
    assert record.train is None
    assert record.status == "unfinished"


def test_the_training_error_is_that_of_the_last_updates_that_count(tmp_path):
    lines = errors("train", (900, 0.9), (960, 0.04), (970, 0.8), (1000, 0.7))
    lines.append({"kind": "rollback", "update": 960})
    lines += errors("train", (970, 0.02), (1000, 0.02)) + errors("valid", (1000, 0.5))
    assert read_lines(tmp_path, lines).train == pytest.approx((4 + 2 + 2) / 3)


def test_a_validation_score_that_is_not_finite_is_a_gap_in_the_curve(tmp_path):
    row = table_rows("algorithm")[0]
    (tmp_path / row.name).mkdir()
    lines = errors("valid", (10, 0.5), (20, None), (30, 0.4), (40, None))
    record = read_lines(tmp_path / row.name, lines)
    assert [update for update, _ in record.curve] == [10, 20, 30, 40]
    assert [math.isnan(score) for _, score in record.curve] == [False, True, False, True]
    assert record.seconds_to(45.0) is None
    figure = curve_figure([replace(row, runs=(record, replace(record, seed=1)))], "updates")
    [label] = figure.axes[0].get_legend().get_texts()
    assert label.get_text().endswith(": nan%")
    assert image(figure, "x")
    write_report(Report(title="T", folder=tmp_path, rows=(row,), num_seeds=1))
    plain = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert plain["rows"][0]["runs"][0]["curve"] == [[10, 50.0], [20, None], [30, 40.0], [40, None]]


def test_times_are_those_of_the_way_that_led_to_the_result(tmp_path):
    times = [{"update": n, "wall_seconds": seconds} for n, seconds in ((10, 1), (20, 2), (20, 5))]
    record = read_lines(tmp_path, errors("valid", (20, 0.004)), times, torn='{"update": 1\n')
    assert record.seconds == {20: 5.0}
    assert record.seconds_to(1.0) == 5.0


def test_a_row_is_solved_when_all_its_runs_are():
    [row, *_] = table_rows("algorithm")

    def run(seed, error):
        result = make_result(row.recipe, error / 100)
        curve = ((10, 50.0), (20, error))
        return RunRecord(
            seed=seed, status="finished", result=result, curve=curve, seconds={10: 3.0, 20: 6.0}
        )

    assert replace(row, runs=(run(0, 0.5), run(1, 1.0))).seconds_to_solve.mean == 6.0
    assert replace(row, runs=(run(0, 0.5), run(1, 1.1))).seconds_to_solve is None


def test_numbers_of_runs_are_summarised_and_shown():
    run = RunRecord(seed=0, status="finished", curve=((5, 9.0), (6, 2.0)), seconds={5: 1, 6: 1.5})
    assert [run.seconds_to(score) for score in (9.5, 2.0, 1.0)] == [1, 1.5, None]
    assert results._mean_of_last([(80, 9.0), (90, 5.0), (96, 4.0), (100, 2.0)]) == 3
    spreads = [Spread.over(values) for values in ([1.0, 2.0, 3.0], [1.0], [])]
    assert [str(one) for one in spreads] == ["2.0 ± 1.0", "1.0", "None"]
    assert Spread(0.1234, 0.05).shown(2) == "0.12 ± 0.05"
    shown = {3_276_800_000: "3.28G", 999_936: "1M", 65_536: "65.5k", 999: "999", 12: "12"}
    assert {count: short(count) for count in shown} == shown


def test_a_damaged_result_is_refused_in_one_line(tmp_path):
    run = tmp_path / "seed-0"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    (run / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json must be .*, got .*"):
        read_runs(tmp_path)


def test_progress_is_read_from_files_that_are_being_written(tmp_path):
    assert latest_facts(tmp_path) == (0, {})
    train = '{"kind": "train", "update": 9, "loss": 2.0, "error": 0.5}\n' * 99
    valid = '{"kind": "valid", "update": 10, "loss": 1.0, "error": 0.25}\n'
    (tmp_path / "metrics.jsonl").write_text(train + valid + '{"kind": "tra')
    (tmp_path / "timing.jsonl").write_text('{"update": 9, "tokens_per_second": 7.0}\n{"up')
    update, facts = latest_facts(tmp_path)
    assert update == 10
    assert facts == {"loss": 2.0, "error": 0.5, "valid_error": 0.25, "tokens_per_second": 7.0}
    text = train + valid + '{"kind": "valid", "update": 20, "error": null}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    # Not the score before it.
    assert math.isnan(latest_facts(tmp_path)[1]["valid_error"])


def test_all_runs_of_a_folder_are_collected_in_one_file(folder, tmp_path, monkeypatch):
    output = tmp_path / "runs.json"
    monkeypatch.setattr("sys.argv", ["collect", str(output), str(folder), f"A = B={folder / ONE}"])
    runpy.run_path(str(COLLECT), run_name="__main__")
    found = json.loads(output.read_text())
    assert len(found) == 1 + len(list(folder.glob("*/seed-*/config.json")))
    assert found["A = B"] == found[str(ONE)]
    run = found["ladder-4/seed-1"]
    assert (run["recipe"]["seed"], run["result"]["status"]) == (1, "diverged")
    assert run["environment"]["device"] == "A Fine GPU"
    assert run["valid"]["columns"] == ["update", "loss", "error"]
    assert run["valid"]["rows"][-1][0] == run["recipe"]["training"]["num_updates"]
