"""Texts become a corpus; refused input leaves nothing behind; memory is bounded."""

import errno
import itertools
import tracemalloc
from pathlib import Path

import pytest
from small_corpora import (
    ALL_TRAIN,
    SOME,
    RecordedProgress,
    compressed,
    contents,
    small_bpe,
    storing,
    text_of,
    texts_of,
    write_lines,
)

from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    Corpus,
    InputError,
    Lines,
    TextSource,
    documents,
    preparation,
    prepare_text,
)
from staircase_attention.data.writer import WorkFolder


def test_documents_of_many_files_become_one_corpus(tmp_path, monkeypatch):
    """Also documents that are longer than a piece or a batch: with the tokens of the whole."""
    monkeypatch.setattr(documents, "LONGEST_PIECE", 200)
    monkeypatch.setattr(preparation, "BATCH_BYTES", 300)
    texts = [text_of(number) for number in range(20)]
    long = [text_of(number, 300) for number in range(3)]
    write_lines(tmp_path / "a.jsonl", texts)
    for number, text in enumerate(long):
        (tmp_path / f"b{number}.txt").write_text(text)
    corpus = prepare_text(
        [tmp_path], tmp_path / "corpus", tokeniser=small_bpe(), held_out=ALL_TRAIN
    )
    expected = [text.encode() for text in (*texts, *long)]
    assert texts_of(corpus, "train") == expected
    for number, tokens in enumerate(small_bpe().encode_batch(expected)):
        assert corpus.split("train").document(number)[:-1].tolist() == tokens.tolist()
    assert corpus.splits == ("train",)
    assert sorted(contents(corpus.folder)) == [
        "checksums.json",
        "manifest.json",
        "tokeniser/settings.json",
        "tokeniser/tokenizer.json",
        "train-00000.bin",
        "train-documents.bin",
    ]


def test_a_tokeniser_is_learnt_from_training_documents(tmp_path):
    write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(100)])
    options = {"tokeniser": BytePairTraining(vocab_size=300), "held_out": SOME}
    progress = RecordedProgress()
    corpus = prepare_text(tmp_path / "a.jsonl", tmp_path / "corpus", progress=progress, **options)
    assert corpus.vocab_size == 300
    corpus.verify()
    kinds = [report[0] for report in progress.reports]
    assert kinds[:3] == ["say", "begin", "advance"]
    assert kinds.count("begin") == 2
    other = prepare_text(tmp_path / "a.jsonl", tmp_path / "other", **options)
    assert contents(corpus.folder) == contents(other.folder)


def test_the_manifest_and_the_reports_say_what_became_of_sources(tmp_path, capsys):
    lines = '{"text": "one"}\nbroken\n{"text": ""}\n{"text": "two"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    progress = RecordedProgress()
    inputs = {"paths": tmp_path / "a.jsonl", "weights": [2]}
    options = {"tokeniser": "bytes", "held_out": ALL_TRAIN}
    corpus = prepare_text(folder=tmp_path / "corpus", progress=progress, **inputs, **options)
    (source,) = corpus.manifest.preparation.sources
    assert source.weight == 2
    assert source.skipped == {"broken lines in a.jsonl": 1}
    assert source.counts["train"].num_documents == 4
    assert progress.reports[0] == ("begin", 2 * len(lines), 0)
    assert progress.reports[-1][:2] == ("advance", 2 * len(lines))
    shown = Lines(every_seconds=0)
    prepare_text(folder=tmp_path / "other", progress=shown, **inputs, **options)
    assert "100.0%  4 documents  16 tokens  00:00 left\n" in capsys.readouterr().err


def test_a_resumed_preparation_has_no_time_left_before_it_is_where_it_was(capsys):
    shown = Lines(every_seconds=0)
    shown.begin("", 1000, total=70_000_000)
    shown.advance(1000, documents=3)
    assert capsys.readouterr().err == "0.0%  3 documents\n"
    shown.advance(35_000_500, documents=3)
    assert "50.0%  3 documents  00:00 left" in capsys.readouterr().err


def prepared(tmp_path, **options):
    lines = write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(20)])
    chosen = {"tokeniser": ByteTokeniser(), "held_out": SOME} | options
    return prepare_text([lines], tmp_path / "corpus", **chosen)


