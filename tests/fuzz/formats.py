"""Every format that is read from outside: a small honest artefact, and what a user does with it.

What an operation gives is compared: the same bytes must give the same, and a file that was changed
must be refused, or give the same.
"""

import contextlib
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_corpora import RecordedProgress, compressed, storing, text_of
from small_runs import Interrupting, KilledError, final_bytes, lstm_recipe, small_recipe
from text_runs import learn_words, make_corpus, text_recipe

from staircase_attention import CachedStaircase, CoreConfig, SequenceModel, load_state, save_state
from staircase_attention.data import (
    ByteTokeniser,
    HeldOut,
    named_tokeniser,
    preparation,
    prepare_text,
)
from staircase_attention.experiments.catalog import find_recipe
from staircase_attention.experiments.results import read_run, score_lengths
from staircase_attention.files import NO_SUM, SEAL, sealed
from staircase_attention.generation import load_stream, save_stream, stream
from staircase_attention.training import load_language_model, load_run, pack, resume, train
from staircase_attention.training.trainer import score_split

TOKENS = torch.arange(12).reshape(1, 12) % 5
TEXT = b"the cat sat on the mat, and a dog ran. \xff"


def digest(*parts: Any) -> str:
    """A checksum of tensors, bytes and plain data."""
    sums = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().numpy().tobytes()
        sums.update(part if isinstance(part, bytes) else repr(part).encode())
    return sums.hexdigest()


def short(recipe, seed, **changes):
    """A recipe of a few updates."""
    few = {"num_updates": 5, "evaluate_every": 2, "checkpoint_every": 2, "log_every": 1}
    assignments = {f"training.{name}": value for name, value in few.items()} | {"seed": seed}
    return recipe.override(assignments | changes)


FEW_EPISODES = {"task.options.num_test": 4, "task.options.num_valid": 4}


def scores(loaded) -> str:
    """The score of a loaded run on its test data."""
    score = score_split(
        loaded.model, loaded.data, "test", recipe=loaded.recipe, device=torch.device("cpu")
    )
    facts = loaded.data.facts("test", score, None)
    return digest(score.to_plain(), facts, loaded.update, loaded.recipe.to_plain())


@dataclass
class Format:
    """A format: how an artefact is made, used, and sealed again after a change."""

    name: ClassVar[str]
    is_sealed: ClassVar[bool] = True
    """Whether checksums cover it; if not, a change may give another valid file."""
    relevant: ClassVar[str] = ""
    """Names of files that it depends on, as a pattern; the others are left alone."""

    def make(self, folder: Path, seed: int) -> None:
        """An honest artefact in a new folder."""
        raise NotImplementedError

    def use(self, folder: Path) -> str:
        """What a user gets from it."""
        raise NotImplementedError

    def seal(self, folder: Path, changed: Path) -> None:
        """Make the checksums fit again, as somebody who means harm would."""
        seal_folder(folder, changed)

    def files(self, folder: Path) -> list[Path]:
        """The files that are spoilt."""
        return sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and re.search(self.relevant, str(path.relative_to(folder)))
        )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def seal_folder(folder: Path, changed: Path) -> None:
    """Update the manifests of checkpoints and of a corpus, and the checksums of a run."""
    if not changed.is_file():
        return
    for manifest in sorted(folder.rglob("manifest.json")):
        if changed != manifest and changed.is_relative_to(manifest.parent):
            text, name = manifest.read_text(), str(changed.relative_to(manifest.parent))
            plain = json.loads(text)
            if name in plain:
                manifest.write_text(json.dumps(plain | {name: sha256(changed)}))
            elif "splits" in plain:
                arrays = [
                    one
                    for split in plain["splits"].values()
                    for one in (*split["shards"], split["starts"])
                ]
                for one in arrays:
                    if one["file"] == name:
                        one["sha256"] = sha256(changed)
                files = plain["tokeniser"]["files"]
                files |= {one: sha256(changed) for one in files if one == changed.name}
                manifest.write_text(json.dumps(plain))
    for sums in sorted(folder.rglob("checksums.json")):
        if changed != sums:
            plain = json.loads(sums.read_text())
            there = [name for name in plain if (sums.parent / name).is_file()]
            sums.write_text(json.dumps({name: [sha256(sums.parent / name)] for name in there}))


