"""Figures are files that open, and they show what they should."""

import base64
from dataclasses import replace

import numpy as np
import pytest
from fake_staircase import result

from staircase_attention.experiments import find_recipe, paper_tables, table_rows
from staircase_attention.experiments.comparisons import labelled_rows
from staircase_attention.experiments.figures import (
    FAMILIES,
    OTHER_FAMILIES,
    Curve,
    curve_figure,
    draw_figures,
    image,
    lines_figure,
    mean_points,
    row_styles,
    steps_figure,
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
    ("rows", "words"),
    [
        ([summary(LSTM)], ["updates"]),
        (table("algorithm", ["ladder-2"], seeds=1), ["steps", "updates"]),
        (table("algorithm", [], seeds=1), []),
        (table("words", ["ladder-2"], seeds=1), ["steps", "updates"]),
    ],
)
def test_a_report_has_the_figures_for_which_there_is_data(rows, words):
    figures = draw_figures(rows, title="T")
    assert len(figures) == len(words)
    for word, (caption, figure) in zip(words, figures.items(), strict=True):
        assert word in caption
        assert image(figure, "<a>").startswith('<figure><img alt="&lt;a&gt;" src="data:image/svg')


def test_dollar_signs_are_drawn_as_they_are():
    words = {"title": "from $5 to $6", "xlabel": "$x_1$", "ylabel": r"$\nothing$"}
    figure = lines_figure({"a $b$": Curve({1: 2.0, 2: 3.0})}, is_log=True, **words)
    source = image(figure, "").partition("base64,")[2].partition('"')[0]
    drawn = base64.b64decode(source).decode()
    for text in ("a $b$", *words.values()):
        assert f">{text}</text>" in drawn


def test_every_family_has_its_own_colour_and_marker():
    everything = [*FAMILIES.values(), *OTHER_FAMILIES]
    for kind in zip(*everything, strict=True):
        assert len(set(kind)) == len(everything)
    assert {row.model for row in paper_tables()["random-walk"].rows.values()} <= set(FAMILIES)
    drawn = row_styles(["Staircase", "mine", "LSTM", "Staircase", "yours", "mine"])
    assert [style.colour for style in drawn[:3]] != [style.colour for style in drawn[3:]]
    assert (drawn[0].colour, drawn[1].colour) == (drawn[3].colour, drawn[5].colour)
    assert len({style.dashes for style in (drawn[0], drawn[3])}) == 2


def test_scores_stand_against_steps_beside_the_papers_and_against_minutes():
    left, right = steps_figure(WALKS).axes
    run = {"Staircase": 2, "LSTM": 1}
    assert legend(right) == [*run]
    # Markers of ours, and of the paper's, which has all rows but the LSTM's.
    ours = [bars.lines[0] for bars in right.containers]
    assert [len(line.get_xdata()) for line in ours if len(line.get_xdata())] == [*run.values()]
    faces = [
        (bars.lines[0].get_markerfacecolor(), len(bars.lines[0].get_xdata()))
        for bars in left.containers
    ]
    assert sum(count for face, count in faces if face == "white") == 14
    assert sum(count for face, count in faces if face != "white") == 3


def test_rows_with_as_many_steps_stand_beside_each_other_around_their_tick():
    left, _ = steps_figure(WALKS).axes
    ours = [line for bars in left.containers if len((line := bars.lines[0]).get_xdata())]
    places = [place for line in ours for place in line.get_xdata()]
    assert len(set(places)) == len(places)
    ticks = left.get_xticks()
    assert all(min(abs(np.log2(place / ticks))) < 0.6 for place in places)


def test_minutes_within_a_decade_are_plain_numbers():
    [row] = [row for row in WALKS if row.name == "lstm"]
    slow = [
        replace(run, result=replace(run.result, wall_seconds=60.0 * minutes))
        for minutes, run in zip((2, 8), row.runs, strict=False)
    ]
    rows = [replace(row, name=f"{number}", runs=(run,)) for number, run in enumerate(slow)]
    figure = steps_figure(rows)
    figure.draw_without_rendering()
    labels = [text.get_text() for text in figure.axes[1].get_xticklabels(minor=True)]
    assert {"3", "4", "6"} <= {*labels} <= {"", *"23456789"}


def test_perplexities_of_another_vocabulary_are_not_drawn():
    left, _ = steps_figure(table("words", ["ladder-2", "ladder-4"], seeds=1)).axes
    assert sum(len(bars.lines[0].get_xdata()) for bars in left.containers) == 2


def test_learning_curves_have_a_line_per_row_and_a_thin_one_per_seed():
    [axes] = curve_figure(WALKS, "updates").axes
    widths = [line.get_linewidth() for line in axes.get_lines()]
    assert len([width for width in widths if width > 1]) == len(legend(axes)) == 3
    assert len([width for width in widths if width < 1]) == 6


@pytest.mark.parametrize(
    ("curve", "low", "high"),
    [(((10, 50.0), (20, 0.0)), -3, 53), (((10, 48.0), (20, 44.0)), 43, 49), (((5, 0.0),), -1, 1)],
)
def test_the_axis_of_a_curve_shows_its_data_and_not_more(curve, low, high):
    run = RunRecord(seed=0, status="finished", curve=curve)
    [axes] = curve_figure([replace(LSTM, runs=(run,))], "updates").axes
    bottom, top = axes.get_ylim()
    assert low <= bottom < min(error for _, error in curve)
    assert max(error for _, error in curve) < top <= high


def test_updates_are_whole_numbers_on_the_axis_of_a_short_run():
    run = RunRecord(seed=0, status="finished", curve=((1, 50.0), (2, 40.0)))
    [axes] = curve_figure([replace(LSTM, runs=(run,))], "updates").axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_a_mean_is_over_points_that_all_runs_have_or_that_any_has():
    runs = [{10: 90.0, 20: 50.0}, {10: 80.0}]
    assert mean_points(runs, common=True) == {10: 85}
    assert mean_points(runs, common=False) == {10: 85, 20: 50}


def test_curves_of_runs_without_a_common_update_draw_nothing_and_break_nothing():
    runs = tuple(
        RunRecord(seed=seed, status="unfinished", curve=((10 + seed, 50.0),)) for seed in (0, 1)
    )
    [axes] = curve_figure([replace(LSTM, runs=runs)], "updates").axes
    assert not axes.get_lines()


def test_lengths_are_drawn_for_rows_that_have_some():
    runs = tuple(
        # As in the table, one that diverged counts.
        RunRecord(seed=seed, status=status, lengths={400: 1.0 + seed, 800: 3.0 + seed})
        for seed, status in enumerate(("finished", "diverged"))
    )
    [axes] = curve_figure([replace(LSTM, runs=runs), LSTM], "length").axes
    [mean] = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert list(mean.get_xdata()) == [400, 800]
    assert list(mean.get_ydata()) == [1.5, 3.5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["400", "800"]
