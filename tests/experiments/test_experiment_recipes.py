"""Every recipe is complete, can be saved, loaded and built, and is the row it says it is."""

import json
from dataclasses import replace

import pytest
import torch

from staircase_attention.experiments import (
    TABLES,
    find_recipe,
    paper_tables,
    paper_training,
    recipes,
    table_rows,
)
from staircase_attention.experiments.experiment import model_name, table_words
from staircase_attention.training import CorpusChoice, Recipe
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import NumSymbols, build_model
from staircase_attention.training.run_folder import RunFolder

PAPER_ROWS = {
    row.identifier: row
    for table in ("random-walk", "algorithm")
    for row in paper_tables()[table].rows.values()
}
WORD_PIECES = NumSymbols(num_inputs=8008, num_outputs=8008)


def test_every_row_of_every_language_table_has_a_recipe_with_its_words():
    tables = [name for name in paper_tables() if name not in TABLES]
    for table in tables:
        for name, printed in paper_tables()[table].rows.items():
            words = table_words(find_recipe(f"{table}/{name}"))
            assert words.recurrent_steps == printed.words.recurrent_steps
            if printed.words.recurrent_steps is not None and words.step_size is not None:
                assert words.forward_size == printed.words.forward_size
                if (table, name) != ("reddit", "cached-staircase-c128"):
                    assert words.step_size == printed.words.step_size


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("reddit/transformer-xl", 117),
        ("reddit/transformer-xl-2x", 218),
        ("reddit/feedback", 102),
        ("reddit/universal-transformer-8", 29),
        ("reddit-layer-pattern/abcd", 218),
    ],
)
def test_reddit_recipes_have_the_papers_parameters(name, millions):
    recipe = find_recipe(name)
    with torch.device("meta"):
        model = build_model(recipe, WORD_PIECES)
    table = model.core.positions.table.numel()
    assert round((model.num_parameters - table) / 1e6) == millions


@pytest.mark.parametrize("name", list(recipes()))
def test_a_recipe_survives_saving_and_its_task_and_model_can_be_built(name):
    recipe = find_recipe(name)
    assert recipe.name == name
    assert Recipe.from_plain(json.loads(json.dumps(recipe.to_plain()))) == recipe
    # Corpora are not at hand; the paper's word pieces stand in for their symbols.
    is_text = isinstance(recipe.task, CorpusChoice)
    data = WORD_PIECES if is_text else build_dataset(recipe)
    with torch.device("meta"):
        model = build_model(recipe, data)
    assert model.num_parameters > 0


@pytest.mark.parametrize("name", list(PAPER_ROWS))
def test_a_recipe_describes_itself_in_the_words_of_its_row(name):
    recipe, printed = find_recipe(name), PAPER_ROWS[name]
    words = table_words(recipe)
    if name == "random-walk/transformer-xl":
        # This table prints 1 where the Algorithm table prints a dash for the same model.
        assert words.recurrent_steps is None
        words = replace(words, recurrent_steps=1)
    assert words == printed.words
    # The Global model's window is as wide as its printed step size, so that it is a Cached one.
    assert model_name(recipe) == printed.model.removeprefix("Global ")
    assert recipe.training.num_updates == printed.num_updates
    # The appendix's settings; test_paper_tables.py has their values.
    facts = paper_training(printed.table)
    assert recipe.model.core == facts.core()
    assert recipe.training == facts.config(num_updates=printed.num_updates)
    assert recipe.training.optimizer.decay == "constant"


@pytest.mark.parametrize("table", TABLES)
def test_all_tables_call_their_models_by_the_paper_s_names(table):
    names = {row.name: row.model for row in table_rows(table)}
    assert names["global-cached-staircase-c8"] == "Global Cached Staircase"
    assert names["cached-staircase-c8"] == "Cached Staircase"
    assert names["lstm"] == "LSTM"
    last = table_rows(table)[-1]
    assert (last.name, last.paper) == ("lstm", None)


@pytest.mark.parametrize("table", ["random-walk", "algorithm"])
def test_fast_rows_are_the_paper_s_models_without_dropout_and_stand_beside_its_numbers(table):
    for fast, usual in zip(table_rows(f"{table}-fast"), table_rows(table), strict=True):
        assert (fast.name, fast.paper) == (usual.name, usual.paper)
        assert fast.recipe.name == f"{table}-fast/{fast.name}"
        assert fast.recipe.task == usual.recipe.task
        dropout = "model.dropout" if fast.name == "lstm" else "model.core.dropout"
        assert fast.recipe.override({dropout: 0.2}).model == usual.recipe.model


@pytest.mark.parametrize(
    ("groups", "staircase", "tolerance"),
    [
        (["random-walk", "algorithm", "permutations"], "staircase-n8-c8", 0.02),
        (
            ["parity", "permutations-small", "random-walk-small", "algorithm-small"],
            "staircase",
            0.05,
        ),
    ],
)
def test_an_lstm_has_about_the_parameters_of_a_staircase(groups, staircase, tolerance):
    for group in groups:
        assert _ratio(group, staircase) == pytest.approx(1, abs=tolerance)


def test_an_unknown_recipe_is_refused_in_one_line_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'random-walk/staircase-n8-c8'") as error:
        find_recipe("random-walk/staircase-n8c8")
    assert "\n" not in str(error.value)


def test_a_recipe_is_also_found_in_a_file_or_a_run_folder(tmp_path):
    recipe = find_recipe("parity/lstm").override({"seed": 3})
    (tmp_path / "mine.json").write_text(json.dumps(recipe.to_plain()))
    assert find_recipe(str(tmp_path / "mine.json")) == recipe
    with RunFolder(tmp_path / "run").started(recipe):
        pass
    assert find_recipe(str(tmp_path / "run" / "config.json")) == recipe
    (tmp_path / "torn.json").write_text("{")
    for name, words in (("torn", "must be JSON, got"), ("absent", "No such file")):
        with pytest.raises(ValueError, match=words):
            find_recipe(str(tmp_path / f"{name}.json"))


def _ratio(group, other):
    counts = []
    for row in ("lstm", other):
        recipe = find_recipe(f"{group}/{row}")
        with torch.device("meta"):
            counts.append(build_model(recipe, build_dataset(recipe)).num_parameters)
    return counts[0] / counts[1]
