"""Figures are files that open, and they show what they should."""

from dataclasses import replace

import pytest
from fake_staircase import result

from staircase_attention.experiments import find_recipe, paper_tables, table_rows
from staircase_attention.experiments.comparisons import labelled_rows
from staircase_attention.experiments.figures import (
    FAMILIES,
    IN_FIGURE_2,
    OTHER_FAMILIES,
    cost_figure,
    curve_figure,
    draw_figures,
    recurrence_figure,
    recurrence_rows,
    row_styles,
)
from staircase_attention.experiments.results import RunRecord
from staircase_attention.training import RunResult


def summary(row, *, seeds=2, updates=100):
    """A row with runs whose errors are 10% and 5 more for every seed."""
    runs = []
    for seed in range(seeds):
        recipe = row.recipe.override({"seed": seed, "training.num_updates": updates})
        curve = ((updates // 2, 50.0), (updates, 10.0 + 5 * seed))
        found = RunResult(**result(recipe.to_plain(), 0.1 + 0.05 * seed))
        runs.append(RunRecord(seed=seed, status="finished", result=found, curve=curve))
    return replace(row, runs=tuple(runs))


def table(name, run, **options):
    """A table of which some rows are run."""
    return [summary(row, **options) if row.name in run else row for row in table_rows(name)]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


[LSTM] = labelled_rows([find_recipe("parity/lstm")])
WALKS = table("random-walk", ["staircase-n8-c8", "staircase-n4-c16", "lstm"])


@pytest.mark.parametrize(
    ("rows", "files"),
    [
        ([summary(LSTM)], {"learning-curves.png"}),
        (
            table("algorithm", ["ladder-2"], seeds=1),
            {"figure-2.png", "learning-curves.png"},
        ),
        (table("permutations", ["lstm"], seeds=1), {"learning-curves.png"}),
        (table("words", ["ladder-2"], seeds=1), {"figure-3.png", "learning-curves.png"}),
    ],
)
def test_a_report_has_the_figures_for_which_there_is_data(tmp_path, rows, files):
    (tmp_path / "lengths.png").write_text("of an earlier report")
    assert set(draw_figures(rows, tmp_path, title="T")) == files
    assert {path.name for path in tmp_path.iterdir()} == files
    for name in files:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_every_family_has_its_own_colour_and_marker():
    everything = [*FAMILIES.values(), *OTHER_FAMILIES]
    for kind in zip(*everything, strict=True):
        assert len(set(kind)) == len(everything)
    assert {row.model for row in paper_tables()["random-walk"].rows.values()} <= set(FAMILIES)
    drawn = row_styles(["Staircase", "mine", "LSTM", "Staircase", "yours", "mine"])
    assert [style.colour for style in drawn[:3]] != [style.colour for style in drawn[3:]]
    assert (drawn[0].colour, drawn[1].colour) == (drawn[3].colour, drawn[5].colour)
    assert len({style.dashes for style in (drawn[0], drawn[3])}) == 2


def test_figure_2_has_a_place_for_every_row_of_its_models_and_names_short_runs():
    rows = recurrence_rows(WALKS)
    assert {row.model for row in rows} == set(IN_FIGURE_2)
    [axes] = recurrence_figure(WALKS).axes
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert len(ticks) == len(rows) == 11
    assert ticks == sorted(ticks, key=lambda text: int(text.split()[0]))
    assert "4\nC=16" in ticks
    assert {"ours, from fewer updates", "the paper's"} <= set(legend(axes))


def test_without_the_papers_numbers_figure_2_shows_the_rows_that_were_run():
    run = ["cached-staircase-c4", "global-cached-staircase-c8", "ladder-2", "lstm"]
    [axes] = recurrence_figure(table("permutations-fast", run, seeds=1, updates=3000)).axes
    assert legend(axes) == ["Cached Staircase", "Ladder"]


def test_figure_3_has_a_marker_for_every_run_row_and_a_line_through_the_best_of_a_model():
    run = ["ladder-2", "ladder-4", "aabb", "transformer-xl"]
    left, right = cost_figure(table("words", run, seeds=1)).axes
    joined, marked = (
        [list(line.get_xdata()) for line in right.get_lines() if line.get_linestyle() == style]
        for style in ("-", "None")
    )
    assert (joined, marked) == ([[1], [2, 4]], [[1], [2, 2, 4]])
    assert legend(right) == ["Transformer-XL", "Ladder"]
    assert len(left.get_lines()) == len(right.get_lines())


def test_learning_curves_have_a_line_per_row_and_a_thin_one_per_seed():
    [axes] = curve_figure(WALKS, "updates").axes
    widths = [line.get_linewidth() for line in axes.get_lines()]
    assert len([width for width in widths if width > 1]) == len(legend(axes)) == 3
    assert len([width for width in widths if width < 1]) == 6


@pytest.mark.parametrize(
    ("curve", "low", "high"),
    [(((10, 50.0), (20, 0.0)), -2, 52), (((10, 48.0), (20, 44.0)), 43, 49), (((5, 0.0),), -1, 1)],
)
def test_the_axis_of_a_curve_shows_its_data_and_not_more(curve, low, high):
    run = RunRecord(seed=0, status="finished", curve=curve)
    [axes] = curve_figure([replace(LSTM, runs=(run,))], "updates").axes
    bottom, top = axes.get_ylim()
    assert low <= bottom < min(error for _, error in curve)
    assert max(error for _, error in curve) < top <= high


def test_curves_of_runs_without_a_common_update_draw_nothing_and_break_nothing():
    runs = tuple(
        RunRecord(seed=seed, status="unfinished", curve=((10 + seed, 50.0),)) for seed in (0, 1)
    )
    [axes] = curve_figure([replace(LSTM, runs=runs)], "updates").axes
    assert not axes.get_lines()


def test_lengths_are_drawn_for_rows_that_have_some():
    runs = tuple(
        RunRecord(seed=seed, status="finished", lengths={400: 1.0 + seed, 800: 3.0 + seed})
        for seed in (0, 1)
    )
    [axes] = curve_figure([replace(LSTM, runs=runs), LSTM], "length").axes
    [mean] = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert list(mean.get_xdata()) == [400, 800]
    assert list(mean.get_ydata()) == [1.5, 3.5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["400", "800"]
