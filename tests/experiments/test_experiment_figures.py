"""Figures are files that open, and they show what they should."""

from xml.etree import ElementTree

import pytest
from fake_training import FakeTrainer

from staircase_attention.experiments import (
    compare,
    find_recipe,
    report_pictures,
    reproduce,
    table_rows,
)
from staircase_attention.experiments.curves import learning_curves, mean_curve
from staircase_attention.experiments.figures import IN_FIGURE_2, place_points, recurrence_figure
from staircase_attention.experiments.length_figure import length_figure
from staircase_attention.experiments.run_records import RunRecord
from staircase_attention.experiments.summary import RowSummary


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    trainer = FakeTrainer(error=lambda recipe: 0.1 + 0.05 * recipe.seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pictures, "draw_pictures", lambda *_: {})
        return reproduce(
            "random-walk",
            folder=tmp_path_factory.mktemp("runs"),
            rows=["staircase-n8-c8", "staircase-n4-c16", "lstm"],
            seeds=2,
            updates=100,
            train=trainer.train,
            resume=trainer.resume,
        )


@pytest.mark.parametrize(
    ("table_name", "files"),
    [
        (None, {"learning-curves"}),
        ("algorithm", {"figure-2", "learning-curves"}),
        ("permutations", {"figure-2", "learning-curves"}),
    ],
)
def test_a_report_comes_with_pictures_that_open(tmp_path, table_name, files):
    trainer = FakeTrainer()
    options = {"folder": tmp_path, "train": trainer.train, "resume": trainer.resume}
    if table_name is None:
        compare([find_recipe("parity/lstm")], **options)
    else:
        reproduce(table_name, rows=["ladder-2"], seeds=1, updates=40, **options)
    assert {path.stem for path in tmp_path.glob("*.png")} == files
    text = (tmp_path / "report.md").read_text()
    for name in files:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert f"({name}.png)" in text


def test_figure_2_has_a_place_for_every_row_of_its_models(report):
    points = place_points(report.rows)
    assert {point.model for point in points} == set(IN_FIGURE_2)
    assert len(points) == 11
    assert len({point.place for point in points}) == len(points)
    in_order = sorted(points, key=lambda point: point.place)
    steps = [point.recurrent_steps for point in in_order]
    assert steps == sorted(steps)


def test_figure_2_shows_ours_where_there_is_any_and_the_paper_s_always(report):
    points = {(point.model, point.recurrent_steps): point for point in place_points(report.rows)}
    staircase = points["Staircase", 8]
    assert staircase.ours.mean == pytest.approx(12.6)
    assert staircase.paper.mean == 0.2
    assert points["Ladder", 8].ours is None
    assert all(point.paper is not None for point in points.values())


def test_without_the_paper_s_numbers_figure_2_shows_the_rows_that_were_run(tmp_path):
    trainer = FakeTrainer()
    rows = ["cached-staircase-c4", "global-cached-staircase-c8", "ladder-2", "lstm"]
    report = reproduce(
        "permutations-fast",
        folder=tmp_path,
        rows=rows,
        seeds=1,
        train=trainer.train,
        resume=trainer.resume,
    )
    points = place_points(report.rows)
    assert [point.model for point in points] == ["Cached Staircase", "Ladder"]
    [axes] = recurrence_figure(report.rows, title="S5").axes
    assert [text.get_text() for text in axes.texts] == ["C=4"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["Cached Staircase", "Ladder"]


def test_there_is_no_figure_2_without_a_row_of_its_models(tmp_path):
    trainer = FakeTrainer()
    options = {"train": trainer.train, "resume": trainer.resume}
    reproduce("permutations", folder=tmp_path, rows=["lstm"], seeds=1, updates=40, **options)
    assert {path.stem for path in tmp_path.glob("*.png")} == {"learning-curves"}


def test_figure_2_says_when_our_points_come_from_fewer_updates(report):
    [axes] = recurrence_figure(report.rows, title="Random Walk").axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "ours, from fewer updates" in labels
    assert "the paper's" in labels


def test_learning_curves_have_a_line_a_row_and_a_thin_one_a_seed(report):
    [axes] = learning_curves(report.rows, title="Random Walk").axes
    widths = [line.get_linewidth() for line in axes.get_lines()]
    assert len([width for width in widths if width > 1]) == 3
    assert len([width for width in widths if width < 1]) == 6
    labels = [text.get_text().partition(":")[0] for text in axes.get_legend().get_texts()]
    assert set(labels) == {"staircase-n8-c8", "staircase-n4-c16", "lstm"}


def test_rows_of_one_model_share_a_colour_and_differ_in_their_dashes(report):
    [axes] = learning_curves(report.rows, title="Random Walk").axes
    thick = {line.get_label(): line for line in axes.get_lines() if line.get_linewidth() > 1}
    first, second = [line for name, line in thick.items() if name.startswith("staircase")]
    assert first.get_color() == second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_curves_of_runs_without_a_common_update_draw_nothing_and_break_nothing():
    [row, *_] = table_rows("algorithm")
    runs = tuple(
        RunRecord(seed=seed, status="unfinished", curve=((10 + seed, 50.0),)) for seed in (0, 1)
    )
    assert mean_curve([run.curve for run in runs]) == []
    learning_curves([RowSummary(row=row, runs=runs)], title="Algorithm")


def test_curves_against_time_lie_where_the_runs_were_on_the_average():
    [row, *_] = table_rows("algorithm")
    curve = ((10, 80.0), (20, 40.0))
    runs = tuple(
        RunRecord(
            seed=seed, status="finished", curve=curve, seconds={10: 60.0, 20: 120.0 + seconds}
        )
        for seed, seconds in enumerate((0.0, 120.0))
    )
    [axes] = learning_curves(
        [RowSummary(row=row, runs=runs)], title="Algorithm", against="time"
    ).axes
    [mean] = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert list(mean.get_xdata()) == [60.0, 180.0]
    assert list(mean.get_ydata()) == [80.0, 40.0]


def test_lengths_are_drawn_for_rows_that_have_some():
    first, second, *_ = table_rows("random-walk")
    runs = tuple(
        RunRecord(seed=seed, status="finished", lengths={400: 1.0 + seed, 800: 3.0 + seed})
        for seed in (0, 1)
    )
    rows = [RowSummary(row=first, runs=runs), RowSummary(row=second, runs=())]
    [axes] = length_figure(rows, title="Random Walk").axes
    thick = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert len(axes.get_lines()) - len(thick) == 2
    [line] = thick
    assert list(line.get_xdata()) == [400, 800]
    assert list(line.get_ydata()) == [1.5, 3.5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["400", "800"]
