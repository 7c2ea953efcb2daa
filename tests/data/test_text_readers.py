"""Files of every kind become the documents that they hold, from any place on."""

import io
import json
import sys
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import compressed, text_of, whole_documents, write_lines

from staircase_attention.data import InputError, ReadingOptions, TextSource, pieces
from staircase_attention.data.readers import Stream, compression, json_lines, parquet, plain_text
from staircase_attention.data.readers.wiki_markup import plain_text as without_markup

KINDS = ("plain", "gz", "bz2", "xz", "zst", "zip")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and pieces so small that every test text has many."""
    monkeypatch.setattr(compression, "BLOCK_BYTES", 64)
    monkeypatch.setattr(compression, "ZST_FEED_BYTES", 16)
    monkeypatch.setattr(pieces, "LONGEST_PIECE", 100)


def make_tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def make_parquet(path, columns, group_rows):
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")
    writer.write_table(pyarrow.table(columns), path, row_group_size=group_rows)
    return path


def wikipedia(*articles):
    pages = "".join(
        f"  <page>\n    <title>T</title>\n    <text bytes='9'>{article}</text>\n  </page>\n"
        for article in articles
    )
    return f'<mediawiki xmlns="x">\n  <siteinfo>\n  </siteinfo>\n{pages}'


@pytest.mark.parametrize("kind", KINDS)
def test_compression_is_told_by_content_and_not_by_name(kind, tmp_path, small_blocks):
    text = text_of(1, 300).encode()
    path = tmp_path / "misleading.txt"
    path.write_bytes(compressed(text, kind))
    assert whole_documents(TextSource(path)) == [text]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_files_joined_after_compression_are_read_to_the_end(kind, tmp_path):
    path = tmp_path / "joined.txt"
    path.write_bytes(compressed(b"one ", kind) + compressed(b"two", kind))
    assert whole_documents(TextSource(path)) == [b"one two"]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "zip"])
def test_a_file_that_ends_too_early_is_refused_in_one_line(kind, tmp_path):
    path = tmp_path / f"cut.txt.{kind}"
    path.write_bytes(compressed(text_of(2, 3000).encode(), kind)[:-60])
    with pytest.raises(InputError, match=rf"a file must be whole, got .*cut.txt.{kind}") as refused:
        whole_documents(TextSource(path))
    assert "\n" not in str(refused.value)


def test_a_garbled_file_is_refused_in_one_line(tmp_path):
    for kind in ("gz", "bz2", "xz", "zst"):
        data = bytearray(compressed(text_of(2, 3000).encode(), kind))
        data[len(data) // 2 : len(data) // 2 + 20] = bytes(20)
        path = tmp_path / f"garbled.txt.{kind}"
        path.write_bytes(data)
        with pytest.raises(InputError, match="a file must be whole"):
            whole_documents(TextSource(path))


@pytest.mark.parametrize("kind", ["plain", "gz"])
@given(offset=st.integers(0, 2_000), size=st.integers(1, 300))
def test_going_to_an_offset_is_the_same_as_reading_up_to_it(kind, offset, size, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "BLOCK_BYTES", 64)
        text = text_of(3, 400).encode()[:2_000]
        path = tmp_path_factory.mktemp("stream") / "text"
        path.write_bytes(compressed(text, kind))
        with Stream(path) as reading, Stream(path) as skipping:
            assert reading.read(offset) == text[:offset]
            skipping.skip_to(offset)
            assert skipping.offset == reading.offset == offset
            assert skipping.read(size) == reading.read(size) == text[offset : offset + size]
            if offset < len(text):
                assert skipping.num_read == reading.num_read


def test_lines_come_whole_across_blocks_and_long_ones_in_parts(tmp_path, small_blocks):
    lines = [b"short\n", b"x" * 200 + b"\n", b"\n", b"end"]
    path = tmp_path / "lines"
    path.write_bytes(b"".join(lines))
    with Stream(path) as stream:
        assert [stream.read_line(1_000) for _ in range(5)] == [*lines, b""]
    with Stream(path) as stream:
        parts = list(iter(lambda: stream.read_line(70), b""))
    assert b"".join(parts) == b"".join(lines)
    assert max(map(len, parts)) < 70 + 64


def test_a_long_text_comes_in_parts_that_are_cut_between_words(tmp_path, small_blocks):
    text = text_of(4, 500).encode()
    (tmp_path / "long.txt").write_bytes(text)
    found = [document for document, _ in TextSource(tmp_path / "long.txt").documents(None)]
    assert b"".join(document.data for document in found) == text
    assert len(found) > 10
    assert [document.is_continued for document in found] == [True] * (len(found) - 1) + [False]
    assert all(document.data[:1] in (b" ", b"\n") for document in found[1:])


def test_paragraphs_are_divided_by_blank_lines(tmp_path):
    (tmp_path / "a.txt").write_text("\n\nOne\nstill one\n \t\n\nTwo\r\n\r\nThree")
    source = TextSource(tmp_path / "a.txt", options=ReadingOptions(text_unit="paragraphs"))
    assert whole_documents(source) == [b"One\nstill one", b"Two", b"Three"]


def test_a_paragraph_beyond_all_measure_loses_nothing(tmp_path, monkeypatch, small_blocks):
    monkeypatch.setattr(plain_text, "LONGEST_RECORD", 150)
    text = b"word " * 200
    (tmp_path / "a.txt").write_bytes(text)
    source = TextSource(tmp_path / "a.txt", options=ReadingOptions(text_unit="paragraphs"))
    assert len(whole_documents(source)) > 1
    assert b"".join(whole_documents(source)) == text


def test_json_lines_give_one_field_and_count_what_is_broken(tmp_path):
    path = tmp_path / "a.jsonl"
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
    lines = [*map(json.dumps, good), *bad, "", "  "]
    path.write_bytes(
        "\n".join(lines).encode() + b'\n{"body": "\xff"}\n\xef\xbb\xbf{"body": "mark"}'
    )
    source = TextSource(path, options=ReadingOptions(text_field="body"))
    assert whole_documents(source) == [b"Eins", b"Ann: Hi\nBob: Yo", b"half \xed\xa0\xbd", b"mark"]
    *_, (_, last) = source.documents(None)
    assert last.skipped == {"broken lines in a.jsonl": len(bad) + 1}


def test_a_json_line_that_is_too_long_counts_as_broken(tmp_path, monkeypatch, small_blocks):
    monkeypatch.setattr(json_lines, "LONGEST_RECORD", 150)
    path = write_lines(tmp_path / "a.jsonl", ["first", "x" * 1_000, "last"])
    assert whole_documents(TextSource(path)) == [b"first", b"last"]
    *_, (_, cursor) = TextSource(path).documents(None)
    assert cursor.skipped == {"broken lines in a.jsonl": 1}


def test_parquet_gives_one_column(tmp_path):
    texts = [text_of(number) for number in range(200)]
    path = make_parquet(tmp_path / "a.parquet", {"id": range(201), "text": [*texts, None]}, 70)
    assert whole_documents(TextSource(path)) == [text.encode() for text in texts]
    *_, (_, cursor) = TextSource(path).documents(None)
    assert cursor.skipped == {"rows without text in a.parquet": 1}
    assert cursor.num_read == path.stat().st_size


def test_parquet_without_the_column_is_refused_at_once(tmp_path):
    path = make_parquet(tmp_path / "a.parquet", {"content": ["x"]}, 1)
    with pytest.raises(InputError, match=r"the column 'text' of .*, got 'content'; name its"):
        TextSource(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"a \.parquet file must be whole"):
        TextSource(path)


@pytest.mark.parametrize("kind", ["plain", "xz", "gz"])
def test_members_of_an_archive_are_documents(kind, tmp_path, small_blocks):
    long = text_of(5, 400).encode()
    members = {
        "b/one.txt": b"One",
        "c/cover.jpg": b"\xff\xd8",
        "a/two.txt": long,
        "README": b"Three",
    }
    path = make_tar(tmp_path / "texts.tar", members)
    path.write_bytes(compressed(path.read_bytes(), kind))
    assert whole_documents(TextSource(path)) == [b"One", long, b"Three"]
    *_, (_, cursor) = TextSource(path).documents(None)
    assert cursor.skipped == {"members that are no text in texts.tar": 1}


def test_an_archive_that_ends_too_early_is_refused_in_one_line(tmp_path):
    path = make_tar(tmp_path / "texts.tar", {"one.txt": b"x" * 5_000})
    path.write_bytes(path.read_bytes()[:3_000])
    with pytest.raises(InputError, match=r"an archive must be whole, got .*texts\.tar"):
        whole_documents(TextSource(path))


def test_a_dump_of_wikipedia_is_known_by_its_first_bytes_and_read_without_markup(tmp_path):
    path = tmp_path / "dump"
    articles = ("'''Bee''' &amp;amp; [[wasp]]", "#REDIRECT [[Bee]]", "{{stub}}", "Honey")
    path.write_text(wikipedia(*articles) + "  <page>\n    <text>cut o")
    assert whole_documents(TextSource(path)) == [b"Bee & wasp", b"Honey", b"cut o"]
    *_, (_, cursor) = TextSource(path).documents(None)
    assert cursor.skipped == {"redirects and pages without text in dump": 2}


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a [[b|c]] d [[e]]s", "a c d es"),
        ("x [[Image:a.jpg|thumb|A [[bee]] flies]] y", "x  y"),
        ("a<ref name='r'>no</ref> b<ref name=r/> c<!-- no -->", "a b c"),
        ("a {{b {{c}} d}} e", "a  e"),
        ("a\n{| class=x\n|-\n{| y |}\n| z\n|}\nb", "a\n\nb"),
        ("[http://x.org label] [http://x.org]", "label"),
        ("== Head ==\n* one\n** two\n# three\n:four\n----", "Head\none\ntwo\nthree\nfour"),
        ("a &lt;b&gt;bold&lt;/b&gt; &amp;nbsp;c 1 &lt; 2", "a bold \xa0c 1 < 2"),
        ("unclosed {{a [[b ''c", "unclosed {{a [[b c"),
    ],
)
def test_markup_is_taken_away(markup, text):
    assert without_markup(markup) == text


def test_a_folder_is_read_in_the_order_of_names_and_hidden_files_are_not(tmp_path):
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


@pytest.mark.parametrize(
    "kind", ["txt", "paragraphs", "jsonl", "parquet", "tar", "wikipedia", "mix"]
)
@pytest.mark.parametrize("packed", ["plain", "xz"])
def test_any_source_goes_on_from_any_cursor(kind, packed, tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_ROWS", 3)
    texts = [text_of(number, 5 + number * 11 % 60) for number in range(25)]
    if kind in ("txt", "paragraphs", "mix"):
        (tmp_path / "1.txt").write_text("\n\n".join(texts))
    if kind in ("jsonl", "mix"):
        path = write_lines(tmp_path / "2.jsonl", texts)
        path.write_text(path.read_text() + 'broken\n{"text": "after"}\n')
    if kind in ("parquet", "mix"):
        make_parquet(tmp_path / "3.parquet", {"text": texts}, 8)
    if kind in ("tar", "mix"):
        names = (f"{number}.{'jpg' if number % 5 == 0 else 'txt'}" for number in range(25))
        make_tar(tmp_path / "4.tar", dict(zip(names, map(str.encode, texts), strict=True)))
    if kind in ("wikipedia", "mix"):
        (tmp_path / "5.xml").write_text(wikipedia(*texts, "#REDIRECT [[x]]", "last"))
    for path in tmp_path.iterdir():
        if path.suffix != ".parquet":
            path.write_bytes(compressed(path.read_bytes(), packed))
    unit = "paragraphs" if kind == "paragraphs" else "files"
    source = TextSource(tmp_path, options=ReadingOptions(text_unit=unit))
    found = list(source.documents(None))
    assert len(found) >= 25
    assert [cursor.num_read for _, cursor in found] == sorted(
        cursor.num_read for _, cursor in found
    )
    for number, (_, cursor) in enumerate(found):
        plain = json.loads(json.dumps(cursor.as_plain()))
        assert list(source.documents(type(cursor).from_plain(plain))) == found[number + 1 :]


@pytest.mark.parametrize(
    ("name", "package"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")]
)
def test_a_package_that_is_missing_is_named_before_any_work(name, package, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd1234")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    with pytest.raises(InputError, match=f"needs the package {package}, got none installed; run"):
        TextSource(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nowhere.txt", "an input must be a file or a folder, got .*nowhere.txt, not there"),
        ("table.csv", r"a file must be \.txt, .*, got .*table\.csv; turn it into"),
        ("folder", r"a folder must hold \.txt, .*, got none in .*folder"),
        ("two.zip", r"a \.zip must hold one file, got 0 in"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(name, line, tmp_path):
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "two.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "two.zip").write_bytes(b"PK\x03\x04" + (tmp_path / "two.zip").read_bytes())
    with pytest.raises(InputError, match=line) as refused:
        whole_documents(TextSource(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_unit_of_text_that_is_none_is_refused():
    with pytest.raises(InputError, match="text_unit must be one of files, paragraphs, got 'lines'"):
        ReadingOptions(text_unit="lines")
