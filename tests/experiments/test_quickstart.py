"""`quickstart`: how a text is split, a size is chosen, and what is made of it."""

import json
import shutil
from dataclasses import replace

import pytest

from staircase_attention.checks import InputError
from staircase_attention.data import TextSource
from staircase_attention.experiments import quickstart as steps
from staircase_attention.experiments.quickstart import Quickstart, write_splits
from staircase_attention.training import Display

LINES = [f"Line {number} is about the old house by the sea.\n" for number in range(400)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A quickstart of a few updates: its folder, what it said, and what it gave."""
    folder, said = tmp_path_factory.mktemp("quick"), []
    (folder / "a.md").write_text("".join(LINES[:300]))
    (folder / "b.py").write_text("".join(LINES[300:]))
    quick = Quickstart(
        files=[folder / "a.md", folder / "b.py"],
        folder=folder / "out",
        minutes=0.002,
        say=said.append,
    )
    return quick, said, quick.run()


def test_few_documents_are_split_by_size_at_line_ends(made):
    quick, _, _ = made
    splits = {
        name: "".join(path.read_text() for path in sorted((quick.folder / "text" / name).iterdir()))
        for name in ("train", "valid", "test")
    }
    assert "".join(splits.values()) == "".join(LINES)
    total = len("".join(LINES))
    assert all(abs(len(splits[name]) / total - 0.05) < 0.01 for name in ("valid", "test"))
    assert all(text.endswith(".\n") for text in splits.values())


def test_all_is_in_one_folder(made):
    quick, _, (result, samples, share) = made
    assert result.status == "finished"
    assert len(samples) == steps.NUM_SAMPLES
    assert 0 <= share <= 1
    assert (quick.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    names = {"corpus", "curve.png", "quickstart.json", "recipe.json", "run", "text"}
    assert {path.name for path in quick.folder.iterdir()} == names


class Killer(Display):
    """Ends a run at its second update, as Ctrl-C twice does."""

    def advance(self, update, **facts):
        if update > 1:
            raise KeyboardInterrupt


def test_a_quickstart_continues_where_it_was_killed(made):
    quick, _, (_, samples, share) = made
    shutil.rmtree(quick.folder / "run")
    with pytest.raises(KeyboardInterrupt):
        replace(quick, training=Killer()).run()
    result, again, share_again = quick.run()
    assert (result.status, again, share_again) == ("finished", samples, share)


def test_a_folder_holds_the_quickstart_of_the_same_files(made):
    quick, _, _ = made
    with pytest.raises(InputError, match="a folder holds one quickstart, got"):
        Quickstart(files=quick.files[:1], folder=quick.folder, minutes=quick.minutes).run()


def test_many_documents_are_split_by_their_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "seconds_per_update", lambda *_: 1.0)
    turns = [["one", "Who lives here?"], ["two", "Nobody, the house is empty."]]
    path = tmp_path / "chat.jsonl"
    path.write_text(
        "".join(json.dumps({"turns": [*turns, ["one", f"{n}"]]}) + "\n" for n in range(300))
    )
    said = []
    result, samples, _ = Quickstart(
        files=[path], folder=tmp_path / "out", minutes=0.01, say=said.append
    ).run()
    assert result.num_updates == 4
    assert said[0].startswith(f"$ staircase prepare text {path} --valid 0.05 --test 0.05")
    assert len(samples) == steps.NUM_SAMPLES


def test_text_of_a_single_line_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 1000)
    with pytest.raises(InputError, match="a text must have lines to train on"):
        write_splits([TextSource(tmp_path / "a.txt")], tmp_path / "text", ends=(4500, 4750))
    assert not (tmp_path / "text").exists()


def test_a_size_is_chosen_by_the_text(made):
    quick, _, _ = made
    corpus = steps.Corpus.open(quick.folder / "corpus")
    widths = [
        recipe.model.core.width
        for on_gpu in (False, True)
        for recipe in steps.sized_recipes(corpus, on_gpu=on_gpu)
    ]
    assert widths == [64, 64]
