"""Tokenisers lose nothing, keep the end symbol to themselves, and can be saved."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import REAL, needs_real_data, small_bpe, text_of
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    InputError,
    load_tokeniser,
    named_tokeniser,
    pieces,
    train_bpe,
)
from staircase_attention.data.tokenisers import (
    byte_pair,
    evenly_sampled,
    from_tokenizer_json,
    training,
)

BPE = small_bpe()
BYTES = ByteTokeniser()

# Words, spaces of all kinds, signs, and other scripts, in any order.
PROSE = st.lists(
    st.sampled_from(
        [
            "the",
            "cat",
            "'s",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\u3000",
            "\xa0",
            "12",
            ",",
            "é",
            "一",
            "😀",
        ]
    )
).map("".join)


def once_encoded(tokeniser, text):
    (tokens,) = tokeniser.encode_batch([text])
    return tokens


@given(text=st.one_of(st.text(), PROSE))
@pytest.mark.parametrize("tokeniser", [BPE, BYTES], ids=["bpe", "bytes"])
def test_any_text_comes_back(tokeniser, text):
    assert tokeniser.decode(once_encoded(tokeniser, text.encode())) == text.encode()


@given(
    data=st.one_of(
        st.binary(), st.tuples(st.text(), st.binary()).map(lambda p: p[0].encode() + p[1])
    )
)
@pytest.mark.parametrize("tokeniser", [BPE, BYTES], ids=["bpe", "bytes"])
def test_any_bytes_come_back_though_they_are_no_text(tokeniser, data):
    tokens = once_encoded(tokeniser, data)
    assert tokeniser.decode(tokens) == data
    assert tokeniser.end_symbol not in tokens
    assert np.all(tokens < tokeniser.vocab_size)


@given(texts=st.lists(st.one_of(st.binary(max_size=20), PROSE.map(str.encode)), max_size=6))
def test_a_batch_is_its_texts_one_by_one(texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_pair, "MOST_PARTS", 3)
        together = BPE.encode_batch(texts)
    assert len(together) == len(texts)
    for text, tokens in zip(texts, together, strict=True):
        assert tokens.tolist() == once_encoded(BPE, text).tolist()


@given(text=PROSE, shortest=st.integers(1, 20))
def test_a_text_in_pieces_has_the_tokens_of_the_whole(text, shortest):
    data = text.encode()
    cut = list(pieces.pieces(data, shortest))
    assert b"".join(cut) == data
    together = np.concatenate(BPE.encode_batch(cut))
    assert together.tolist() == once_encoded(BPE, data).tolist()


@given(data=st.binary(min_size=1, max_size=300), shortest=st.integers(1, 40))
def test_pieces_are_the_data_even_where_there_is_no_good_place_to_cut(data, shortest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LONGEST_PIECE", 50)
        cut = list(pieces.pieces(data, shortest))
    assert b"".join(cut) == data
    assert all(0 < len(piece) <= 50 for piece in cut)


def test_characters_are_not_cut_in_two():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LONGEST_PIECE", 50)
        cut = list(pieces.pieces("一😀é".encode() * 40, 20))
    assert all(piece.decode() for piece in cut)


def test_the_name_of_the_end_symbol_in_a_text_is_no_end_symbol():
    text = b"a<|endoftext|>b"
    for tokeniser in (BPE, BYTES):
        tokens = once_encoded(tokeniser, text)
        assert tokeniser.end_symbol not in tokens
        assert tokeniser.decode(np.append(tokens, tokeniser.end_symbol)) == text


@pytest.mark.parametrize("tokeniser", [BPE, BYTES, ByteTokeniser(has_end_symbol=False)])
def test_a_saved_tokeniser_is_the_same_when_loaded(tokeniser, tmp_path):
    tokeniser.save(tmp_path)
    loaded = load_tokeniser(tmp_path)
    for name in ("name", "vocab_size", "end_symbol", "is_lossless", "shortest_piece"):
        assert getattr(loaded, name) == getattr(tokeniser, name)
    text = text_of(99).encode() + b"<|endoftext|>\xff"
    assert once_encoded(loaded, text).tolist() == once_encoded(tokeniser, text).tolist()
    assert loaded.decode(once_encoded(loaded, text)) == text


def test_bytes_without_an_end_symbol_are_256_symbols():
    plain = ByteTokeniser(has_end_symbol=False)
    assert (plain.vocab_size, plain.end_symbol) == (256, None)
    assert (BYTES.vocab_size, BYTES.end_symbol) == (257, 256)


def test_a_learnt_tokeniser_has_bytes_merges_and_the_end_symbol_last():
    assert (BPE.vocab_size, BPE.end_symbol) == (350, 349)
    assert BPE.is_lossless
    assert len(once_encoded(BPE, b" the cat")) < 4


def test_a_text_too_small_for_the_vocabulary_gives_a_smaller_one():
    tokeniser = train_bpe([b"aa aa aa"], vocab_size=8_008)
    assert 257 <= tokeniser.vocab_size < 270
    assert tokeniser.end_symbol == tokeniser.vocab_size - 1


def test_the_same_texts_give_the_same_tokeniser_in_another_process(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from small_corpora import small_bpe; small_bpe().save(Path(sys.argv[2]))"
    )
    here = str(__file__).rsplit("/", 1)[0]
    subprocess.run([sys.executable, "-c", program, here, str(tmp_path)], check=True)
    other = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "here").mkdir()
    BPE.save(tmp_path / "here")
    assert (tmp_path / "here" / "tokenizer.json").read_bytes() == other


def test_a_sample_is_spread_over_the_whole_and_not_much_larger_than_asked():
    texts = [(bytes([number]) * 10, (number + 1) / 100) for number in range(100)]
    taken = [text[0] for text in evenly_sampled(texts, 200)]
    assert len(taken) == 20
    assert max(np.diff(taken)) <= 6
    assert taken[-1] >= 94
    assert len(list(evenly_sampled(texts, 10**6))) == 100


def test_learning_ends_when_there_are_too_many_different_words(monkeypatch):
    monkeypatch.setattr(training, "MOST_WORD_BYTES", 1_000)
    few = [b"the same few words again " * 10] * 100
    assert list(training.with_bounded_words(few)) == few
    many = b" ".join(b"word%d" % number for number in range(100_000))
    taken = b"".join(training.with_bounded_words([*few, many, b"never"]))
    assert taken == b"".join(few)


def test_gpt2_files_make_a_tokeniser(tmp_path):
    vocabulary = {**json.loads(BPE._tokenizer.to_str())["model"]["vocab"], "<|endoftext|>": 349}
    merges = json.loads(BPE._tokenizer.to_str())["model"]["merges"]
    (tmp_path / "encoder.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *map(" ".join, merges)]
    (tmp_path / "vocab.bpe").write_text("\n".join(lines) + "\n")
    tokeniser = named_tokeniser(str(tmp_path))
    assert (tokeniser.vocab_size, tokeniser.end_symbol, tokeniser.is_lossless) == (350, 349, True)
    text = text_of(3).encode()
    assert once_encoded(tokeniser, text).tolist() == once_encoded(BPE, text).tolist()


@needs_real_data
def test_gpt2_encodes_as_is_known():
    tokeniser = named_tokeniser(str(REAL))
    assert (tokeniser.vocab_size, tokeniser.end_symbol) == (50_257, 50_256)
    assert once_encoded(tokeniser, b"Hello world").tolist() == [15496, 995]
    assert tokeniser.is_lossless


def word_level(**parts):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def byte_level(**parts):
    tokenizer = Tokenizer.from_str(BPE._tokenizer.to_str())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def saved(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(
    ("tokenizer", "is_lossless"),
    [
        (byte_level(), True),
        (byte_level(normalizer=normalizers.NFC()), False),
        (byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), False),
        (byte_level(pre_tokenizer=pre_tokenizers.Whitespace()), False),
        (
            byte_level(
                pre_tokenizer=pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Digits(individual_digits=True),
                        pre_tokenizers.ByteLevel(add_prefix_space=False),
                    ]
                )
            ),
            True,
        ),
        (
            byte_level(
                pre_tokenizer=pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Split(" ", "removed"),
                        pre_tokenizers.ByteLevel(add_prefix_space=False),
                    ]
                )
            ),
            False,
        ),
        (word_level(pre_tokenizer=pre_tokenizers.Whitespace()), False),
        (
            word_level(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace()),
            False,
        ),
    ],
)
def test_any_tokenizer_json_loads_and_what_is_said_of_it_is_true(tokenizer, is_lossless, tmp_path):
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    assert tokeniser.is_lossless == is_lossless
    text = "  the cat e\u0301 the ".encode()
    tokens = once_encoded(tokeniser, text)
    assert np.all(tokens < tokeniser.vocab_size)
    if is_lossless:
        assert tokeniser.decode(tokens) == text
    else:
        assert isinstance(tokeniser.decode(tokens), bytes)


def test_nothing_is_added_padded_or_truncated(tmp_path):
    tokenizer = byte_level(
        post_processor=processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 349)]
        )
    )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    text = text_of(8).encode()
    assert once_encoded(tokeniser, text).tolist() == once_encoded(BPE, text).tolist()


def test_tokens_that_were_added_come_back_as_they_are(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens(["né", "a b"])
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    text = "néa ba b<|endoftext|>".encode()
    assert {350, 351} <= set(once_encoded(tokeniser, text).tolist())
    assert tokeniser.decode(once_encoded(tokeniser, text)) == text
    assert tokeniser.end_symbol == 349


def test_a_tokenizer_without_an_end_gets_one_after_all_tokens(tmp_path):
    tokeniser = from_tokenizer_json(saved(word_level(), tmp_path))
    assert (tokeniser.end_symbol, tokeniser.vocab_size) == (3, 4)
    assert tokeniser.name == "words-4"


def test_the_end_can_be_named_if_it_is_a_special_token(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<stop>"])
    path = saved(tokenizer, tmp_path)
    assert from_tokenizer_json(path, end_name="<stop>").end_symbol == 350
    with pytest.raises(InputError, match=r"end_name must be a special token of .*, got 'the'; use"):
        from_tokenizer_json(path, end_name="the")


def test_long_pieces_are_kept_where_a_cut_would_show(tmp_path):
    whole = word_level(pre_tokenizer=pre_tokenizers.Split(",", "isolated"))
    assert from_tokenizer_json(saved(whole, tmp_path)).shortest_piece == pieces.LONGEST_PIECE
    assert BPE.shortest_piece < pieces.LONGEST_PIECE


def test_words_for_tokenisers():
    assert named_tokeniser("bytes") == BYTES
    assert named_tokeniser("bpe") == BytePairTraining(vocab_size=8_008)
    assert named_tokeniser("bpe-300").vocab_size == 300


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (
            lambda path: named_tokeniser(str(path)),
            r"a tokeniser must be tokenizer\.json, or enc.* got",
        ),
        (
            lambda path: named_tokeniser("bpe-100"),
            "vocab_size must be a whole number of at least 257",
        ),
        (lambda path: named_tokeniser(str(path / "bad.json")), r"a tokenizer\.json must be as the"),
        (lambda path: load_tokeniser(path), r"a saved tokeniser must have a settings\.json"),
        (
            lambda path: named_tokeniser(str(path / "gpt2")),
            "a vocabulary and its merges must be as",
        ),
        (
            lambda path: train_bpe([], vocab_size=200),
            "vocab_size must be a whole number of at least",
        ),
    ],
)
def test_what_is_no_tokeniser_is_refused_in_one_line(action, line, tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "vocab.json").write_text("{}")
    (tmp_path / "gpt2" / "merges.txt").write_text("a b\n")
    with pytest.raises(InputError, match=line) as refused:
        action(tmp_path)
    assert "\n" not in str(refused.value)


def test_endless_words_are_not_learnt_from():
    """They would take a time that grows with the square of their length."""
    texts = [text_of(number).encode() for number in range(30)]
    endless = [b"a" * 1_000_000, b" " * 1_000_000, b"\xc3\xa9" * 500_000]
    began = time.perf_counter()
    learnt = train_bpe([*texts, *endless], vocab_size=300)
    assert time.perf_counter() - began < 10
    plain = train_bpe(texts, vocab_size=300)
    text = b"words, and " + b"a" * 3_000
    assert learnt.encode_batch([text])[0].tolist() == plain.encode_batch([text])[0].tolist()
    assert learnt.decode(learnt.encode_batch([text])[0]) == text
