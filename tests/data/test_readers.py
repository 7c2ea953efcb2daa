"""Files of every format become the documents that they hold, from any position on."""

import codecs
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest
from small_corpora import compressed, skipped_by, text_of, whole_documents, write_lines

from staircase_attention.data import (
    Cursor,
    InputError,
    ReadingOptions,
    TextSource,
    compression,
    documents,
    readers,
)

DAMAGED = ReadingOptions(allow_damaged=True)
PARAGRAPHS = ReadingOptions(text_unit="paragraphs")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks, pieces and records so small that every test text has many."""
    monkeypatch.setattr(compression, "BLOCK_BYTES", 64)
    monkeypatch.setattr(documents, "LONGEST_PIECE", 100)
    monkeypatch.setattr(readers, "PARQUET_ROWS", 3)


def make_tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def make_parquet(path, columns, group_rows, **options):
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")
    writer.write_table(pyarrow.table(columns), path, row_group_size=group_rows, **options)
    return path


def test_a_long_text_comes_in_parts_that_are_cut_between_words(tmp_path, small_blocks):
    text = text_of(4, 500).encode()
    (tmp_path / "long.txt").write_bytes(text)
    found = [document for document, _ in TextSource(tmp_path / "long.txt").documents(None)]
    assert b"".join(document.data for document in found) == text
    assert len(found) > 10
    assert [document.is_continued for document in found] == [True] * (len(found) - 1) + [False]
    assert all(document.data[:1] in (b" ", b"\n") for document in found[1:])
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + text)
    assert whole_documents(TextSource(tmp_path / "a.txt")) == [text]


def test_blank_lines_separate_paragraphs_and_an_overlong_one_loses_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\ufeff\n\nOne\nstill one\n \t\n\nTwo\r\n\r\nThree")
    source = TextSource(tmp_path / "a.txt", options=PARAGRAPHS)
    assert whole_documents(source) == [b"One\nstill one", b"Two", b"Three"]
    monkeypatch.setattr(compression, "LONGEST_LINE", 150)
    text = b"word " * 200
    (tmp_path / "a.txt").write_bytes(text)
    found = whole_documents(TextSource(tmp_path / "a.txt", options=PARAGRAPHS))
    assert len(found) > 1
    assert b"".join(found) == text


def test_json_lines_give_one_field_and_count_what_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "LONGEST_LINE", 150)
    good = [{"body": "Eins"}, {"body": [["Ann", "Hi"], ["Bob", "Yo"]]}, {"body": "half \ud83d"}]
    bad = [
        '{"body": "cut',
        '{"other": 1}',
        "[1]",
        '{"body": 3}',
        '{"body": [[["deep"]]]}',
        "3",
        "null",
    ]
    overlong = json.dumps({"body": "too long " * 100})
    lines = [*map(json.dumps, good), overlong, *bad, "", "  "]
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        "\n".join(lines).encode() + b'\n{"body": "\xff"}\n\xef\xbb\xbf{"body": "mark"}'
    )
    source = TextSource(path, options=ReadingOptions(text_field="body"))
    assert whole_documents(source) == [b"Eins", b"Ann: Hi\nBob: Yo", b"half \xed\xa0\xbd", b"mark"]
    assert skipped_by(source) == {
        "broken lines in a.jsonl": len(bad) + 1,
        "lines of over 32 MiB in a.jsonl": 1,
    }


def test_parquet_gives_one_column_which_must_be_there(tmp_path):
    texts = [text_of(number) for number in range(200)]
    path = make_parquet(tmp_path / "a.parquet", {"id": range(201), "text": [*texts, None]}, 70)
    assert whole_documents(TextSource(path)) == [text.encode() for text in texts]
    *_, (_, cursor) = TextSource(path).documents(None)
    assert cursor.skipped == {"rows without text in a.parquet": 1}
    assert cursor.num_read == path.stat().st_size
    make_parquet(path, {"content": ["x"]}, 1)
    with pytest.raises(InputError, match=r"the column 'text' of .*, got 'content'; name its"):
        TextSource(path)


def test_a_damaged_parquet_file_is_refused_or_read_up_to_the_damage(tmp_path):
    texts = [text_of(number) for number in range(200)]
    path = make_parquet(tmp_path / "a.parquet", {"text": texts}, 70)
    content = path.read_bytes()
    # In the last of three groups of rows.
    at = len(content) * 2 // 3
    overwritten = content[:at] + bytes(400) + content[at + 400 :]
    for damaged, num_rows in ((overwritten, 128), (content[:-9], 0), (b"PAR1 and no more", 0)):
        path.write_bytes(damaged)
        lost = f"; what follows row {num_rows} is lost)"
        with pytest.raises(InputError, match=re.escape(f"{lost}; fetch it again, leave it out")):
            whole_documents(TextSource(path))
        source = TextSource(path, options=DAMAGED)
        assert whole_documents(source) == [text.encode() for text in texts[:num_rows]]
        [what] = skipped_by(source)
        assert what.startswith("damage (")
        assert what.endswith(f"{lost} in a.parquet")


def test_a_zip_has_the_format_of_what_it_holds(tmp_path):
    def zipped(name, member, content=b'{"text": "one"}\n'):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, content)
        return tmp_path / name

    for names in (("a.zip", "b/a.JSONL"), ("a.jsonl.zip", "a"), ("a.JSONL.ZIP", "b.jsonl")):
        assert whole_documents(TextSource(zipped(*names))) == [b"one"]
    assert whole_documents(TextSource(zipped("a.zip", "a"))) == [b'{"text": "one"}\n']
    for member, rule in (("a.png", "must be or hold"), ("a.parquet", "must not be compressed")):
        with pytest.raises(InputError, match=rule):
            TextSource(zipped("a.zip", member))


def test_a_zip_without_its_end_is_damage_before_all_content(tmp_path):
    path = tmp_path / "a.txt.zip"
    path.write_bytes(compressed(text_of(0, 1_000).encode(), "zip")[:-30])
    with pytest.raises(InputError, match=r"a file must be whole, .* use what comes before the dam"):
        TextSource(path)
    source = TextSource(path, options=DAMAGED)
    assert whole_documents(source) == []
    assert list(skipped_by(source).values()) == [1]


def test_a_changed_letter_of_a_parquet_file_with_checksums_is_damage(tmp_path):
    options = {"write_page_checksum": True, "compression": "none"}
    path = make_parquet(tmp_path / "a.parquet", {"text": ["one", "two"]}, 2, **options)
    path.write_bytes(path.read_bytes().replace(b"two", b"tww", 1))
    with pytest.raises(InputError, match=r"what follows row 0 is lost"):
        whole_documents(TextSource(path))


def test_members_of_an_archive_are_documents(tmp_path, small_blocks):
    long = text_of(5, 400).encode()
    members = {
        "b/one.txt": codecs.BOM_UTF8 + b"One",
        "c/cover.jpg": b"\xff\xd8",
        "a/two.txt": long,
        "LICENSE": b"No",
        ".hidden/three.txt": b"No",
    }
    path = make_tar(tmp_path / "texts.tar", members)
    content = path.read_bytes()
    path.write_bytes(compressed(content, "xz"))
    assert whole_documents(TextSource(path)) == [b"One", long]
    assert skipped_by(TextSource(path)) == {"members that are not text in texts.tar": 3}
    path.write_bytes(content[:3_600])
    with pytest.raises(InputError, match=r"a file must be whole, got .*texts\.tar .* at byte 3,"):
        whole_documents(TextSource(path))
    assert whole_documents(TextSource(path, options=DAMAGED)) == [b"One"]


def test_a_damaged_header_is_not_the_end_of_an_archive(tmp_path):
    path = make_tar(tmp_path / "a.tar", {f"{number}.txt": b"text" for number in range(3)})
    content = path.read_bytes()
    # The header of the second member, after that of the first and its content.
    for damaged in (content[:1_024] + bytes([255]) * 99 + content[1_123:], content[:1_300]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"got .*a\.tar \((bad checksum|truncated header), at"):
            whole_documents(TextSource(path))
        source = TextSource(path, options=DAMAGED)
        assert whole_documents(source) == [b"text"]
        assert len(skipped_by(source)) == 1
    # Some programs write no zeros at the end.
    path.write_bytes(content[:3_072])
    assert whole_documents(TextSource(path)) == [b"text"] * 3


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "1.txt").write_text("second")
    write_lines(tmp_path / "a.jsonl", ["first"])
    (tmp_path / "c.txt.gz").write_bytes(compressed(b"third", "gz"))
    for other in (".hidden.txt", ".git/x.txt", "LICENSE", "table.csv"):
        (tmp_path / other).write_text("no")
    source = TextSource(tmp_path)
    assert whole_documents(source) == [b"first", b"second", b"third"]
    assert [path.name for path in source.others] == ["LICENSE", "table.csv"]


def test_markup_source_code_and_dialogues_are_texts(tmp_path):
    (tmp_path / "a.md").write_text("# Title")
    (tmp_path / "b.py").write_text("x = 1")
    dialogues = [
        {"turns": [["Ann", "Hello "], ["Bob", "Hi"]]},
        {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I"}]},
        {"turns": [["Ann", "no"]], "text": "The text comes first."},
        {"turns": ["broken", 3]},
        {"messages": [{"role": "user"}]},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(one) + "\n" for one in dialogues))
    made = [b"Hello\n\n\nHi", b"Who?\n\n\nI", b"The text comes first."]
    source = TextSource(tmp_path)
    assert whole_documents(source) == [b"# Title", b"x = 1", *made]
    assert skipped_by(source) == {"broken lines in c.jsonl": 2}


def test_no_header_of_a_tar_takes_endless_memory_and_no_member_endless_time(tmp_path):
    claimed = tarfile.TarInfo("name")
    claimed.type, claimed.size = tarfile.GNUTYPE_LONGNAME, 10**12
    (tmp_path / "a.tar").write_bytes(claimed.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(InputError, match=r"a.tar \(a header of 1,000,000,000,000 bytes, at byte"):
        TextSource(tmp_path / "a.tar")
    # 10^12 zeros, of which none is stored.
    sparse = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12)}
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a.txt")
        member.pax_headers = sparse
        archive.addfile(member)
    assert skipped_by(TextSource(tmp_path / "b.tar")) == {"members that are not text in b.tar": 1}


@pytest.mark.parametrize(
    ("name", "suffix"), [("a/RC_2006-02.JSONL.zst", ".jsonl"), ("enwik8.xz", ""), ("b.tgz", ".tar")]
)
def test_a_suffix_is_that_of_the_content(name, suffix):
    assert readers._suffix(Path(name)) == suffix


def test_links_are_followed_once_and_broken_ones_named(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "a" / "1.txt").write_text("first")
    (tmp_path / "elsewhere" / "2.txt").write_text("second")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in" / "a")
    (tmp_path / "in" / "a" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "latest").symlink_to(tmp_path / "in" / "a" / "1.txt")
    (tmp_path / "in" / "same.txt").symlink_to(tmp_path / "in" / "a" / "1.txt")
    source = TextSource(tmp_path / "in")
    assert whole_documents(source) == [b"first", b"second"]
    assert [path.name for path in source.others] == ["gone.txt", "latest"]


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path, monkeypatch):
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("text")

    # Permissions do not stop root, who may run the tests.
    def names(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    listed = os.listdir
    monkeypatch.setattr(os, "listdir", names)
    monkeypatch.setattr(os, "scandir", names)
    with pytest.raises(PermissionError, match="closed"):
        TextSource(tmp_path)


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_damaged_file_is_refused_or_read_up_to_the_damage(kind, tmp_path):
    texts = [f"{number} {pow(3, number, 1 << 255)}" for number in range(3_000)]
    path = write_lines(tmp_path / "a.jsonl", texts)
    data = compressed(path.read_bytes(), kind)
    path.write_bytes(data[: 3 * len(data) // 4])
    size = path.stat().st_size
    line = (
        rf"a file must be whole, got .*a\.jsonl \(.*, after [\d,]+ bytes .* of {size:,} as stored"
    )
    with pytest.raises(InputError, match=f"{line} is lost.; fetch it again, .* --allow-damaged"):
        whole_documents(TextSource(path))
    source = TextSource(path, options=DAMAGED)
    found = whole_documents(source)
    assert len(found) > 1_000
    assert found == [text.encode() for text in texts[: len(found)]]
    damage, count = max(skipped_by(source).items(), key=lambda item: len(item[0]))
    assert (damage.startswith("damage ("), damage.endswith("in a.jsonl"), count) == (True, True, 1)
    assert source.parameters["allow_damaged"]


@pytest.mark.parametrize("options", [ReadingOptions(), PARAGRAPHS], ids=["files", "paragraphs"])
@pytest.mark.parametrize("kind", ["plain", "xz"])
def test_every_format_resumes_from_any_cursor(options, kind, tmp_path, small_blocks):
    texts = [text_of(number, 5 + number * 11 % 60) for number in range(25)]
    (tmp_path / "1.txt").write_text("\n\n".join(texts))
    path = write_lines(tmp_path / "2.jsonl", texts)
    path.write_text(path.read_text() + 'broken\n{"text": "after"}\n')
    names = (f"{number}.{'jpg' if number % 5 == 0 else 'txt'}" for number in range(25))
    make_tar(tmp_path / "4.tar", dict(zip(names, map(str.encode, texts), strict=True)))
    for path in tmp_path.iterdir():
        path.write_bytes(compressed(path.read_bytes(), kind))
    make_parquet(tmp_path / "3.parquet", {"text": texts}, 8)
    source = TextSource(tmp_path, options=options)
    found = list(source.documents(None))
    assert len(found) > 80
    num_read = [cursor.num_read for _, cursor in found]
    assert num_read == sorted(num_read)
    for number, (_, cursor) in enumerate(found):
        plain = json.loads(json.dumps(asdict(cursor)))
        # The next file, too, but not all of them, is read from here.
        expected = found[number + 1 : number + 40]
        resumed = source.documents(Cursor(**plain))
        assert [next(resumed) for _ in expected] == expected
    assert not list(source.documents(found[-1][1]))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nowhere.txt", r"an input must be a file or a folder, got .*nowhere.txt, not there"),
        ("table.csv", r"an input must be or hold \.txt, .*, got .*table\.csv; name another"),
        ("folder", r"an input must be or hold \.txt, .*, got .*folder; name another"),
        ("a.parquet", "needs the package pyarrow, got none installed; run pip install"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(name, line, tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=line) as refused:
        TextSource(tmp_path / name)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="text_unit must be one of files, paragraphs, got 'lines'"):
        ReadingOptions(text_unit="lines")
