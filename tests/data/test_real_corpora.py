"""The pipelines on real text, with counts that are made another way."""

import hashlib
import itertools
import json
import lzma
import tarfile

import numpy as np
import pytest
from small_corpora import ALL_TRAIN, REAL, needs_real_data, texts_of
from tokenizers import Tokenizer, models, pre_tokenizers

from staircase_attention.data import (
    BytePairTraining,
    HeldOut,
    ReadingOptions,
    TextSource,
    named_tokeniser,
    prepare_enwik8,
    prepare_text,
)

pytestmark = [needs_real_data, pytest.mark.slow]


def test_enwik8_has_its_known_splits(tmp_path):
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


def test_dialogues_come_back_from_a_learnt_tokeniser_of_8008_symbols(tmp_path):
    with lzma.open(REAL / "topical_chat.jsonl.xz", "rt") as file:
        dialogues = [json.loads(line)["turns"] for line in file]
    expected = sorted("\n".join(map(": ".join, turns)).encode() for turns in dialogues)
    source = TextSource(REAL / "topical_chat.jsonl.xz", options=ReadingOptions(text_field="turns"))
    corpus = prepare_text(
        source,
        tmp_path / "corpus",
        tokeniser=BytePairTraining(vocab_size=8_008, sample_bytes=1_000_000),
        held_out=HeldOut(valid=0.1, test=0.1),
    )
    assert corpus.vocab_size == 8_008
    found = {name: texts_of(corpus, name) for name in corpus.splits}
    assert sorted(itertools.chain(*found.values())) == expected
    corpus.verify()


def test_gpt2_on_a_whole_novel_gives_the_tokens_of_the_library(tmp_path):
    with tarfile.open(REAL / "novels.tar.xz") as archive:
        member = next(one for one in archive if one.isfile())
        text = archive.extractfile(member).read()
    (tmp_path / "novel.txt").write_bytes(text)
    corpus = prepare_text(
        tmp_path / "novel.txt",
        tmp_path / "corpus",
        tokeniser=named_tokeniser(str(REAL)),
        held_out=ALL_TRAIN,
    )
    library = Tokenizer(models.BPE.from_file(str(REAL / "encoder.json"), str(REAL / "vocab.bpe")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train = corpus.split("train")
    tokens = [*library.encode(text.decode()).ids, 50_256]
    assert np.array_equal(train.tokens(0, train.num_tokens), tokens)
    assert texts_of(corpus, "train") == [text]
