"""The pipelines on real text, with counts that are made another way."""

import hashlib
import itertools
import json
import lzma
import tarfile

import numpy as np
import pytest
from small_corpora import REAL, needs_real_data, texts_of
from tokenizers import Tokenizer, models, pre_tokenizers

from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    HeldOut,
    ReadingOptions,
    TextSource,
    named_tokeniser,
    prepare_enwik8,
    prepare_text,
)

pytestmark = [needs_real_data, pytest.mark.slow]

ALL_TRAIN = HeldOut(valid=0, test=0)


def novels(number):
    """Some of the novels, by the standard library alone."""
    with tarfile.open(REAL / "novels.tar.xz") as archive:
        members = itertools.islice((one for one in archive if one.isfile()), number)
        return [archive.extractfile(member).read() for member in members]


def dialogues():
    """Topical-Chat, each dialogue as lines."""
    with lzma.open(REAL / "topical_chat.jsonl.xz", "rt") as file:
        records = [json.loads(line) for line in file]
    return ["\n".join(": ".join(turn) for turn in record["turns"]) for record in records]


def test_enwik8_is_split_as_is_known(tmp_path):
    corpus = prepare_enwik8(REAL / "enwik8.xz", tmp_path / "corpus")
    digests = {name: hashlib.sha256() for name in ("train", "valid", "test")}
    with lzma.open(REAL / "enwik8.xz") as file:
        for number in range(100):
            name = "train" if number < 90 else "valid" if number < 95 else "test"
            digests[name].update(file.read(1_000_000))
        assert not file.read(1)
    for name, digest in digests.items():
        (shard,) = corpus.manifest.splits[name].shards
        assert shard.sha256 == digest.hexdigest()
        assert shard.num_items == (90_000_000 if name == "train" else 5_000_000)
    assert corpus.vocab_size == 256
    corpus.verify()


def test_dialogues_become_documents_and_come_back(tmp_path):
    expected = sorted(text.encode() for text in dialogues())
    source = TextSource(REAL / "topical_chat.jsonl.xz", options=ReadingOptions(text_field="turns"))
    corpus = prepare_text(
        [source],
        tmp_path / "corpus",
        tokeniser=ByteTokeniser(),
        held_out=HeldOut(valid=0.1, test=0.1),
    )
    found = {name: texts_of(corpus, name) for name in corpus.splits}
    assert sorted(itertools.chain(*found.values())) == expected
    num_tokens = sum(corpus.split(name).num_tokens for name in corpus.splits)
    assert num_tokens == sum(map(len, expected)) + len(expected)
    corpus.verify()


def test_gpt2_on_whole_novels_is_what_the_library_gives(tmp_path):
    texts = novels(1)
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text)
    corpus = prepare_text(
        [tmp_path / f"{number}.txt" for number in range(len(texts))],
        tmp_path / "corpus",
        tokeniser=named_tokeniser(str(REAL)),
        held_out=ALL_TRAIN,
    )
    library = Tokenizer(models.BPE.from_file(str(REAL / "encoder.json"), str(REAL / "vocab.bpe")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = [[*library.encode(text.decode()).ids, 50_256] for text in texts]
    train = corpus.split("train")
    assert np.array_equal(train.tokens(0, train.num_tokens), np.concatenate(tokens))
    assert texts_of(corpus, "train") == texts


def test_a_tokeniser_of_8008_symbols_is_learnt_from_a_novel(tmp_path):
    (text,) = novels(1)
    (tmp_path / "novel.txt").write_bytes(text)
    corpus = prepare_text(
        [tmp_path / "novel.txt"],
        tmp_path / "corpus",
        tokeniser=BytePairTraining(vocab_size=8_008),
        held_out=ALL_TRAIN,
    )
    assert corpus.vocab_size == 8_008
    assert texts_of(corpus, "train") == [text]
