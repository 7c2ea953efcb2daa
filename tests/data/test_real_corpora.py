"""The pipelines on real text, with counts that are made another way."""

import tarfile

import numpy as np
import pytest
from small_corpora import ALL_TRAIN, REAL, counted_again, needs_real_data, texts_of
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
    assert corpus.vocab_size == 256
    assert "| train: tokens | 90,000,000 |" in counted_again("enwik8", corpus, REAL / "enwik8.xz")


def test_dialogues_come_back_from_a_learnt_tokeniser_of_8008_symbols(tmp_path):
    path = REAL / "topical_chat.jsonl.xz"
    corpus = prepare_text(
        TextSource(path, options=ReadingOptions(text_field="turns")),
        tmp_path / "corpus",
        tokeniser=BytePairTraining(vocab_size=8_008, sample_bytes=1_000_000),
        held_out=HeldOut(valid=0.1, test=0.1),
    )
    assert corpus.vocab_size == 8_008
    corpus.verify()
    counted_again("text", corpus, path)


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
