"""Tokenisers are lossless, keep the end symbol to themselves, and can be saved."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import small_bpe, text_of
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    InputError,
    documents,
    load_tokeniser,
    named_tokeniser,
    tokenisers,
    train_bpe,
)
from staircase_attention.data.tokenisers import bound_words, from_tokenizer_json, sample_evenly

BPE = small_bpe()
BYTES = ByteTokeniser()
PLAIN = json.loads(BPE._tokenizer.to_str())

# Words, spaces of all kinds, signs, and other scripts, in any order.
PIECES = ["the", "cat", "'s", " ", "  ", "\n", "\r\n", "\t", "\u3000", "\xa0", "12", ",", "é", "一"]
PROSE = st.lists(st.sampled_from([*PIECES, "😀"])).map("".join)
ANY_BYTES = st.one_of(
    st.text().map(str.encode),
    PROSE.map(str.encode),
    st.binary(),
    st.tuples(st.text(), st.binary()).map(lambda pair: pair[0].encode() + pair[1]),
)


def once_encoded(tokeniser, text):
    (tokens,) = tokeniser.encode_batch([text])
    return tokens


@given(data=ANY_BYTES)
@pytest.mark.parametrize("tokeniser", [BPE, BYTES], ids=["bpe", "bytes"])
def test_any_bytes_come_back_and_the_end_symbol_is_never_among_their_tokens(tokeniser, data):
    for text in (data, data + b"<|endoftext|>" + data):
        tokens = once_encoded(tokeniser, text)
        assert tokeniser.decode(np.append(tokens, tokeniser.end_symbol)) == text
        assert tokeniser.end_symbol not in tokens
        assert np.all(tokens < tokeniser.vocab_size)


@given(texts=st.lists(ANY_BYTES, max_size=6))
def test_a_batch_is_its_texts_one_by_one(texts):
    together = BPE.encode_batch(texts)
    assert len(together) == len(texts)
    for text, tokens in zip(texts, together, strict=True):
        assert tokens.tolist() == once_encoded(BPE, text).tolist()


def cut_into(data, longest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "LONGEST_PIECE", longest)
        cut = list(documents.pieces(io.BytesIO(data).read))
    assert [is_last for _, is_last in cut] == [False] * (len(cut) - 1) + [True]
    assert b"".join(piece for piece, _ in cut) == data
    assert all(longest // 2 <= len(piece) <= longest for piece, _ in cut[:-1])
    return [piece for piece, _ in cut]


@given(text=PROSE, longest=st.integers(24, 60))
def test_a_text_in_pieces_has_the_tokens_of_the_whole(text, longest):
    data = text.encode()
    together = np.concatenate(BPE.encode_batch(cut_into(data, longest)))
    assert together.tolist() == once_encoded(BPE, data).tolist()


@given(data=st.binary(max_size=300), longest=st.integers(8, 50))
def test_data_without_a_good_place_to_cut_is_cut_between_characters(data, longest):
    cut_into(data, longest)
    assert all(piece.decode() for piece in cut_into("一😀é".encode() * 40, longest))


@pytest.mark.parametrize("tokeniser", [BPE, BYTES, ByteTokeniser(has_end_symbol=False)])
def test_a_saved_tokeniser_is_the_same_when_loaded(tokeniser, tmp_path):
    tokeniser.save(tmp_path)
    loaded = load_tokeniser(tmp_path)
    for name in ("name", "vocab_size", "end_symbol", "is_lossless"):
        assert getattr(loaded, name) == getattr(tokeniser, name)
    text = text_of(99).encode() + b"<|endoftext|>\xff"
    assert once_encoded(loaded, text).tolist() == once_encoded(tokeniser, text).tolist()
    assert loaded.decode(once_encoded(loaded, text)) == text


def test_the_end_symbol_is_the_last_of_the_vocabulary():
    plain = ByteTokeniser(has_end_symbol=False)
    assert (plain.vocab_size, plain.end_symbol) == (256, None)
    assert (BYTES.vocab_size, BYTES.end_symbol) == (257, 256)
    assert (BPE.vocab_size, BPE.end_symbol) == (350, 349)
    assert len(once_encoded(BPE, b" the cat")) < 4
    small = train_bpe([b"aa aa aa"], vocab_size=8_008)
    assert 257 <= small.vocab_size < 270
    assert small.end_symbol == small.vocab_size - 1


def test_another_process_learns_the_same_tokeniser_and_imports_no_library_before(tmp_path):
    program = (
        "import sys; from pathlib import Path; import staircase_attention.data as data;"
        "print({'tokenizers', 'pyarrow', 'zstandard', 'transformers'} & {*sys.modules});"
        "sys.path.insert(0, sys.argv[1]); from small_corpora import small_bpe;"
        "small_bpe().save(Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"set()\n"
    assert (tmp_path / "tokenizer.json").read_text() == BPE._tokenizer.to_str(pretty=True)


def test_a_sample_is_spread_over_the_whole_and_not_much_larger_than_asked():
    texts = [(bytes([number]) * 10, (number + 1) / 100) for number in range(100)]
    taken = [text[0] for text in sample_evenly(texts, 200)]
    assert len(taken) == 20
    assert max(np.diff(taken)) <= 6
    assert taken[-1] >= 94
    assert len(list(sample_evenly(texts, 10**6))) == 100


def test_learning_ends_when_there_are_too_many_distinct_words(monkeypatch):
    monkeypatch.setattr(tokenisers, "MOST_WORD_BYTES", 1_000)
    few = [b"the same few words again " * 10] * 100
    assert list(bound_words(few)) == few
    many = b" ".join(b"word%d" % number for number in range(100_000))
    assert b"".join(bound_words([*few, many, b"never"])) == b"".join(few)


def test_endless_words_are_not_learnt_from():
    """They would take a time that grows with the square of their length."""
    texts = [text_of(number).encode() for number in range(30)]
    endless = [b"a" * 1_000_000, b" " * 1_000_000, b"\xc3\xa9" * 500_000]
    started = time.perf_counter()
    learnt = train_bpe([*texts, *endless], vocab_size=300)
    assert time.perf_counter() - started < 10
    plain = train_bpe(texts, vocab_size=300)
    assert learnt._tokenizer.to_str() == plain._tokenizer.to_str()


def test_gpt2_files_make_a_tokeniser(tmp_path):
    vocabulary = {**PLAIN["model"]["vocab"], "<|endoftext|>": 349}
    (tmp_path / "encoder.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *map(" ".join, PLAIN["model"]["merges"])]
    (tmp_path / "vocab.bpe").write_text("\n".join(lines) + "\n")
    tokeniser = named_tokeniser(str(tmp_path))
    assert (tokeniser.vocab_size, tokeniser.end_symbol, tokeniser.is_lossless) == (350, 349, True)
    text = text_of(3).encode()
    assert once_encoded(tokeniser, text).tolist() == once_encoded(BPE, text).tolist()


def changed(tokenizer, **parts):
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def word_level(**parts):
    model = models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]")
    return changed(Tokenizer(model), **parts)


def byte_level(**parts):
    return changed(Tokenizer.from_str(BPE._tokenizer.to_str()), **parts)


def then_bytes(step):
    last = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([step, last])


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
        (byte_level(pre_tokenizer=then_bytes(pre_tokenizers.Digits(individual_digits=True))), True),
        (byte_level(pre_tokenizer=then_bytes(pre_tokenizers.Split(" ", "removed"))), False),
        (word_level(pre_tokenizer=pre_tokenizers.Whitespace()), False),
        (word_level(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace()), False),
    ],
)
def test_any_tokenizer_json_loads_and_is_lossless_only_if_certain(tokenizer, is_lossless, tmp_path):
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    assert tokeniser.is_lossless == is_lossless
    text = "  the cat e\u0301 the ".encode()
    tokens = once_encoded(tokeniser, text)
    assert np.all(tokens < tokeniser.vocab_size)
    decoded = tokeniser.decode(tokens)
    assert decoded == text if is_lossless else isinstance(decoded, bytes)


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


def test_added_tokens_come_back_as_they_are(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens(["né", "a b"])
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    text = "néa ba b<|endoftext|>".encode()
    assert {350, 351} <= set(once_encoded(tokeniser, text).tolist())
    assert tokeniser.decode(once_encoded(tokeniser, text)) == text
    assert tokeniser.end_symbol == 349


@pytest.mark.parametrize("tokenizer", [byte_level(), word_level()])
def test_numbers_that_a_vocabulary_leaves_out_have_no_text(tokenizer, tmp_path):
    plan = json.loads(tokenizer.to_str())
    vocabulary = plan["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    hole, vocabulary[last] = vocabulary[last], 900
    (tmp_path / "tokenizer.json").write_text(json.dumps(plan))
    tokeniser = from_tokenizer_json(tmp_path / "tokenizer.json")
    whole, holed = (np.array(one, dtype=np.uint32) for one in ([1, 900], [hole, 1, 899, 900, 898]))
    assert tokeniser.decode(holed) == tokeniser.decode(whole) != b""
    assert [tokeniser.decode(holed[:1]), tokeniser.decode(holed[2:3])] == [b"", b""]


def test_an_end_symbol_is_a_known_one_or_new(tmp_path):
    tokeniser = from_tokenizer_json(saved(word_level(), tmp_path))
    assert (tokeniser.name, tokeniser.end_symbol, tokeniser.vocab_size) == ("words-4", 3, 4)
    tokenizer = word_level()
    tokenizer.add_special_tokens(["[SEP]", "</s>"])
    assert from_tokenizer_json(saved(tokenizer, tmp_path)).end_symbol == 4


def test_no_text_has_an_end_symbol_that_is_also_a_word(tmp_path):
    words = [("[UNK]", 0.0), ("</s>", 0.0), ("a", -1.0), ("b", -1.0)]
    tokenizer = Tokenizer(models.Unigram(words, 0, byte_fallback=False))
    tokenizer.add_special_tokens(["</s>"])
    tokeniser = from_tokenizer_json(saved(tokenizer, tmp_path))
    assert tokeniser.end_symbol == 1
    assert once_encoded(tokeniser, b"ab</s>ba").tolist() == [2, 3, 3, 2]


def test_a_text_that_a_tokeniser_has_no_token_for_is_refused_in_one_line(tmp_path):
    Tokenizer(models.WordLevel({"the": 0}, unk_token="none")).save(str(tmp_path / "words.json"))
    tokeniser = from_tokenizer_json(tmp_path / "words.json")
    with pytest.raises(InputError, match=r"must encode every text, got words-2 \(.*\); use"):
        tokeniser.encode_batch([b"cat"])


def test_names_of_tokenisers(tmp_path):
    assert named_tokeniser("bytes").vocab_size == 257
    assert named_tokeniser("bpe") == BytePairTraining(vocab_size=8_008)
    assert named_tokeniser("bpe-300").vocab_size == 300
    BPE.save(tmp_path)
    assert named_tokeniser(str(tmp_path)).name == BPE.name == "byte-pair-350"


FILES = {
    "empty/other": "",
    "saved/settings.json": "{}",
    "bad.json": "{}",
    "gpt2/vocab.json": "{}",
    "gpt2/merges.txt": "a b\n",
}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("bpe-100", "vocab_size must be an integer from 257 to 1000000, got 100; use"),
        ("bpe-1000001", "vocab_size must be an integer from 257 to 1000000, got 1000001"),
        ("empty", r"a tokeniser must be bytes, bpe-N, a tokenizer\.json, or .*, got"),
        ("bad.json", r"a tokenizer\.json must be in the format of"),
        ("saved", r"a saved tokeniser's settings\.json must be as it was written"),
        ("gpt2", "a vocabulary and its merges must be in GPT-2's format"),
    ],
)
def test_what_is_not_a_tokeniser_is_refused_in_one_line(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, content in FILES.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(content)
    with pytest.raises(InputError, match=line) as refused:
        named_tokeniser(name)
    assert "\n" not in str(refused.value)
