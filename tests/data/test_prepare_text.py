"""Texts become a corpus: every document once or as its weight says, in one split, well mixed."""

import math
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import contents, small_bpe, text_of, texts_of, write_lines

from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    Corpus,
    Cursor,
    Document,
    HeldOut,
    InputError,
    Part,
    ReadingOptions,
    Storing,
    TextSource,
    encoding,
    pieces,
    prepare,
    prepare_text,
)
from staircase_attention.data.mixture import Mixture

ALL_TRAIN = HeldOut(valid=0, test=0)
SOME = HeldOut(valid=0.1, test=0.1)


class Listed:
    """A source of texts that are in memory."""

    def __init__(self, name, texts, split=None):
        self.name, self.texts, self.split = name, texts, split
        self.parameters, self.files = {}, []
        self.total_bytes = len(texts)

    def documents(self, cursor):
        first = cursor.place["next"] if cursor else 0
        for number in range(first, len(self.texts)):
            document = Document(text=self.texts[number], split=self.split)
            yield document, Cursor(place={"next": number + 1}, num_read=number + 1)


def mixed(*parts, held_out=ALL_TRAIN):
    mixture = Mixture(
        parts=[Part(source=source, weight=weight) for source, weight in parts], held_out=held_out
    )
    return [one for one in mixture.read() if one is not None]


def test_documents_of_many_files_become_one_corpus(tmp_path):
    texts = [text_of(number) for number in range(40)]
    write_lines(tmp_path / "a.jsonl", texts[:20])
    (tmp_path / "b.txt").write_text(texts[20])
    (tmp_path / "c.txt").write_text("\n\n".join(map(str.strip, texts[21:])))
    corpus = prepare_text(
        [tmp_path], tmp_path / "corpus", tokeniser=small_bpe(), held_out=ALL_TRAIN
    )
    assert texts_of(corpus, "train") == [
        *(text.encode() for text in texts[:21]),
        "\n\n".join(map(str.strip, texts[21:])).encode(),
    ]
    assert corpus.splits == ("train",)
    assert sorted(contents(corpus.folder)) == [
        "manifest.json",
        "tokeniser/settings.json",
        "tokeniser/tokenizer.json",
        "train-00000.bin",
        "train-documents.bin",
    ]


def test_a_tokeniser_is_learnt_from_training_documents_if_none_is_given(tmp_path):
    texts = [text_of(number) for number in range(200)]
    write_lines(tmp_path / "a.jsonl", texts)
    training = BytePairTraining(vocab_size=300)
    corpus = prepare_text(
        [tmp_path / "a.jsonl"], tmp_path / "corpus", tokeniser=training, held_out=SOME
    )
    assert corpus.vocab_size == 300
    corpus.verify()
    other = prepare_text(
        [tmp_path / "a.jsonl"], tmp_path / "other", tokeniser=training, held_out=SOME
    )
    assert contents(corpus.folder) == contents(other.folder)


@given(weight=st.floats(0.05, 4))
def test_a_weight_is_a_number_of_passes(weight):
    texts = [f"text {number}" for number in range(200)]
    counts = Counter(one.data.decode() for one in mixed((Listed("a", texts), weight)))
    often = [counts[text] for text in texts]
    whole, rest = divmod(weight, 1)
    assert set(often) <= {int(whole), int(whole) + 1}
    expected = 200 * weight
    # Four standard deviations of the number of documents that the rest of the weight keeps.
    assert abs(sum(often) - expected) <= 4 * (200 * rest * (1 - rest)) ** 0.5 + 1e-6


def test_the_same_documents_are_kept_for_the_same_weight_and_more_for_a_greater():
    texts = [f"text {number}" for number in range(300)]
    few = [one.data for one in mixed((Listed("a", texts), 0.2))]
    more = [one.data for one in mixed((Listed("a", texts), 0.7))]
    assert few == [one.data for one in mixed((Listed("b", texts), 0.2))]
    assert set(few) < set(more)


def test_two_passes_come_one_after_the_other_so_that_copies_are_far_apart():
    texts = [f"text {number}" for number in range(10)]
    assert [one.data.decode() for one in mixed((Listed("a", texts), 2))] == texts * 2


def test_held_out_documents_come_once_whatever_the_weight():
    texts = [f"text {number}" for number in range(500)]
    once = mixed((Listed("a", texts), 1), held_out=SOME)
    for weight in (0.1, 3):
        found = mixed((Listed("a", texts), weight), held_out=SOME)
        for split in ("valid", "test"):
            expected = [one.data for one in once if one.split == split]
            assert len(expected) > 25
            assert [one.data for one in found if one.split == split] == expected


def test_sources_are_mixed_evenly_and_end_together():
    many, few = Listed("a", ["a"] * 900), Listed("b", ["b"] * 100)
    found = [one.source for one in mixed((many, 1), (few, 2))]
    assert len(found) == 1_100
    for first in range(0, 1_000, 100):
        assert 15 <= sum(found[first : first + 100]) <= 22


