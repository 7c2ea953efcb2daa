"""Every recipe is complete, can be saved, loaded and built, and is the row it says it is."""

import json
from dataclasses import replace

import pytest
import torch

from staircase_attention.experiments import (
    TABLES,
    find_recipe,
    paper_tables,
    recipes,
    table_rows,
)
from staircase_attention.experiments.catalog import NO_DROPOUT, WORDS_TABLES
from staircase_attention.experiments.comparisons import labelled_rows, model_name
from staircase_attention.training import CorpusChoice, Recipe
from staircase_attention.training.dataset import build_dataset
from staircase_attention.training.learner import NumSymbols, build_model
from staircase_attention.training.run_folder import RunFolder

WORD_PIECES = NumSymbols(num_inputs=8008, num_outputs=8008)


@pytest.mark.parametrize("table", list(paper_tables()))
def test_a_recipe_describes_itself_in_the_words_of_its_row(table):
    for name, printed in paper_tables()[table].rows.items():
        recipe = find_recipe(f"{table}/{name}")
        [words] = [row.words for row in labelled_rows([recipe])]
        # The Global model's window is as wide as its printed step size, so that it is a Cached one.
        assert model_name(recipe) == printed.model.removeprefix("Global ").removesuffix(" (2x)")
        assert recipe.training.num_updates == printed.num_updates
        if printed.model.startswith("Transformer-XL"):
            # Some tables print its segment as a size, and one prints 1 where others have a dash.
            assert words.recurrent_steps is None
            continue
        if printed.identifier == "reddit/cached-staircase-c128":
            words = replace(words, step_size=256)
        assert words == printed.words


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


@pytest.mark.parametrize("group", sorted({name.split("/")[0] for name in recipes()}))
def test_recipes_survive_saving_and_their_tasks_and_models_can_be_built(group):
    for name, recipe in recipes().items():
        if name.split("/")[0] == group:
            assert Recipe.from_plain(json.loads(json.dumps(recipe.to_plain()))) == recipe
            # Corpora are not at hand; the paper's word pieces stand in for their symbols.
            is_text = isinstance(recipe.task, CorpusChoice)
            data = WORD_PIECES if is_text else build_dataset(recipe)
            with torch.device("meta"):
                assert build_model(recipe, data).num_parameters > 0


@pytest.mark.parametrize("table", [t for t in TABLES if not t.startswith(("enwik8", "words"))])
def test_all_tables_call_their_models_by_the_paper_s_names(table):
    names = {row.name: row.model for row in table_rows(table)}
    assert names["global-cached-staircase-c8"] == "Global Cached Staircase"
    assert names["cached-staircase-c8"] == "Cached Staircase"
    assert names["lstm"] == "LSTM"
    last = table_rows(table)[-1]
    assert (last.name, last.paper) == ("lstm", None)


@pytest.mark.parametrize("table", ["random-walk", "algorithm", "enwik8"])
def test_fast_rows_are_the_paper_s_models_without_dropout_and_stand_beside_its_numbers(table):
    # The paper has no parallel loop.
    ours = [row for row in table_rows(f"{table}-fast") if not row.name.startswith("parallel")]
    for fast, usual in zip(ours, table_rows(table), strict=True):
        assert (fast.name, fast.paper) == (usual.name, usual.paper)
        assert fast.recipe.name == f"{table}-fast/{fast.name}"
        assert fast.recipe.task == usual.recipe.task
        model = usual.recipe.to_plain()["model"]
        for part in (model, model.get("core", {})):
            part |= {name: 0.0 for name in part if name.endswith("dropout") and part[name]}
        assert fast.recipe.to_plain()["model"] == model


def test_words_have_every_model_of_reddit_s_tables_once_at_half_the_width():
    rows = table_rows("words")
    models = [row.recipe.model for row in rows]
    assert all(models.count(model) == 1 for model in models)
    for table in WORDS_TABLES:
        for name in paper_tables()[table].rows:
            ours = find_recipe(f"{table}/{name}").override(
                {"model.core": NO_DROPOUT | {"width": 512}}
            )
            assert ours.model in models
    for row in rows:
        # The row of the paper that stands beside it has the same model.
        theirs = find_recipe(row.paper.identifier).model
        assert replace(theirs, core=row.recipe.model.core) == row.recipe.model
        assert row.recipe.model.core.num_layers == theirs.core.num_layers


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


@pytest.mark.parametrize("chunk_size", [8, 16, 32])
def test_global_rows_may_see_a_whole_walk_and_nothing_else(chunk_size):
    """As docs/results/random-walk.md has them: a segment is one walk, every update begins anew."""
    recipe = find_recipe(f"random-walk-fast/global-cached-staircase-c{chunk_size}")
    recipe = recipe.override({"training.segment_length": 401, "training.num_lanes": 3})
    data, schedule = build_dataset(recipe), recipe.model.schedule
    lanes = data.lanes(num_lanes=3, segment_length=401)
    position = replace(lanes.first_position(), update=recipe.training.num_updates)
    batches = [*data.batches("test", num_lanes=1000, segment_length=401)]
    assert len(batches) == 1
    for _ in range(3):
        batch, position = lanes.batch(position)
        # Restarting leaves out nothing: the walks are over.
        assert lanes.restarted(position) == position
        batches.append(batch)
    for batch in batches:
        # START is symbol 0.
        assert not batch.inputs[:, 0].any()
        assert batch.inputs[:, 1:].all()
    for step in schedule.steps(range(401), num_layers=4, order="window"):
        first = step.tokens.start
        assert step.frozen == ((range(first),) if first else ())


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