class Run(Format):
    """A finished run, scored."""

    name = "run: eval"
    relevant = "config|checksums|manifest|trainer|weights"

    def make(self, folder, seed):
        # One for all formats that read a run.
        made = folder.parent / f"made-{seed}"
        if not made.exists():
            train(short(small_recipe(), seed, **FEW_EPISODES), made)
            score_lengths(made, [12])
        shutil.copytree(made, folder / "run")

    def use(self, folder):
        return scores(load_run(folder / "run"))


class Report(Run):
    """What reports show of a run."""

    name = "run: report"
    relevant = "metrics|timing|result|lengths|environment|checksums"

    def use(self, folder):
        record = read_run(folder / "run", 0)
        return digest(record.status, record.result, record.curve, record.train, record.lengths)


class Packing(Run):
    """A run that is packed."""

    name = "run: pack"
    relevant = "config|checksums|result|environment|manifest|trainer|weights"

    def use(self, folder):
        packed = pack(folder / "run", folder / "packed")
        kept = sorted(path for path in packed.rglob("*") if path.is_file())
        return digest(
            *(
                part
                for path in kept
                if path.name != "environment.json"
                for part in (path.name, path.read_bytes())
            )
        )


class Stopped(Format):
    """A run that was killed, and is resumed."""

    name = "run: resume"
    relevant = "config|checksums|environment|metrics|checkpoints"

    def make(self, folder, seed):
        recipe = short((small_recipe, lstm_recipe)[seed % 2](), seed, **FEW_EPISODES)
        try:
            train(recipe, folder / "run", progress=Interrupting(update=4))
        except KilledError:
            return
        raise AssertionError("it was to be killed")

    def use(self, folder):
        result = resume(folder / "run", device="cpu")
        return digest(*final_bytes(folder / "run"), result.valid, result.test, result.best_update)


class PackedText(Format):
    """A packed language model."""

    name = "packed run: sample"

    def make(self, folder, seed):
        corpus = make_corpus(folder / "text", tokeniser=learn_words())
        train(short(text_recipe(corpus), seed), folder / "trained")
        pack(folder / "trained", folder / "run")
        shutil.rmtree(folder / "trained")
        shutil.rmtree(folder / "text")

    def use(self, folder):
        language = load_language_model(folder / "run")
        tokens = language.encode(TEXT.decode(errors="replace"))
        made = [one.token for one in stream(language.model, [tokens], max_tokens=4)]
        return digest(tokens, made, language.decode(made), language.update)


class TextCorpus(Format):
    """A corpus that a packed model is scored on."""

    name = "corpus: eval --corpus"
    model: ClassVar[Path]

    def make(self, folder, seed):
        learnt = learn_words() if seed % 2 == 0 else ByteTokeniser()
        corpus = make_corpus(folder / "text", tokeniser=learnt)
        if seed == 0:
            trained = folder.parent / "corpus-model"
            train(short(text_recipe(corpus), seed), trained)
            TextCorpus.model = pack(trained, folder.parent / "corpus-packed")
            shutil.rmtree(trained)
        shutil.rmtree(folder / "text" / "raw")

    def use(self, folder):
        return scores(load_run(self.model, corpus=folder / "text" / "corpus"))


def small_model() -> SequenceModel:
    torch.manual_seed(0)
    core = CoreConfig(width=8, num_layers=2, num_heads=2)
    schedule = CachedStaircase(chunk_size=2, num_window_chunks=2, num_passes=2)
    return SequenceModel(vocab_size=5, core=core, schedule=schedule).eval()


class Sealed(Format):
    """A single safetensors file that carries its own checksum."""

    def seal(self, folder, changed):
        content = changed.read_bytes() if changed.is_file() else b""
        if SEAL in content:
            place = content.index(SEAL) + len(SEAL)
            changed.write_bytes(sealed(content[:place] + NO_SUM + content[place + 64 :]))


class SavedState(Sealed):
    """A state, from which a model continues."""

    name = "state"

    def make(self, folder, seed):
        with torch.no_grad():
            _, state = small_model()(TOKENS[:, : 9 + seed].repeat(3, 1))
            _, state = small_model()(TOKENS[:, :3].repeat(3, 1), state.reset([False, True, False]))
        save_state(state, folder / "state.safetensors")

    def use(self, folder):
        state = load_state(folder / "state.safetensors")
        with torch.no_grad():
            logits, after = small_model()(TOKENS[:, :3].repeat(3, 1), state)
        return digest(logits, after.lengths)


