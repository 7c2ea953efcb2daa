"""Files written by version 0.1 still load: runs, packed runs, corpora, states, saved streams."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from staircase_attention import CachedStaircase, CoreConfig, SequenceModel, load_state
from staircase_attention.training import trainer

OLD = Path(__file__).parent / "v0.1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old files, and the folder in which they were made."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stopped_run_resumes_to_its_end(old, staircase, monkeypatch):
    metrics = (old / "run" / "metrics.jsonl").read_text().splitlines()
    score, num_scored = trainer.score_split, []

    def score_first(*given, recipe, **options):
        # The old run's own way for the score in its metrics, and a fast one for those after it.
        num_lanes = 200 if num_scored else recipe.training.evaluation_lanes
        num_scored.append(1)
        faster = recipe.override({"training.evaluation_lanes": num_lanes})
        return score(*given, recipe=faster, **options)

    monkeypatch.setattr(trainer, "score_split", score_first)
    status, out, err = staircase("resume", "run", "--quiet")
    assert status == 0, err
    assert "finished after 20 updates" in out
    resumed = (old / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(resumed) == len(metrics)
    # Up to the checkpoint the lines are kept; after it another CPU may round differently.
    assert resumed[0] == metrics[0]
    assert json.loads(resumed[-1])["loss"] == pytest.approx(json.loads(metrics[-1])["loss"])


# The old Algorithm task redraws statements, and its configs do not say so.
@pytest.mark.parametrize("name", ["packed", "packed-algorithm", "packed-text"])
def test_a_packed_run_scores_as_it_did(old, staircase, name):
    status, out, err = staircase("eval", name, "--json")
    assert status == 0, err
    score, expected = json.loads(out), json.loads((old / f"{name}-score.json").read_text())
    assert score["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert score["num_answers"] == expected["num_answers"]


def test_a_saved_text_stream_continues(old, staircase):
    status, out, err = staircase("sample", "packed-text", "--resume", "stream", "--max-tokens", "8")
    assert status == 0, err
    assert out.strip() == (old / "stream-continued.txt").read_text().strip()


def test_a_saved_state_continues_exactly():
    expected = load_file(OLD / "state-expected.safetensors")
    model = SequenceModel(
        vocab_size=11,
        core=CoreConfig(width=8, num_layers=2, num_heads=2),
        schedule=CachedStaircase(chunk_size=3, num_window_chunks=4, num_passes=2),
    ).double()
    weights = {name: value for name, value in expected.items() if name.startswith("weights.")}
    model.load_state_dict({name.removeprefix("weights."): value for name, value in weights.items()})
    logits, _ = model(expected["tokens"], load_state(OLD / "state.safetensors"))
    torch.testing.assert_close(logits, expected["logits"], atol=1e-9, rtol=0)
