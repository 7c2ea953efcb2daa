"""Enwik8 is checked, and split at the exact byte."""

import hashlib

import pytest
from small_corpora import compressed, text_of

from staircase_attention.data import InputError, preparation, prepare_enwik8, readers
from staircase_attention.data.readers import SplitFile

TEXT = text_of(7, 700).encode()[:3_000]
SIZES = {"train": 2_000, "valid": 501, "test": 499}


def test_a_file_that_is_not_enwik8_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "enwik8").write_bytes(TEXT)
    line = (
        "enwik8 must be enwik8, of md5 a1fa5ffddb56f4953e226637dabbb36a, "
        "got one of md5 .*; fetch enwik8 again"
    )
    with pytest.raises(InputError, match=line):
        prepare_enwik8(tmp_path / "enwik8", tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["enwik8"]
    with pytest.raises(InputError, match=r"an input must be a file, got .*nowhere, which is none"):
        prepare_enwik8(tmp_path / "nowhere", tmp_path / "corpus")


@pytest.mark.parametrize("kind", ["plain", "xz"])
def test_splits_follow_one_another_to_the_byte(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_PIECE", 170)
    monkeypatch.setattr(preparation, "ENWIK8_BYTES", SIZES)
    monkeypatch.setattr(preparation, "ENWIK8_MD5", hashlib.md5(TEXT).hexdigest())
    path = tmp_path / "text"
    path.write_bytes(compressed(TEXT[:-1] + b"~", kind))
    with pytest.raises(InputError, match=r"must be enwik8, of md5 .*, got one of md5"):
        prepare_enwik8(path, tmp_path / "corpus")
    path.write_bytes(compressed(TEXT, kind))
    found = list(SplitFile(path, SIZES).documents(None))
    for number, (_, cursor) in enumerate(found):
        assert list(SplitFile(path, SIZES).documents(cursor)) == found[number + 1 :]
    corpus = prepare_enwik8(path, tmp_path / "corpus")
    files = [corpus.folder / f"{name}-00000.bin" for name in SIZES]
    assert [file.stat().st_size for file in files] == list(SIZES.values())
    assert b"".join(file.read_bytes() for file in files) == TEXT
    assert [len(corpus.split(name).document_starts) for name in SIZES] == [1, 1, 1]
    assert corpus.vocab_size == 256