def test_a_document_is_in_one_split_and_its_copies_are_too(tmp_path):
    texts = [text_of(number) for number in range(100)]
    corpus = prepare_text(
        [
            write_lines(tmp_path / "a.jsonl", texts + texts),
            write_lines(tmp_path / "b.jsonl", texts),
        ],
        tmp_path / "corpus",
        tokeniser=ByteTokeniser(),
        held_out=SOME,
    )
    found = {name: Counter(texts_of(corpus, name)) for name in ("train", "valid", "test")}
    assert all(count == 3 for counts in found.values() for count in counts.values())
    assert sum(map(len, found.values())) == 100


def test_a_documents_split_does_not_depend_on_the_others():
    alone = {one.data: one.split for one in mixed((Listed("a", ["x", "y", "z"]), 1), held_out=SOME)}
    texts = ["1", "x", "2", "y", "z"]
    among = {one.data: one.split for one in mixed((Listed("a", texts), 1), held_out=SOME)}
    assert alone.items() <= among.items()


def test_fractions_are_kept_about():
    texts = [f"text {number}" for number in range(20_000)]
    found = Counter(one.split for one in mixed((Listed("a", texts), 1), held_out=HeldOut()))
    assert 60 < found["valid"] < 145
    assert 60 < found["test"] < 145


def test_a_source_may_say_where_it_goes(tmp_path):
    write_lines(tmp_path / "a.jsonl", ["one", "two"])
    write_lines(tmp_path / "b.jsonl", ["three"])
    corpus = prepare_text(
        [tmp_path / "a.jsonl", TextSource(tmp_path / "b.jsonl", split="valid")],
        tmp_path / "corpus",
        tokeniser=ByteTokeniser(),
        held_out=ALL_TRAIN,
    )
    assert texts_of(corpus, "train") == [b"one", b"two"]
    assert texts_of(corpus, "valid") == [b"three"]


def test_a_document_that_is_too_long_to_be_held_is_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "LONGEST_PIECE", 200)
    monkeypatch.setattr(encoding, "BATCH_BYTES", 300)
    texts = [text_of(number, 300) for number in range(4)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    bpe = small_bpe()
    bpe._shortest_piece = 50
    corpus = prepare_text([tmp_path], tmp_path / "corpus", tokeniser=bpe, held_out=ALL_TRAIN)
    assert texts_of(corpus, "train") == [text.encode() for text in texts]
    whole = small_bpe().encode_batch([text.encode() for text in texts])
    for number, tokens in enumerate(whole):
        assert corpus.split("train").document(number)[:-1].tolist() == tokens.tolist()


def test_what_is_said_about_sources_is_in_the_manifest(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nbroken\n{"text": ""}\n{"text": "two"}\n')
    said = []
    corpus = prepare_text(
        [tmp_path / "a.jsonl"],
        tmp_path / "corpus",
        weights=[2],
        tokeniser=ByteTokeniser(),
        held_out=ALL_TRAIN,
        progress=Listening(said),
    )
    (source,) = corpus.manifest.preparation.sources
    assert source.weight == 2
    assert source.skipped == {"broken lines in a.jsonl": 1}
    assert source.counts["train"].num_documents == 4
    assert said[0] == ("begin", 2 * (tmp_path / "a.jsonl").stat().st_size, 0)
    assert ("say", "passed over: 1 broken lines in a.jsonl") in said
    assert sum(one[1] for one in said if one[0] == "advance") == said[0][1]
    assert ("end",) in said


class Listening:
    """Writes down what a preparation says."""

    def __init__(self, said):
        self.said = said

    def begin(self, total_bytes, done_bytes):
        self.said.append(("begin", total_bytes, done_bytes))

    def advance(self, num_bytes, facts):
        self.said.append(("advance", num_bytes, facts))

    def say(self, text):
        self.said.append(("say", text))

    def end(self):
        self.said.append(("end",))


def prepared(tmp_path, **options):
    lines = write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(20)])
    chosen = {"tokeniser": ByteTokeniser(), "held_out": HeldOut(valid=0.2, test=0.2)} | options
    return prepare_text([lines], tmp_path / "corpus", **chosen)


