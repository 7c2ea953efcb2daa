"""`staircase prepare` gives its options to the sources, and says what came of them."""

import json

import pytest
from reddit_dumps import comment, write_dump
from small_corpora import texts_of, write_lines

from commands import call
from staircase_attention import data
from staircase_attention.data import Corpus, InputError


def prepared(*words):
    output = words[words.index("--output") + 1]
    assert call("prepare", *words, "--tokeniser", "bytes", "--quiet") == 0
    return Corpus.open(output)


def test_text_is_cut_into_paragraphs_and_validated_on_its_own_files(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "v.txt").write_text("three\n")
    write_lines(tmp_path / "t.jsonl", ["four"])
    own = ("--valid-file", tmp_path / "v.txt", "--test-file", tmp_path / "t.jsonl")
    options = ("--paragraphs", "--weights", "2", *own, "--output", tmp_path / "corpus")
    corpus = prepared("text", tmp_path / "a.txt", *options)
    assert texts_of(corpus, "train") == [b"one", b"two"] * 2
    assert [texts_of(corpus, name) for name in ("valid", "test")] == [[b"three"], [b"four"]]
    assert "valid: 6 tokens, 5 bytes, 1 document\n" in capsys.readouterr().out


def test_reddit_has_gaps_depth_and_filters(tmp_path):
    chain = [
        comment("c1", body="[deleted]"),
        comment("c2", "c1", body="The second."),
        comment("c3", "c2", body="The third."),
        comment("c4", "c3", body="The fourth."),
        comment("c5", "gone", body="An orphan."),
        comment("c6", body="Hm."),
    ]
    dump = write_dump(tmp_path / "dump", chain)
    gaps = ("--removed", "placeholder", "--missing", "cut", "--depth", "3", "--filters", "roller")
    output = ("--valid", "0", "--test", "0", "--output", tmp_path / "corpus")
    corpus = prepared("reddit", dump, *gaps, *output)
    assert sorted(texts_of(corpus, "train")) == [
        b"An orphan.",
        b"[removed]\n\n\nThe second.",
        b"[removed]\n\n\nThe second.\n\n\nThe third.",
    ]


@pytest.mark.parametrize("kind", ["text", "reddit"])
def test_damage_is_refused_by_one_rule_for_all(kind, tmp_path, capsys):
    lines = [comment(f"c{number}", body=f"Body {number**9}.") for number in range(1, 3_000)]
    dump = write_dump(tmp_path / "a.jsonl.gz", lines, "gz")
    dump.write_bytes(dump.read_bytes()[:-5_000])
    options = ["--tokeniser", "bytes", "--output", tmp_path / "corpus"]
    options += ["--valid", "0", "--test", "0"]
    options += ["--text-field", "body"] if kind == "text" else []
    assert call("prepare", kind, dump, *options) == 2
    assert "a file must be whole, got" in capsys.readouterr().err
    assert call("prepare", kind, dump, *options, "--allow-damaged") == 0
    shown = capsys.readouterr()
    assert "as stored is lost) in a.jsonl.gz: 1\n" in shown.out
    assert "skipped" not in shown.err


def test_dumps_without_comments_are_refused_with_a_remedy_that_exists(tmp_path, capsys):
    (tmp_path / "posts.jsonl").write_text(json.dumps({"title": "A post"}) + "\n")
    words = ("--tokeniser", "bytes", "--quiet", "--output", tmp_path / "corpus")
    assert call("prepare", "reddit", tmp_path / "posts.jsonl", *words) == 2
    expected = "got none, broken lines in posts.jsonl: 1; name Pushshift dumps of comments"
    assert expected in capsys.readouterr().err


def test_a_refused_part_leaves_the_folder_that_other_parts_have_filled(tmp_path, monkeypatch):
    threads = tmp_path / "corpus.threads"

    def refuse(*_, **__):
        # Meanwhile another part has begun.
        threads.mkdir()
        raise InputError("refused")

    dump = write_dump(tmp_path / "dump", [comment("c1")])
    monkeypatch.setattr(data, "prepare", refuse)
    words = ("reddit", dump, "--tokeniser", "bytes", "--output", tmp_path / "corpus")
    assert call("prepare", *words, "--part", "1/2") == 2
    assert threads.exists()
    threads.rmdir()
    assert call("prepare", *words) == 2
    assert not threads.exists()


def test_the_name_of_a_file_is_no_command_to_a_terminal(tmp_path, capsys):
    folder, name = tmp_path / "in", "a\x1b]0;owned\x07\u202e"
    folder.mkdir()
    (folder / f"{name}.jsonl").write_text('{"text": "one"}\nbroken\n')
    words = ("--tokeniser", "bytes", "--valid", "0", "--test", "0", "--output", tmp_path / "out")
    assert call("prepare", "text", folder, *words, "--quiet") == 0
    assert r"broken lines in a\x1b]0;owned\x07\u202e.jsonl: 1" in capsys.readouterr().out
    (folder / f"{name}.txt.gz").write_bytes(b"\x1f\x8bdamaged")
    assert call("prepare", "text", folder, *words, "--quiet") == 2
    assert r"in/a\x1b]0;owned\x07\u202e.txt.gz (" in capsys.readouterr().err
