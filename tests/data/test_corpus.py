"""A corpus is what was put in, across shards; and what has changed since is noticed."""

import itertools
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import contents, small_bpe, text_of, texts_of, write_lines

from staircase_attention.data import (
    ByteTokeniser,
    Corpus,
    HeldOut,
    InputError,
    Storing,
    prepare_text,
)
from staircase_attention.data.corpus_writer import CorpusWriter, Piece
from staircase_attention.data.mixture_place import MixturePlace
from staircase_attention.data.token_split import TokenSplit

ALL_TRAIN = HeldOut(valid=0, test=0)


@pytest.fixture
def corpus(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(30)])
    return prepare_text(
        [lines],
        tmp_path / "corpus",
        tokeniser=small_bpe(),
        held_out=HeldOut(valid=0.2, test=0.2),
        storing=Storing(shard_tokens=100),
    )


documents = st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=12)


@given(documents=documents, shard_tokens=st.integers(1, 30), data=st.data())
def test_any_documents_lie_in_any_shards_as_in_one_array(
    documents, shard_tokens, data, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("shards")
    tokeniser = ByteTokeniser()
    writer = CorpusWriter(folder, tokeniser, num_sources=1, shard_tokens=shard_tokens)
    for text in documents:
        middle = len(text) // 2
        pieces = [Piece(text[:middle], "train", 0, False), Piece(text[middle:], "train", 0, True)]
        writer.add(pieces, tokeniser.encode_batch([piece.data for piece in pieces]))
    record = writer.finish()["train"]
    whole = np.concatenate([[*text, 256] for text in documents])
    assert all(shard.num_items == shard_tokens for shard in record.shards[:-1])
    assert 0 < record.shards[-1].num_items <= shard_tokens
    split = TokenSplit(folder, record, dtype="uint16", end_symbol=256)

    stop = data.draw(st.integers(0, len(whole)))
    start = data.draw(st.integers(0, stop))
    assert split.tokens(start, stop).tolist() == whole[start:stop].tolist()
    assert split.document_starts.tolist() == [0, *np.flatnonzero(whole == 256)[:-1] + 1]
    assert split.num_bytes == sum(map(len, documents))
    for number, text in enumerate(documents):
        assert split.document(number).tolist() == [*text, 256]

    starts = data.draw(st.lists(st.integers(-50, 200), min_size=1, max_size=5))
    length = data.draw(st.integers(1, 40))
    rows = split.rows(np.array(starts), length)
    for row, first in zip(rows, starts, strict=True):
        assert row.tolist() == whole[np.arange(first, first + length) % len(whole)].tolist()


@given(
    documents=documents,
    shard_tokens=st.integers(1, 20),
    kept=st.integers(0, 12),
    lost=st.integers(0, 12),
)
def test_what_was_written_after_the_last_durable_point_leaves_no_trace(
    documents, shard_tokens, kept, lost, tmp_path_factory
):
    folder, untouched = tmp_path_factory.mktemp("cut"), tmp_path_factory.mktemp("straight")
    place = MixturePlace(parts=())

    def written(folder, texts):
        writer = CorpusWriter(folder, ByteTokeniser(), num_sources=1, shard_tokens=shard_tokens)
        for number, text in enumerate(texts):
            split = ("train", "valid")[number % 2]
            piece = Piece(text, split, 0, number % 3 != 0)
            writer.add([piece], ByteTokeniser().encode_batch([text]))
        return writer

    writer = written(folder, documents[:kept])
    writer.make_durable(place)
    for text in documents[kept : kept + lost]:
        writer.add([Piece(text, "train", 0, True)], ByteTokeniser().encode_batch([text]))
    writer.close()

    again = CorpusWriter(folder, ByteTokeniser(), num_sources=1, shard_tokens=shard_tokens)
    assert again.place == place
    straight = written(untouched, documents[:kept])
    assert again.counts == straight.counts
    assert again.finish() == straight.finish()
    (folder / "journal.json").unlink()
    assert contents(folder) == contents(untouched)


def test_counts_in_the_manifest_are_those_of_an_independent_count(corpus, tmp_path):
    texts = [text_of(number).encode() for number in range(30)]
    found = {name: texts_of(corpus, name) for name in corpus.splits}
    assert sorted(itertools.chain(*found.values())) == sorted(texts)
    plain = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    for name, documents in found.items():
        counts = plain["preparation"]["sources"][0]["counts"][name]
        record = plain["splits"][name]
        files = [tmp_path / "corpus" / shard["file"] for shard in record["shards"]]
        num_tokens = sum(path.stat().st_size for path in files) // 2
        expected = [len(documents), sum(map(len, documents)), num_tokens]
        for counted in (counts, record):
            names = ("num_documents", "num_bytes", "num_tokens")
            assert [counted[name] for name in names] == expected
    file = plain["preparation"]["sources"][0]["files"][0]
    assert file["num_bytes"] == (tmp_path / "a.jsonl").stat().st_size


def test_a_corpus_that_is_whole_verifies(corpus):
    corpus.verify()


@pytest.mark.parametrize(
    "name", ["train-00001.bin", "valid-documents.bin", "tokeniser/settings.json"]
)
def test_a_changed_byte_is_noticed(name, corpus):
    path = corpus.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{name} must have the sha256 .*, got .*; copy it again"):
        Corpus.open(corpus.folder).verify()


def test_text_that_does_not_come_back_is_noticed(corpus):
    path = corpus.folder / "manifest.json"
    plain = json.loads(path.read_text())
    plain["splits"]["test"]["text_crc32"] ^= 1
    path.write_text(json.dumps(plain))
    with pytest.raises(InputError, match=r"test must decode to .* bytes of CRC-32"):
        Corpus.open(corpus.folder).verify()


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda folder: (folder / "train-00000.bin").unlink(), "must have 200 bytes, got None"),
        (
            lambda folder: (folder / "train-00000.bin").write_bytes(b"x"),
            "must have 200 bytes, got 1",
        ),
        (lambda folder: (folder / "manifest.json").write_text("{"), "a manifest must be as it was"),
        (
            lambda folder: (folder / "manifest.json").write_text("{}"),
            "a manifest must be as it was",
        ),
        (lambda folder: (folder / "manifest.json").write_text('{"format": 9}'), "format 1, got 9"),
        (
            lambda folder: (folder / "manifest.json").unlink(),
            "a corpus must have a manifest, got none",
        ),
        (lambda folder: shutil.rmtree(folder), "a corpus must have a manifest, got none in"),
    ],
)
def test_a_damaged_corpus_is_not_opened(damage, line, corpus):
    damage(corpus.folder)
    with pytest.raises(InputError, match=line) as refused:
        Corpus.open(corpus.folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", ["O", "object", "V2", "float16", "int16", ">u2", "uint64", 2, []])
def test_tokens_are_only_read_as_unsigned_integers(dtype, corpus):
    """Numpy would follow the bytes of a file of objects as pointers, and crash."""
    path = corpus.folder / "manifest.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps(plain | {"dtype": dtype}))
    with pytest.raises(InputError, match="dtype of a corpus must be one of uint8, uint16, uint32"):
        Corpus.open(corpus.folder)


def test_an_unfinished_corpus_is_not_opened_and_the_way_out_is_named(corpus):
    corpus.folder.rename(corpus.folder.with_name("corpus.unfinished"))
    with pytest.raises(InputError, match="run its preparation again: it goes on"):
        Corpus.open(corpus.folder)


def test_a_split_that_is_not_there_is_refused(corpus):
    with pytest.raises(InputError, match="must be one of train, valid, test, got 'dev'; use for"):
        corpus.split("dev")
    with pytest.raises(InputError, match="tokens must be asked for from 0 to"):
        corpus.split("train").tokens(0, 10**9)


def test_what_a_corpus_says_of_itself(corpus):
    assert corpus.vocab_size == 350
    assert corpus.manifest.dtype == "uint16"
    assert corpus.manifest.tokeniser.end_symbol == corpus.tokeniser.end_symbol == 349
    assert len(corpus.split("train")) == corpus.split("train").num_tokens