def test_the_same_preparation_again_opens_what_is_there(tmp_path):
    (tmp_path / "corpus").mkdir()
    first = prepared(tmp_path)
    assert Corpus.open(tmp_path / "corpus").splits == ("train", "valid", "test")
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    progress = RecordedProgress()
    prepared(tmp_path, progress=progress)
    assert [report[0] for report in progress.reports] == ["say"]
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    with (
        storing(shard_tokens=7),
        pytest.raises(InputError, match="from the same files with the same options as before"),
    ):
        prepared(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    assert not (tmp_path / "corpus.unfinished").exists()


def test_a_corpus_may_be_prepared_into_a_folder_that_is_linked_to(tmp_path):
    (tmp_path / "disk" / "large").mkdir(parents=True)
    (tmp_path / "corpus").symlink_to(tmp_path / "disk" / "large")
    prepared(tmp_path).verify()
    assert (tmp_path / "corpus").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["large"]
    assert Corpus.open(tmp_path / "disk" / "large").splits == ("train", "valid", "test")


def test_a_mounted_folder_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "corpus")
    with pytest.raises(
        InputError, match=r"be a mounted folder itself, got .*; name a folder in it"
    ):
        prepared(tmp_path)
    assert not (tmp_path / "corpus.unfinished").exists()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="must be new or empty, got a folder with other files"):
        prepared(tmp_path)
    assert contents(tmp_path / "corpus") == {"thesis.tex": b"years of work"}
    assert not (tmp_path / "corpus.unfinished").exists()


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", {}, "a corpus must have text, got none; name other files, or in"),
        ('{"text": ""}\n{"body": "x"}\n', {}, "got none, broken lines in a.jsonl: 1; name other"),
        ('{"text": "one"}\n', {}, "the split valid must have tokens, got none, with 1 document in"),
        ('{"text": "one"}\n{}\n', {}, "with 1 document in all, broken lines in a.jsonl: 1; choose"),
        ('{"text": "one"}\n', {"weights": [1, 2]}, "one weight for each of 1 inputs, got 2; give"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(content, options, line, tmp_path):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputError, match=line) as refused:
        prepare_text([tmp_path / "a.jsonl"], tmp_path / "corpus", tokeniser="bytes", **options)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("tokeniser", ["bytes", "bpe-300"])
def test_a_split_without_documents_is_refused_before_any_work(tokeniser, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_write_documents", None)
    monkeypatch.setattr(preparation, "_learn_tokeniser", None)
    (tmp_path / "a.txt").write_text("one")
    line = "the split valid must have tokens, got none, with 1 document in all; choose --valid and"
    with pytest.raises(InputError, match=line):
        prepare_text(tmp_path / "a.txt", tmp_path / "corpus", tokeniser=tokeniser)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_of_a_split_is_no_other_input(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text(text_of(0, 100))
    own = TextSource(tmp_path / "texts" / "b.txt", split="valid")
    with pytest.raises(InputError, match=r"must be no other input, got .*b\.txt as an input and"):
        prepare_text([tmp_path / "texts", own], tmp_path / "corpus", tokeniser="bytes")
    # Twice in one split is what a weight of 2 is.
    path = tmp_path / "texts" / "a.txt"
    prepare_text([path, path], tmp_path / "corpus", tokeniser="bytes", held_out=ALL_TRAIN)


@pytest.mark.parametrize("tokeniser", ["bytes", "bpe-300"])
def test_a_damaged_file_found_later_leaves_nothing(tokeniser, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(compressed(text_of(0, 100_000).encode(), "gz")[:-8])
    with (
        storing(commit_seconds=0),
        pytest.raises(InputError, match=r"a file must be whole, got .*a\.txt"),
    ):
        prepare_text(path, tmp_path / "corpus", tokeniser=tokeniser)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("owner", "moment"), [(WorkFolder, "claim"), (preparation, "save_folder")])
def test_a_disk_that_is_full_at_the_start_is_said_in_one_line(owner, moment, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, moment, full)
    with pytest.raises(OSError, match=r"space on its disk, got none at .*; free some and run"):
        prepared(tmp_path)


def test_time_left_is_not_said_before_anything_is_read(capsys):
    shown = Lines(every_seconds=0)
    shown.begin("", 500, 1_000)
    shown.advance(500, documents=1, tokens=2)
    assert capsys.readouterr().err == "50.0%  1 document  2 tokens\n"


def test_memory_does_not_grow_with_the_input(tmp_path):
    text = "".join(text_of(number, 200) for number in range(100)).encode()
    peaks = []
    for size in (4_000_000, 24_000_000):
        path = tmp_path / f"{size}.txt"
        path.write_bytes(b"".join(itertools.repeat(text, size // len(text))))
        tracemalloc.start()
        prepare_text(path, tmp_path / f"corpus-{size}", tokeniser="bytes", held_out=ALL_TRAIN)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 20_000_000
    assert peaks[1] < 1.5 * peaks[0]
