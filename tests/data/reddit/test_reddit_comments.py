"""Every line is parsed as a comment or counted once by its flaw; lines come in bounded batches."""

import json
import random

import pytest
from reddit_dumps import as_lines, random_comments, write_dump

from staircase_attention.data import compression, reddit
from staircase_attention.data.reddit import (
    Comment,
    DumpPosition,
    RedditOptions,
    Status,
    line_batches,
    number_of,
    parse_comment,
    parse_lines,
)

USUAL = {
    "id": "c7",
    "parent_id": "t1_c2",
    "link_id": "t3_x1",
    "author": "ann",
    "body": "So.",
    "created_utc": 1134365188,
}
PARSED = Comment(
    thread=number_of("x1"),
    id=number_of("c7"),
    parent=number_of("c2"),
    created=1134365188,
    status=0,
    text="So.",
)


def parse(fields, **changes):
    return parse_comment(json.dumps({**fields, **changes}).encode(), RedditOptions())


def test_fields_may_come_in_any_order_and_with_others():
    draw = random.Random(0)
    for _ in range(20):
        pairs = [*USUAL.items(), ("score", 3), ("edited", False), ("gildings", {"gid_1": [0]})]
        draw.shuffle(pairs)
        assert parse(dict(pairs)) == PARSED


@pytest.mark.parametrize(
    "time", [1134365188, 1134365188.0, "1134365188", "1134365188.0", " 1134365188 "]
)
def test_a_time_may_be_a_number_or_a_string(time):
    assert parse(USUAL, created_utc=time) == PARSED


@pytest.mark.parametrize(
    ("changes", "parent"),
    [
        ({"parent_id": "t3_x1"}, None),
        ({"parent_id": "t1_c2"}, "c2"),
        ({"parent_id": "c2"}, "c2"),
        ({"parent_id": "x1"}, None),
        # A comment may have the same digits as its post.
        ({"parent_id": "t1_x1"}, "x1"),
        # Pushshift's later interface.
        ({"parent_id": None}, None),
        ({"parent_id": 36 * 12 + 2}, "c2"),
        ({"link_id": "x1", "id": "t1_c7"}, "c2"),
    ],
)
def test_ids_come_with_prefixes_without_them_or_as_numbers(changes, parent):
    expected = PARSED._replace(parent=parent and number_of(parent))
    assert parse(USUAL, **changes) == expected


INCOMPLETE = [
    *[{**USUAL, "id": value} for value in ("", None, 7)],
    *[{**USUAL, "parent_id": value} for value in (True, -3, "t1_")],
    *[{**USUAL, "body": value} for value in (["So."], 0)],
    *[
        {**USUAL, "created_utc": value}
        for value in ("yesterday", None, True, -1, 1e300, float("nan"), float("inf"))
    ],
    {**USUAL, "link_id": "t3_"},
    *[
        {name: value for name, value in USUAL.items() if name != gone}
        for gone in ("id", "parent_id", "link_id", "body", "created_utc")
    ],
    {},
]


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        (b"", "blank"),
        (b" \r", "blank"),
        (json.dumps(USUAL).encode()[:-20], "broken"),
        (b"\x00" * 50, "broken"),
        (b"[" * 100_000, "broken"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "broken"),
        (json.dumps(USUAL).encode().replace(b"So.", b"S\xff"), "broken"),
        (b"7", "broken"),
        (b'["c7"]', "broken"),
        *[(json.dumps(fields).encode(), "broken") for fields in INCOMPLETE],
    ],
)
def test_a_line_that_is_not_a_comment_is_counted_by_its_flaw(line, flaw):
    after, comments = parse_lines(([line + b"\n"], DumpPosition()), RedditOptions())
    assert after.lines == {flaw: 1, "comments": 0}
    assert len(comments) == 0


def test_harmless_defects_are_repaired():
    line = b"\xef\xbb\xbf" + json.dumps(USUAL).encode() + b"\r"
    assert parse_comment(line, RedditOptions()) == PARSED
    for author in (None, 7, "", "[deleted]"):
        assert parse(USUAL, author=author) == PARSED
    assert parse(USUAL, body=None) == PARSED._replace(status=Status.EMPTY, text=None)
    # Half a surrogate pair, which JSON can encode and UTF-8 cannot.
    assert parse(USUAL, body="a\ud83db").text == "a\ufffdb"
    assert parse(USUAL, body="a\U0001f600b").text == "a\U0001f600b"


def test_different_ids_have_different_numbers():
    ids = ["c1", "1c", "c01", "C1", "c1 ", "0c1", "é", "c_1", "+c1", "a" * 12, "a" * 13, "\ud800"]
    assert len({number_of(identity) for identity in ids}) == len(ids)
    assert all(0 < number_of(identity) < 2**64 for identity in ids)
    assert number_of("zz") < number_of("100")


def batches_of(path, num_done=0):
    return list(line_batches(path, num_done))


@pytest.mark.parametrize("kind", ["plain", "zst"])
def test_batches_are_whole_lines_and_reading_resumes_after_any(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(reddit, "BLOCK_BYTES", 1_000)
    content = as_lines(random_comments(0, 50)) + b"the last line has no newline"
    path = write_dump(tmp_path / "dump", content, kind)
    batches = batches_of(path)
    assert b"".join(line for lines, _ in batches for line in lines) == content
    assert [after.is_done for _, after in batches] == [False] * (len(batches) - 1) + [True]
    assert batches[-1][1].num_stored == path.stat().st_size
    num_done = 0
    for number, (lines, _) in enumerate(batches[:-1], start=1):
        num_done += len(lines)
        assert batches_of(path, num_done) == batches[number:]


def test_overlong_lines_are_counted_and_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "LONGEST_LINE", 60)
    draw = random.Random(0)
    for _ in range(50):
        sizes = draw.choices([0, 1, 5, 40, 59, 60, 61, 121, 122, 200], k=12)
        written = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
        ((lines, _),) = batches_of(write_dump(tmp_path / "dump", b"\n".join(written) + b"\n"))
        assert lines == [None if len(line) >= 60 else line + b"\n" for line in written]
        after, _ = parse_lines((lines, DumpPosition()), RedditOptions())
        assert after.lines.get("overlong", 0) == lines.count(None)
