"""`quickstart`: how a text is split, a size is chosen, and what is made of it."""

import json
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from staircase_attention.checks import InputError
from staircase_attention.data import TextSource
from staircase_attention.data.documents import SPLITS
from staircase_attention.engine.backend import HEAD_SIZES
from staircase_attention.experiments import page as pages
from staircase_attention.experiments import quickstart as steps
from staircase_attention.experiments.page import NUM_SAMPLES
from staircase_attention.experiments.quickstart import Pace, Quickstart, vocabulary, write_splits
from staircase_attention.files import PARTIAL, sha256_of
from staircase_attention.training import Display, StopRequested
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.recipe import OptimizerConfig

LINES = [f"Line {number} is about the old house by the sea.\n" for number in range(400)]


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr(pages, "SAMPLE_TOKENS", 20)


def smallest(corpus, num_updates):
    *_, recipe = steps.sized_recipes(corpus, on_gpu=False)
    return steps.planned(recipe, corpus, num_updates)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "SAMPLE_TOKENS", 20)
        # A plan of 20 updates, which at update 5 turn out to be too many.
        patch.setattr(Quickstart, "_chosen", lambda _, corpus, __: smallest(corpus, num_updates=20))
        patch.setattr(
            Pace, "_wanted", lambda pace, at, _: 12 if at == 5 < pace.num_updates - 7 else None
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
    quick, _, (result, samples) = made
    assert result.status == "finished"
    assert len(samples) == NUM_SAMPLES
    names = {"corpus", "quickstart.json", "recipe.json", "run", "text"}
    assert {path.name for path in quick.folder.iterdir()} == names


class Killer(Display):
    """Ends a run at its second update, as Ctrl-C twice does."""

    def advance(self, update, **facts):
        if update > 1:
            raise KeyboardInterrupt


def test_its_recipe_gives_the_run_whose_number_of_updates_changed(made, tmp_path):
    quick, _, (result, _) = made
    assert result.num_updates == 12
    recipe = steps.find_recipe(str(quick.folder / "recipe.json"))
    steps.train(recipe, tmp_path / "run")
    for name in ("config.json", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (quick.folder / "run" / name).read_bytes()


def test_a_quickstart_continues_where_it_was_killed(made, monkeypatch):
    quick, _, (_, samples) = made
    monkeypatch.setattr(Pace, "_wanted", lambda *_: None)
    shutil.rmtree(quick.folder / "run")
    with pytest.raises(KeyboardInterrupt):
        replace(quick, training=Killer()).run()
    result, again = quick.run()
    assert (result.status, again) == ("finished", samples)


def test_a_quickstart_that_was_killed_while_it_wrote_its_plan_begins_again(made, monkeypatch):
    quick, _, _ = made
    folder = quick.folder.with_name("begun")
    folder.mkdir()
    (folder / f".quickstart.json.1{PARTIAL}").touch()
    monkeypatch.setattr(Quickstart, "_prepared", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        replace(quick, folder=folder).run()
    assert (folder / "quickstart.json").exists()


def test_who_stops_a_quickstart_that_changes_its_number_of_updates_stops_it(made, monkeypatch):
    """As both happen in one update."""
    quick, _, _ = made
    monkeypatch.setattr(Pace, "_wanted", lambda pace, at, _: 12 if at == 5 else None)
    shutil.rmtree(quick.folder / "run")
    plan = json.loads((quick.folder / "recipe.json").read_text())
    plan["training"]["num_updates"] = 20
    (quick.folder / "recipe.json").write_text(json.dumps(plan))

    class Impatient(Display):
        def advance(self, done, **_):
            if done == 5:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(StopRequested) as stop:
        replace(quick, training=Impatient()).run()
    assert stop.value.exit_status == 130
    assert str(stop.value) == "stopped and saved; run the same command again to resume"


def test_a_quickstart_in_a_thread_keeps_its_number_of_updates(made, monkeypatch):
    """It would stop its program, not its run."""
    monkeypatch.setattr(Pace, "_wanted", lambda *_: 12)
    monkeypatch.setattr(signal, "raise_signal", Mock())
    pace = Pace(Display(), OptimizerConfig(), 20, 0.0)
    pace.begin("quickstart", 0, 20)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(pace.advance, 5).result()
    assert not signal.raise_signal.called
    pace.advance(6)
    # The score after that update asks for no second stop.
    pace.advance(6, valid_error=0.5)
    assert signal.raise_signal.call_count == 1


def test_a_folder_holds_the_quickstart_of_the_same_files(made):
    quick, _, _ = made
    changed = quick.folder.with_name("changed") / quick.files[1].name
    changed.parent.mkdir()
    changed.write_text(quick.files[1].read_text())
    folder = quick.folder.with_name("others")
    folder.mkdir()
    same = {"files": [[str(changed), sha256_of(changed)]], "minutes": quick.minutes}
    (folder / "quickstart.json").write_text(json.dumps(same))
    changed.write_text(changed.read_text().upper())
    for other in (
        replace(quick, files=quick.files[:1]),
        replace(quick, folder=quick.folder / "corpus"),
        replace(quick, folder=folder, files=[changed]),
    ):
        with pytest.raises(InputError, match="a folder must be new, empty, or of a quickstart of"):
            other.run()


def test_many_documents_are_split_by_their_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "seconds_per_update", lambda *_: 1.0)
    turns = [["one", "Who lives here?"], ["two", "Nobody, the house is empty."]]
    path = tmp_path / "chat.jsonl"
    path.write_text(
        "".join(json.dumps({"turns": [*turns, ["one", f"{n}"]]}) + "\n" for n in range(300))
    )
    said = []
    result, samples = Quickstart(
        files=[path], folder=tmp_path / "out", minutes=0.01, say=said.append
    ).run()
    assert result.status == "finished"
    assert said[0].startswith(f"$ staircase prepare text {path} --valid 0.05 --test 0.05")
    assert len(samples) == NUM_SAMPLES


class Saying(Display):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_many_documents_with_most_of_the_text_in_one_are_split_by_size(tmp_path):
    lines = [json.dumps({"text": f"This is document {number}.\n"}) for number in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{broken", '{"no": "text"}']))
    (tmp_path / "b.txt").write_text("".join(LINES) * 3)
    (tmp_path / "c.bin").write_bytes(bytes(9))
    quick = Quickstart(files=[tmp_path], folder=tmp_path / ".out", preparing=Saying())
    sources = [TextSource(tmp_path)]
    sizes = [len(data) for data in steps._whole_documents(sources, Counter())]
    corpus = quick._prepared(sources, sizes)
    total = sum(split.num_bytes for split in corpus.manifest.splits.values())
    for name in ("valid", "test"):
        assert abs(corpus.manifest.splits[name].num_bytes / total - 0.05) < 0.01
    assert any("skipped: 1 file of other kinds" in line for line in quick.preparing.said)


def test_what_cannot_be_used_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(Quickstart, "_prepared", Mock(side_effect=KeyboardInterrupt))
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a comment"}\n' * 30)
    quick = Quickstart(files=[path], folder=tmp_path / "out", preparing=Saying())
    with pytest.raises(InputError, match=r"got 0 bytes, broken lines in a\.jsonl: 30; use more"):
        quick.run()
    path.write_text('{"body": "a comment"}\n{"text": "A text that is long enough."}')
    with pytest.raises(KeyboardInterrupt):
        quick.run()
    assert quick.preparing.said == ["skipped: broken lines in a.jsonl: 1"]


@pytest.mark.parametrize("unit", ["word ", "\u6771\u4eac", "A line of words.\n"])
def test_any_text_is_split_between_words_or_characters(tmp_path, unit):
    text = unit * 1000
    (tmp_path / "a.txt").write_text(text)
    size = len(text.encode())
    ends = (size - size // 10, size - size // 20)
    write_splits([TextSource(tmp_path / "a.txt")], tmp_path / "text", ends=ends)
    parts = [(tmp_path / "text" / split / "0000.txt").read_text() for split in SPLITS]
    assert "".join(parts) == text
    assert all(abs(len(part.encode()) / size - 0.05) < 0.026 for part in parts[1:])
    assert all(part.endswith(unit[-1]) or " " not in unit for part in parts)


def test_text_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(InputError, match=r"a text must have something to train on, .*got 4 bytes"):
        Quickstart(files=[tmp_path / "a.txt"], folder=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_the_shortest_text_that_is_not_refused_has_all_splits(tmp_path):
    (tmp_path / "a.txt").write_text("20 bytes with a word")
    write_splits([TextSource(tmp_path / "a.txt")], tmp_path / "text", ends=(18, 19))
    parts = [(tmp_path / "text" / split / "0000.txt").read_text() for split in SPLITS]
    assert parts == ["20 bytes with a wo", "r", "d"]


@pytest.mark.parametrize(("size", "symbols"), [(10**4, 300), (10**6, 2000), (10**8, 8000)])
def test_a_longer_text_gets_more_symbols(size, symbols):
    assert vocabulary(size) == symbols


class Clock:
    """A machine whose updates take the seconds that a function of the time gives."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(steps.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(steps.signal, "raise_signal", lambda _: None)

    def train(self, pace, update, num_updates):
        """Updates up to the last, or the one at which the pace asks for another number."""
        pace.begin("quickstart", update, num_updates)
        while update < num_updates and pace.wanted is None:
            update, self.now = update + 1, self.now + self.seconds(self.now)
            pace.advance(update)
        return update


@pytest.mark.parametrize("planned", [200, 1000, 6000])
@pytest.mark.parametrize(
    ("seconds", "longest"),
    [
        (lambda now: 0.48, 505),
        (lambda now: 0.1, 505),
        # Slower by three from some time on, before the decay.
        (lambda now: 0.2 if now < 200 else 0.6, 505),
        # Faster again: the decay had to begin.
        (lambda now: 0.2 if now < 200 or now > 300 else 0.6, 505),
        # Half the speed in the decay, which is a quarter of the updates.
        (lambda now: 0.2 if now < 380 else 0.4, 610),
    ],
)
def test_a_run_keeps_its_time_when_the_speed_changes(monkeypatch, planned, seconds, longest):
    config = OptimizerConfig(**steps.DECAY, warm_up=planned // 20)
    update, num_updates = 0, planned
    clock = Clock(monkeypatch, seconds)
    pace = Pace(Display(), config, most=100_000, end=480)
    while (update := clock.train(pace, update, num_updates)) < num_updates:
        # What was done does not depend on the number of updates.
        done = range(0, update, 7)
        assert [learning_rate(config, at, pace.wanted) for at in done] == [
            learning_rate(config, at, num_updates) for at in done
        ]
        num_updates = pace.wanted
    assert clock.now < longest
    if longest < 600:
        assert clock.now > 300


class Text:
    """A corpus of this many tokens."""

    folder, vocab_size = "corpus", 300

    def __init__(self, num_tokens):
        self.num_tokens = num_tokens

    def split(self, name):
        return Text(self.num_tokens if name == "train" else self.num_tokens // 20)


@pytest.mark.parametrize(
    ("num_tokens", "on_cpu", "on_gpu"),
    [(9_000, [64], [64]), (400_000, [192, 128, 128, 64], [192, 128, 128, 64]),
     (10_000_000, [192, 128, 128, 64], [512, 256, 192, 128, 128, 64])],
)  # fmt: skip
def test_a_size_is_chosen_by_the_text(num_tokens, on_cpu, on_gpu):
    for device, widths in ((False, on_cpu), (True, on_gpu)):
        recipes = list(steps.sized_recipes(Text(num_tokens), on_gpu=device))
        assert [recipe.model.core.width for recipe in recipes] == widths
        if device:
            assert all(recipe.model.core.head_size in HEAD_SIZES for recipe in recipes)
            assert {recipe.training.precision for recipe in recipes} == {"bfloat16"}
            assert {recipe.training.engine for recipe in recipes} == {"fast"}
            assert all(recipe.training.num_lanes * 256 * 4 <= num_tokens for recipe in recipes)


@pytest.mark.parametrize(("slowness", "width"), [(1e-7, 512), (2e-6, 256), (1e-3, 64)])
def test_a_size_and_its_updates_are_chosen_by_the_speed_of_the_device(
    monkeypatch, tmp_path, slowness, width
):
    monkeypatch.setattr(steps, "choose_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(
        steps, "seconds_per_update", lambda recipe, *_: slowness * recipe.model.core.width**2
    )
    text = Text(10_000_000)
    recipe = Quickstart(files=[], folder=tmp_path)._chosen(text, 480.0)
    assert recipe.model.core.width == width
    fitting = 0.9 * 480 / (slowness * width**2)
    most = steps.MOST_EPOCHS * text.num_tokens // (64 * 256)
    assert recipe.training.num_updates == int(min(most, fitting))


def test_the_speed_is_that_of_updates_after_the_first(made):
    quick, _, _ = made
    recipe = steps.find_recipe(str(quick.folder / "recipe.json"))
    assert 0 < steps.seconds_per_update(recipe, vocab_size=300) < 10
