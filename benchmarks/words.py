"""Prepares the corpora of the recipes `words` and `words-episodic` from four public data sets.

    python benchmarks/words.py DATA --output corpora

DATA holds enwik8.xz, novels.tar.xz, topical_chat.jsonl.xz and RC_2005-12_2006-02.jsonl.xz. Both
corpora have one byte-level BPE vocabulary of 8,000 symbols, learnt from the training documents of
`words`. There is no seed: splits and weights go by hashes of the documents.

- `words`: articles of Enwik8 without their markup, novels, Topical-Chat (twice), Reddit paths.
- `words-episodic`: one document per conversation of Topical-Chat and per Reddit path.

Articles of train, valid and test lie in the usual 90, 5 and 5 million bytes; an article that
crosses an end is cut there, and the rest of it is not used. Of the other sources, 5% of the
documents (Reddit: of the threads) are for valid and 5% for test.
"""

import argparse
from pathlib import Path

from wikipedia import Articles

from staircase_attention.data import (
    BytePairTraining,
    Corpus,
    HeldOut,
    Lines,
    Part,
    TextSource,
    prepare,
)
from staircase_attention.data.compression import open_decompressed
from staircase_attention.data.preparation import ENWIK8_BYTES
from staircase_attention.data.reddit import RedditOptions, RedditSource

HELD_OUT = HeldOut(valid=0.05, test=0.05)
VOCABULARY = BytePairTraining(vocab_size=8_000)


def main() -> None:
    """Prepare both corpora; those that exist already are left as they are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("corpora"))
    chosen = parser.parse_args()
    data, output = chosen.data, chosen.output
    conversations = TextSource(data / "topical_chat.jsonl.xz")
    reddit = RedditSource(
        [data / "RC_2005-12_2006-02.jsonl.xz"],
        output / "words.threads",
        RedditOptions(held_out=HELD_OUT),
        progress=Lines(),
    )
    mixture = [
        *(Part(source=one) for one in articles(data, output)),
        Part(source=TextSource(data / "novels.tar.xz")),
        Part(source=conversations, weight=2),
        Part(source=reddit),
    ]
    words = prepare(
        mixture,
        output / "words",
        kind="text",
        tokeniser=VOCABULARY,
        held_out=HELD_OUT,
        progress=Lines(),
    )
    episodic = prepare(
        [Part(source=conversations), Part(source=reddit)],
        output / "words-episodic",
        kind="text",
        tokeniser=words.tokeniser,
        held_out=HELD_OUT,
        progress=Lines(),
    )
    for corpus in (words, episodic):
        print_counts(corpus)


def articles(data: Path, output: Path) -> list[Articles]:
    """Enwik8 as three dumps, one per split."""
    folder = output / "words.articles"
    folder.mkdir(parents=True, exist_ok=True)
    with open_decompressed(data / "enwik8.xz") as file:
        for split, size in ENWIK8_BYTES.items():
            content = file.read(size)
            # The order of documents goes by the sizes of files: these are the published ones.
            start = b"" if content.startswith(b"<mediawiki") else b"<mediawiki>\n"
            (folder / f"{split}.xml").write_bytes(start + content)
    return [Articles(folder / f"{split}.xml", split) for split in ENWIK8_BYTES]


def print_counts(corpus: Corpus) -> None:
    """Documents, bytes and tokens of every source and split, and checksums of the tokens."""
    print(f"{corpus.folder}: {corpus.tokeniser.vocab_size:,} symbols")
    for source in corpus.manifest.preparation.sources:
        for split, counts in source.counts.items():
            if counts.num_documents:
                print(f"  {source.name}, weight {source.weight:g}, {split}: {counts}")
    for name, split in corpus.manifest.splits.items():
        print(f"  {name}: {split.num_tokens:,} tokens, {[s.sha256[:12] for s in split.shards]}")


if __name__ == "__main__":
    main()
