"""Every line of every file is read, and counted once, whatever is in it."""

import json
import random

import pytest
import zstandard
from reddit_dumps import COMPRESSORS, as_lines, comment, random_comments, write_dump

from staircase_attention.data.reddit import archives, lines, windows, zst
from staircase_attention.data.reddit.archives import Archive
from staircase_attention.data.reddit.comments import Comment, Flaw, parse_comment
from staircase_attention.data.reddit.lines import line_batches
from staircase_attention.data.reddit.records import number_of


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("start", [0, 1, 5_000, 10**6])
def test_a_dump_reads_the_same_from_any_byte_however_it_is_compressed(
    tmp_path, compression, start, monkeypatch
):
    monkeypatch.setattr(archives, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(archives, "PIECE_BYTES", 300)
    content = as_lines(random_comments(0, 100))
    # Names say nothing: the first bytes do.
    path = write_dump(tmp_path / "dump.misnamed", content, compression)
    archive = Archive(path)
    assert b"".join(archive.blocks(start)) == content[start:]
    assert archive.compression == compression
    assert archive.damage is None
    assert archive.position == path.stat().st_size or start > len(content)


def long_frame(content, window_log):
    """A frame as a pipe would write it; one that knows its size would get a smaller window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(content) + stream.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 1 << window_log
    return frame


def test_the_longest_window_of_zstandard_and_frames_to_be_skipped_are_read(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    path = tmp_path / "dump.zst"
    path.write_bytes(skipped + long_frame(b"one\n", 31) + skipped + COMPRESSORS["zst"](b"two\n"))
    assert b"".join(Archive(path).blocks()) == b"one\ntwo\n"
    with path.open("rb") as file:
        assert zst.window_bytes(file) == 1 << 31
        assert file.tell() == 0


@pytest.mark.skipif(windows.library() is None, reason="needs libzstd on Linux")
def test_a_window_in_a_file_gives_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "LARGEST_WINDOW_LOG", 24)
    monkeypatch.setattr(windows, "BYTES_BETWEEN_RELEASES", 100_000)
    piece = as_lines(random_comments(0, 2_000))
    content = (piece + random.Random(0).randbytes(1_000_000)) * 5
    stored = long_frame(content, 24) + COMPRESSORS["zst"](b"the end\n")
    path = tmp_path / "dump.zst"
    path.write_bytes(stored)
    archive = Archive(path, tmp_path, largest_window_bytes=1 << 20)
    assert b"".join(archive.blocks()) == content + b"the end\n"
    assert archive.damage is None
    assert [file.name for file in tmp_path.iterdir()] == ["dump.zst"]
    for damaged in (stored[:-100], long_frame(content, 24) + b"no frame at all"):
        path.write_bytes(damaged)
        archive = Archive(path, tmp_path, largest_window_bytes=1 << 20)
        read = b"".join(archive.blocks())
        assert content.startswith(read)
        assert len(read) > 1_000_000
        assert archive.damage


@pytest.mark.parametrize("compression", sorted(set(COMPRESSORS) - {"plain"}))
def test_a_file_that_ends_too_early_gives_what_it_has_and_says_so(tmp_path, compression):
    content = as_lines(random_comments(0, 5_000))
    path = write_dump(tmp_path / "dump", content, compression)
    stored = path.read_bytes()
    path.write_bytes(stored[: 3 * len(stored) // 4])
    archive = Archive(path)
    read = b"".join(archive.blocks())
    assert content.startswith(read)
    # bz2 works in blocks of 900 kB, so that of this little all may be lost.
    assert len(read) > len(content) // 2 or compression == "bz2"
    assert archive.damage


@pytest.mark.parametrize("compression", sorted(set(COMPRESSORS) - {"plain"}))
def test_garbage_inside_a_compressed_file_is_no_disaster(tmp_path, compression):
    path = write_dump(tmp_path / "dump", as_lines(random_comments(0, 2_000)), compression)
    stored = bytearray(path.read_bytes())
    middle = len(stored) // 2
    stored[middle : middle + 64] = bytes(64)
    path.write_bytes(stored)
    archive = Archive(path)
    b"".join(archive.blocks())
    assert archive.damage


def test_batches_are_whole_lines_wherever_blocks_end(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 60)
    draw = random.Random(0)
    for _ in range(200):
        sizes = draw.choices([0, 1, 5, 40, 60, 61, 200], k=12)
        written = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
        content = b"".join(line + b"\n" for line in written)
        cuts = sorted(draw.sample(range(len(content)), 9))
        blocks = [content[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        batches = list(line_batches(iter(blocks)))
        kept = b"".join(batch.content for batch in batches).split(b"\n")[:-1]
        assert len(kept) + sum(batch.num_overlong for batch in batches) == len(written)
        # A line over the limit may be kept if it comes in one block; one below it always is.
        assert [line for line in kept if len(line) <= 60] == [
            line for line in written if len(line) <= 60
        ]
        ends = [batch.end for batch in batches]
        assert all(content[end - 1 : end] == b"\n" for end in ends)
        assert ends[-1] == len(content)


def test_a_line_without_end_is_counted_and_not_held(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1 << 16)
    blocks = [b"first\n", *[b"x" * 5_000] * 100, b"x\nlast\n"]
    batches = list(line_batches(iter(blocks)))
    assert b"".join(batch.content for batch in batches) == b"first\nlast\n"
    assert [batch.num_overlong for batch in batches] == [0, 1, 0]
    assert batches[-1].end == sum(map(len, blocks))


USUAL = {
    "id": "c7",
    "parent_id": "t1_c2",
    "link_id": "t3_x1",
    "author": "ann",
    "body": "So.",
    "created_utc": 1134365188,
}
PARSED = Comment("c7", "c2", "x1", "ann", "So.", 1134365188)


def parse(fields, **changes):
    return parse_comment(json.dumps({**fields, **changes}).encode())


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
        # A comment with the digits of its post is another thing than the post.
        ({"parent_id": "t1_x1"}, "x1"),
        # Pushshift's later interface.
        ({"parent_id": None}, None),
        ({"parent_id": 36 * 12 + 2}, "c2"),
        ({"link_id": "x1", "id": "t1_c7"}, "c2"),
    ],
)
def test_ids_come_with_prefixes_without_them_or_as_numbers(changes, parent):
    found = parse(USUAL, **changes)
    assert (found.id, found.link_id, found.parent_id) == ("c7", "x1", parent)


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        (b"", Flaw.BLANK),
        (b" \r", Flaw.BLANK),
        (json.dumps(USUAL).encode()[:-20], Flaw.NOT_JSON),
        (b"\x00" * 50, Flaw.NOT_JSON),
        (b"[" * 100_000, Flaw.NOT_JSON),
        (b'{"a": ' + b"9" * 5_000 + b"}", Flaw.NOT_JSON),
        (json.dumps(USUAL).encode().replace(b"So.", b"S\xff"), Flaw.NOT_TEXT),
        (b"7", Flaw.NOT_OBJECT),
        (b'["c7"]', Flaw.NOT_OBJECT),
        (b"{}", Flaw.INCOMPLETE),
        *[
            (json.dumps({**USUAL, **changes}).encode(), Flaw.INCOMPLETE)
            for changes in (
                {"id": ""},
                {"id": None},
                {"id": 7},
                {"parent_id": True},
                {"parent_id": -3},
                {"link_id": "t3_"},
                {"body": ["So."]},
                {"created_utc": "yesterday"},
                {"created_utc": None},
                {"created_utc": True},
                {"created_utc": -1},
                {"created_utc": 1e300},
                {"created_utc": float("nan")},
                {"created_utc": float("inf")},
            )
        ],
        *[
            (json.dumps({k: v for k, v in USUAL.items() if k != gone}).encode(), Flaw.INCOMPLETE)
            for gone in ("id", "parent_id", "link_id", "body", "created_utc")
        ],
    ],
)
def test_a_line_that_is_no_comment_says_why(line, flaw):
    assert parse_comment(line) is flaw


def test_what_can_be_mended_is_no_flaw():
    assert parse_comment(b"\xef\xbb\xbf" + json.dumps(USUAL).encode() + b"\r") == PARSED
    assert parse(USUAL, author=None).author == "[deleted]"
    assert parse(USUAL, body=None).body == ""
    # Half a character, which JSON can say and UTF-8 cannot.
    assert parse(USUAL, body="a\ud83db").body == "a\ufffdb"
    assert parse(USUAL, body="a\U0001f600b").body == "a\U0001f600b"


def test_different_ids_have_different_numbers():
    ids = ["c1", "1c", "c01", "C1", "c1 ", "0c1", "é", "c_1", "+c1", "a" * 12, "a" * 13, "\ud800"]
    assert len({number_of(identity) for identity in ids}) == len(ids)
    assert all(0 < number_of(identity) < 2**64 for identity in ids)
    assert number_of("zz") < number_of("100")
    assert comment("c1")["id"] == "c1"