def test_the_same_preparation_again_opens_what_is_there(tmp_path):
    first = prepared(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    said = []
    prepared(tmp_path, progress=Listening(said))
    assert [one[0] for one in said] == ["say"]
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    assert not (tmp_path / "corpus.unfinished").exists()


def test_another_preparation_in_the_same_place_is_refused_and_changes_nothing(tmp_path):
    before = contents(prepared(tmp_path).folder)
    with pytest.raises(InputError, match="from the same files with the same options as before"):
        prepared(tmp_path, storing=Storing(shard_tokens=7))
    assert contents(tmp_path / "corpus") == before
    assert not (tmp_path / "corpus.unfinished").exists()


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="must be new or empty, got a folder with other files"):
        prepared(tmp_path)
    assert contents(tmp_path / "corpus") == {"thesis.tex": b"years of work"}
    assert not (tmp_path / "corpus.unfinished").exists()


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "corpus").mkdir()
    prepared(tmp_path)
    assert Corpus.open(tmp_path / "corpus").splits == ("train", "valid", "test")


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", {}, "a corpus must have text, got none; name other files, or the field"),
        ('{"text": ""}\n{"body": "x"}\n', {}, "got none, 1 broken lines in a.jsonl; name other"),
        ('{"text": "one"}\n', {}, "the split valid must have tokens, got none, with 1 documents"),
        ('{"text": "one"}\n', {"weights": [1, 2]}, "one weight for each of 1 inputs, got 2; give"),
        ('{"text": "one"}\n', {"weights": [0]}, "a weight must be a number above 0, got 0; leave"),
        ('{"text": "one"}\n', {"weights": [-1.5]}, "a weight must be a number above 0, got -1.5"),
        ('{"text": "one"}\n', {"weights": [float("nan")]}, "a weight must be a number above 0"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(content, options, line, tmp_path):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputError, match=line) as refused:
        prepare_text(
            [tmp_path / "a.jsonl"], tmp_path / "corpus", tokeniser=ByteTokeniser(), **options
        )
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_a_damaged_file_found_on_the_way_leaves_nothing(tmp_path):
    write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(100)])
    (tmp_path / "b.txt").write_bytes(b"\x1f\x8bno gzip")
    with pytest.raises(InputError, match=r"a file must be whole, got .*b\.txt"):
        prepare_text(
            [tmp_path / "a.jsonl", tmp_path / "b.txt"],
            tmp_path / "corpus",
            tokeniser=ByteTokeniser(),
            storing=Storing(commit_seconds=0),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.txt"]


def test_nothing_to_prepare_is_refused(tmp_path):
    with pytest.raises(InputError, match="a corpus must have a source, got none; name a file"):
        prepare_text([], tmp_path / "corpus")


@pytest.mark.parametrize(
    "shares",
    [
        (-0.1, 0.1),
        (0.5, 0.5),
        (1, 0),
        (math.nan, 0.1),
        (0.1, math.nan),
        (math.inf, 0),
        (0, math.inf),
    ],
)
def test_fractions_that_leave_nothing_to_train_on_are_refused(shares):
    with pytest.raises(InputError, match="below 1 together, got valid="):
        HeldOut(valid=shares[0], test=shares[1])


def test_a_source_that_names_no_split_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"a document's split must be one of .*, got 'dev'; correct a"
    ):
        prepare(
            [Part(source=Listed("a", ["x"], split="dev"))],
            tmp_path / "corpus",
            kind="test",
            tokeniser=ByteTokeniser(),
        )
    assert not list(tmp_path.iterdir())


def test_a_field_can_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n')
    corpus = prepare_text(
        [tmp_path / "a.jsonl"],
        tmp_path / "corpus",
        tokeniser=ByteTokeniser(),
        held_out=ALL_TRAIN,
        options=ReadingOptions(text_field="body"),
    )
    assert texts_of(corpus, "train") == [b"one"]


def test_memory_does_not_grow_with_the_input(tmp_path):
    text = "".join(text_of(number, 200) for number in range(100)).encode()
    peaks = []
    for size in (4_000_000, 24_000_000):
        path = tmp_path / f"{size}.txt"
        path.write_bytes((text * (size // len(text) + 1))[:size])
        tracemalloc.start()
        prepare_text(
            [path], tmp_path / f"corpus-{size}", tokeniser=ByteTokeniser(), held_out=ALL_TRAIN
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 20_000_000
    assert peaks[1] < 1.5 * peaks[0]


def test_a_damaged_file_found_while_a_tokeniser_is_learnt_leaves_nothing(tmp_path):
    write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(100)])
    (tmp_path / "b.txt").write_bytes(b"\x1f\x8bno gzip")
    with pytest.raises(InputError, match=r"a file must be whole, got .*b\.txt"):
        prepare_text([tmp_path / "a.jsonl", tmp_path / "b.txt"], tmp_path / "corpus")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.txt"]


def test_progress_is_told_while_a_tokeniser_is_learnt(tmp_path, monkeypatch):
    monkeypatch.setattr("staircase_attention.data.preparing.TOLD_BYTES", 100)
    write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(50)])
    said = []
    prepare_text(
        [tmp_path / "a.jsonl"],
        tmp_path / "corpus",
        tokeniser=BytePairTraining(vocab_size=300),
        held_out=ALL_TRAIN,
        progress=Listening(said),
    )
    kinds = [one[0] for one in said]
    assert kinds[:3] == ["say", "begin", "advance"]
    assert kinds.count("begin") == kinds.count("end") == 2


def test_one_path_and_the_name_of_a_tokeniser_will_do(tmp_path):
    raw = write_lines(tmp_path / "a.jsonl", [text_of(number) for number in range(20)])
    one = prepare_text(raw, tmp_path / "one", tokeniser="bytes", held_out=SOME)
    same = prepare_text([str(raw)], tmp_path / "same", tokeniser=ByteTokeniser(), held_out=SOME)
    assert contents(one.folder) == contents(same.folder)
