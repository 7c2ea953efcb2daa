"""Enwik8 is checked, and split to the byte."""

import hashlib

import pytest
from small_corpora import compressed, text_of

from staircase_attention.data import (
    ByteTokeniser,
    HeldOut,
    InputError,
    Part,
    pieces,
    prepare,
    prepare_enwik8,
)
from staircase_attention.data import enwik8 as module
from staircase_attention.data.enwik8 import SplitFile, check_content

TEXT = text_of(7, 700).encode()[:3_000]


def test_a_file_with_another_content_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "enwik8").write_bytes(TEXT)
    line = (
        "enwik8 must have 100,000,000 bytes of md5 a1fa5ffddb56f4953e226637dabbb36a, "
        "got 3,000 bytes of md5 .*; fetch enwik8 again"
    )
    with pytest.raises(InputError, match=line):
        prepare_enwik8(tmp_path / "enwik8", tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["enwik8"]


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"an input must be a file, got .*nowhere, not there"):
        prepare_enwik8(tmp_path / "nowhere", tmp_path / "corpus")


@pytest.mark.parametrize("kind", ["plain", "xz", "gz", "zip"])
def test_one_wrong_byte_is_noticed_after_decompression(kind, tmp_path):
    path = tmp_path / "text"
    md5 = hashlib.md5(TEXT).hexdigest()
    path.write_bytes(compressed(TEXT, kind))
    check_content(path, 3_000, md5)
    path.write_bytes(compressed(TEXT[:-1] + b"~", kind))
    with pytest.raises(InputError, match="must have 3,000 bytes of md5"):
        check_content(path, 3_000, md5)


@pytest.mark.parametrize("kind", ["plain", "xz"])
def test_splits_follow_one_another_to_the_byte(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PIECE", 170)
    monkeypatch.setattr(pieces, "LONGEST_PIECE", 170)
    path = tmp_path / "text"
    path.write_bytes(compressed(TEXT, kind))
    sizes = {"train": 2_000, "valid": 501, "test": 499}
    corpus = prepare(
        [Part(source=SplitFile(path, sizes))],
        tmp_path / "corpus",
        kind="small",
        tokeniser=ByteTokeniser(has_end_symbol=False),
        held_out=HeldOut(valid=0, test=0),
    )
    files = [corpus.folder / f"{name}-00000.bin" for name in sizes]
    assert [file.stat().st_size for file in files] == list(sizes.values())
    assert b"".join(file.read_bytes() for file in files) == TEXT
    assert [len(corpus.split(name).document_starts) for name in sizes] == [1, 1, 1]
    assert corpus.vocab_size == 256


def test_a_split_file_goes_on_from_any_cursor(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PIECE", 170)
    (tmp_path / "text").write_bytes(TEXT)
    source = SplitFile(tmp_path / "text", {"train": 2_000, "valid": 501, "test": 499})
    found = list(source.documents(None))
    for number, (_, cursor) in enumerate(found):
        assert list(source.documents(cursor)) == found[number + 1 :]
