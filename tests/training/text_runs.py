"""A small corpus of real words, and recipes that train on it in seconds."""

from pathlib import Path

from small_runs import small_recipe

from staircase_attention.data import BytePairTraining, ByteTokeniser, HeldOut, prepare_text
from staircase_attention.training import CorpusChoice, Recipe

SENTENCES = ("the cat sat on the mat. ", "a dog ran to the door. ", "it rained all day long. ")


def make_corpus(folder: Path, *, tokeniser=None):
    """Documents of different lengths, in all three splits."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    for number in range(60):
        words = "".join(SENTENCES[(number + turn) % 3] for turn in range(2 + number % 7))
        (raw / f"{number:03d}.txt").write_text(f"{number}: {words}\n")
    return prepare_text(
        [raw],
        folder / "corpus",
        tokeniser=tokeniser or ByteTokeniser(),
        held_out=HeldOut(valid=0.15, test=0.15),
    )


def learn_words() -> BytePairTraining:
    return BytePairTraining(vocab_size=300)


def text_recipe(corpus, *, form="stream", **changes) -> Recipe:
    plain = small_recipe().to_plain()
    plain["task"] = {
        "kind": CorpusChoice.kind,
        "folder": str(corpus.folder),
        "form": form,
    }
    plain["training"] |= {"segment_length": 32, "evaluation_lanes": 8}
    recipe = Recipe.from_plain(plain)
    return recipe.override({name.replace("__", "."): value for name, value in changes.items()})