class SavedStream(Sealed):
    """A stream, which is continued."""

    name = "stream"

    def make(self, folder, seed):
        tokens = stream(small_model(), [[1, 2, 3], [4] * (5 + seed)], max_tokens=9)
        list(islice(tokens, 5))
        save_stream(tokens, folder / "stream.safetensors")

    def use(self, folder):
        loaded = load_stream(folder / "stream.safetensors", small_model())
        return digest([(one.row, one.token, one.finish) for one in islice(loaded, 20)])


class TokenizerFile(Format):
    """A tokenizer.json, or GPT-2's two files, of somebody else."""

    name = "tokeniser"
    is_sealed = False

    def make(self, folder, seed):
        make_corpus(folder, tokeniser=learn_words())
        saved = folder / "corpus" / "tokeniser" / "tokenizer.json"
        shutil.move(saved, folder / "tokenizer.json")
        shutil.rmtree(folder / "corpus")
        shutil.rmtree(folder / "raw")
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        (folder / "gpt2").mkdir()
        (folder / "gpt2" / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = [" ".join(pair) for pair in model["merges"]]
        (folder / "gpt2" / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))

    def use(self, folder):
        parts = []
        for path in (folder / "tokenizer.json", folder / "gpt2"):
            tokeniser = named_tokeniser(str(path))
            [tokens] = tokeniser.encode_batch([TEXT])
            parts += [tokens.tolist(), tokeniser.decode(np.asarray(tokens)), tokeniser.vocab_size]
        return digest(*parts)


class RecipeFile(Format):
    """A recipe in a JSON file."""

    name = "recipe"
    is_sealed = False

    def make(self, folder, seed):
        plain = (small_recipe() if seed % 2 == 0 else lstm_recipe()).to_plain()
        (folder / "recipe.json").write_text(json.dumps(plain))

    def use(self, folder):
        return digest(find_recipe(str(folder / "recipe.json")).to_plain())


class Sources(Format):
    """Raw text of somebody else, compressed or not, that is prepared."""

    name = "sources: prepare"
    is_sealed = False

    def make(self, folder, seed):
        (folder / "raw").mkdir()
        texts = [text_of(number + seed, 20) for number in range(6)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        (folder / "raw" / "a.txt").write_text(texts[0])
        (folder / "raw" / "b.jsonl").write_bytes(lines)
        for kind in ("gz", "zst", "bz2", "xz"):
            (folder / "raw" / f"c.jsonl.{kind}").write_bytes(compressed(lines, kind))

    def use(self, folder):
        split = HeldOut(valid=0, test=0)
        corpus = prepare_text(
            [folder / "raw"], folder / "corpus", tokeniser="bytes", held_out=split
        )
        return digest((corpus.folder / "train-00000.bin").read_bytes())


class Preparing(Format):
    """A preparation that was killed, and is run again."""

    name = "preparation: run again"
    relevant = "unfinished/(journal|preparation)"

    def make(self, folder, seed):
        (folder / "raw").mkdir()
        for number in range(6):
            (folder / "raw" / f"{number}.txt").write_text(text_of(number, 30))

        def stop(number):
            if number == 2:
                raise KilledError

        with contextlib.suppress(KilledError):
            self._prepare(folder, RecordedProgress(stop))
        assert (folder / "corpus.unfinished" / "journal.json").exists()

    def use(self, folder):
        return digest((folder / self._prepare(folder).folder / "train-00000.bin").read_bytes())

    def seal(self, folder, changed):
        """Nobody but its user has one."""

    def _prepare(self, folder, progress=None):
        split, texts = HeldOut(valid=0, test=0), learn_words()
        with contextlib.chdir(folder), storing(commit_seconds=0), small_batches():
            return prepare_text("raw", "corpus", tokeniser=texts, held_out=split, progress=progress)


@contextlib.contextmanager
def small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "BATCH_BYTES", 100)
        yield


FORMATS = [
    Run(), Report(), Packing(), Stopped(), PackedText(), TextCorpus(), SavedState(), SavedStream(),
    TokenizerFile(), RecipeFile(), Sources(), Preparing(),
]  # fmt: skip
