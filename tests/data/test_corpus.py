"""A corpus holds what was put in, across shards; any later change is noticed."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import SOME, contents, small_bpe, storing, text_of, texts_of, write_lines

from staircase_attention.data import (
    ByteTokeniser,
    Corpus,
    InputError,
    TokenLanes,
    TokenPosition,
    TokenSplit,
    prepare_text,
)
from staircase_attention.data.mixture import Piece
from staircase_attention.data.writer import CorpusWriter

FORMAT_1 = Path(__file__).parent / "corpus_format_1"
"""Twelve lines and a broken one, prepared by version 0.1."""


@pytest.fixture(scope="module")
def whole_corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    lines = write_lines(folder / "a.jsonl", [text_of(number) for number in range(30)])
    with storing(shard_tokens=100):
        return prepare_text(lines, folder / "corpus", tokeniser=small_bpe(), held_out=SOME)


@pytest.fixture
def corpus(whole_corpus, tmp_path):
    """A copy that a test may damage."""
    return Corpus.open(shutil.copytree(whole_corpus.folder, tmp_path / "corpus"))


@given(
    documents=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=12),
    shard_tokens=st.integers(1, 30),
    data=st.data(),
)
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


def test_counts_in_the_manifest_are_those_of_an_independent_count(whole_corpus):
    folder = whole_corpus.folder
    texts = [text_of(number).encode() for number in range(30)]
    found = {name: texts_of(whole_corpus, name) for name in whole_corpus.splits}
    assert sorted(itertools.chain(*found.values())) == sorted(texts)
    plain = json.loads((folder / "manifest.json").read_text())
    (source,) = plain["preparation"]["sources"]
    for name, documents in found.items():
        record = plain["splits"][name]
        files = [folder / shard["file"] for shard in record["shards"]]
        num_tokens = sum(path.stat().st_size for path in files) // 2
        expected = [len(documents), sum(map(len, documents)), num_tokens]
        for counted in (source["counts"][name], record):
            names = ("num_documents", "num_bytes", "num_tokens")
            assert [counted[name] for name in names] == expected
        assert whole_corpus.split(name).num_tokens == num_tokens
    assert source["files"][0]["num_bytes"] == (folder.parent / "a.jsonl").stat().st_size
    assert whole_corpus.vocab_size == 350
    assert whole_corpus.manifest.dtype == "uint16"
    assert whole_corpus.manifest.tokeniser.end_symbol == whole_corpus.tokeniser.end_symbol == 349
    whole_corpus.verify()


def test_a_corpus_of_the_first_version_loads_and_is_reproduced(tmp_path, monkeypatch):
    corpus = Corpus.open(FORMAT_1)
    corpus.verify()
    assert texts_of(corpus, "valid") == ["Line 8: naïve.".encode()]
    lanes = TokenLanes(split=corpus.split("train"), num_lanes=2, segment_length=16)
    position = TokenPosition(update=2, offset=32, num_lanes=2)
    batch, _ = lanes.batch(position)
    assert bytes(batch.inputs[0, :-1].astype(np.uint8)) == "Line 4: naïve.".encode()
    monkeypatch.chdir(tmp_path)
    lines = write_lines(Path("a.jsonl"), [f"Line {number}: naïve." for number in range(12)])
    lines.write_text(lines.read_text() + "broken\n")
    with storing(shard_tokens=100):
        again = prepare_text("a.jsonl", "corpus", weights=[2], tokeniser="bytes", held_out=SOME)
    (again.folder / "checksums.json").unlink()
    assert contents(again.folder) == contents(FORMAT_1)


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


def change_manifest(folder, **changes):
    """Change the manifest of a corpus without checksums, as earlier versions wrote them."""
    (folder / "checksums.json").unlink()
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_text_that_decodes_differently_is_noticed(corpus):
    splits = json.loads((corpus.folder / "manifest.json").read_text())["splits"]
    splits["test"]["text_crc32"] ^= 1
    change_manifest(corpus.folder, splits=splits)
    with pytest.raises(InputError, match=r"test must decode to .* bytes of CRC-32"):
        Corpus.open(corpus.folder).verify()


@pytest.mark.parametrize("dtype", ["O", "object", "V2", "float16", "int16", ">u2", "uint64", 2, []])
def test_tokens_are_only_read_as_unsigned_integers(dtype, corpus):
    """Numpy would follow the bytes of a file of objects as pointers, and crash."""
    change_manifest(corpus.folder, dtype=dtype)
    with pytest.raises(InputError, match="dtype of a corpus must be one of uint8, uint16, uint32"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("train-00000.bin", None, "must have 200 bytes, got None"),
        ("train-00000.bin", "x", "must have 200 bytes, got 1"),
        ("manifest.json", "{", "a manifest must be as it was written"),
        ("manifest.json", "{}", "a manifest must be as it was written"),
        ("manifest.json", '{"format": 9}', "format 1, got 9"),
        ("manifest.json", None, "a corpus must have a manifest, got none in .*; prepare it first"),
    ],
)
def test_a_damaged_corpus_is_not_opened(name, content, line, corpus):
    (corpus.folder / name).unlink()
    if content is not None:
        (corpus.folder / name).write_text(content)
    (corpus.folder / "checksums.json").unlink()
    with pytest.raises(InputError, match=line) as refused:
        Corpus.open(corpus.folder)
    assert "\n" not in str(refused.value)


def test_a_split_or_tokens_that_do_not_exist_are_refused(whole_corpus):
    with pytest.raises(InputError, match="must be one of train, valid, test, got 'dev'; use for"):
        whole_corpus.split("dev")
    with pytest.raises(InputError, match="tokens must be asked for from 0 to"):
        whole_corpus.split("train").tokens(0, 10**9)
