"""A source gives the same documents from the same dumps, whatever the files and processes."""

import itertools
import json
import types
from collections import Counter
from dataclasses import asdict

import pytest
from reddit_dumps import as_lines, comment, naive_paths, random_comments, write_dump
from small_corpora import RecordedProgress, contents

from staircase_attention.data import (
    ByteTokeniser,
    Cursor,
    HeldOut,
    InputError,
    Part,
    join,
    prepare,
    reddit,
)
from staircase_attention.data.reddit import RedditOptions, RedditSource


@pytest.fixture
def commits(monkeypatch):
    """Small batches of lines and small commits; the number of comments in each commit."""
    monkeypatch.setattr(reddit, "BLOCK_BYTES", 700)
    monkeypatch.setattr(reddit, "BUFFER_BYTES", 2_000)
    sizes = []
    original = reddit.Partitions.commit

    def commit(self, batches, *arguments):
        sizes.append(sum(map(len, batches)))
        original(self, batches, *arguments)

    monkeypatch.setattr(reddit.Partitions, "commit", commit)
    return sizes


def everything(source):
    """All that a source gives, with what it skips."""
    return list(source.documents(None))


def skipped_by(source):
    return everything(source)[-1][1].skipped


def documents(source):
    return [document for document, _ in source.documents(None) if document.text]


def test_every_path_is_given_once_and_no_thread_is_in_two_splits(tmp_path):
    comments = random_comments(1, 600, num_threads=40)
    options = RedditOptions(held_out=HeldOut(valid=0.3, test=0.3))
    dump = write_dump(tmp_path / "dump", comments)
    given = documents(RedditSource([dump], tmp_path / "work", options, num_workers=1))
    expected = naive_paths(comments)
    texts = sorted(document.text for document in given)
    assert texts == sorted("\n\n\n".join(path) for path in expected.values())
    thread_of = {path[-1]: link for (link, _), path in expected.items()}
    splits = {}
    for document in given:
        last = document.text.split("\n\n\n")[-1]
        splits.setdefault(thread_of[last], set()).add(document.split)
    assert all(len(each) == 1 for each in splits.values())
    assert set.union(*splits.values()) == {"train", "valid", "test"}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_files_processes_and_memory_change_nothing(tmp_path, commits, num_workers):
    comments = random_comments(2, 300)
    whole = write_dump(tmp_path / "whole", comments)
    expected = RedditSource([whole], tmp_path / "work1", num_workers=1)
    parts = [
        write_dump(tmp_path / f"part-{kind}", comments[number::4], kind)
        for number, kind in enumerate(("plain", "gz", "xz", "zst"))
    ]
    source = RedditSource(parts, tmp_path / "work2", num_workers=num_workers)
    assert documents(source) == documents(expected)
    assert skipped_by(source) == skipped_by(expected)
    assert len(commits) > 10


def test_comments_are_stored_in_time_though_they_are_few(tmp_path, commits, monkeypatch):
    monkeypatch.setattr(reddit, "BUFFER_BYTES", 1 << 30)
    dump = write_dump(tmp_path / "dump", random_comments(2, 300))
    expected = everything(RedditSource([dump], tmp_path / "work1", num_workers=1))
    assert len(commits) == 1
    slow = types.SimpleNamespace(monotonic=itertools.count(step=4).__next__)
    monkeypatch.setattr(reddit, "time", slow)
    assert everything(RedditSource([dump], tmp_path / "work2", num_workers=1)) == expected
    assert len(commits) > 5


def test_of_equal_ids_the_one_in_the_first_file_is_kept(tmp_path, commits):
    dumps = [
        write_dump(tmp_path / name, [comment(f"c{n}", body=f"{n} in {name}") for n in range(40)])
        for name in ("third", "first", "second")
    ]
    source = RedditSource(dumps, tmp_path / "work", num_workers=2)
    assert {document.text for document in documents(source)} == {f"{n} in third" for n in range(40)}
    assert skipped_by(source) == {"comments: duplicates": 80}


def test_a_cursor_resumes_where_it_was_taken(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(4, 200))
    source = RedditSource([dump], tmp_path / "work", num_workers=1)
    pairs = list(source.documents(None))
    for number in range(0, len(pairs), 7):
        stored = json.dumps(asdict(pairs[number][1]))
        again = RedditSource([dump], tmp_path / "work", num_workers=1)
        cursor = Cursor(**json.loads(stored))
        assert list(again.documents(cursor)) == pairs[number + 1 :]
    reads = [cursor.num_read for _, cursor in pairs]
    assert reads == sorted(reads)
    assert reads[-1] == source.total_bytes == dump.stat().st_size


def test_every_line_and_every_comment_is_counted_once(tmp_path):
    comments = random_comments(5, 300)
    lines = as_lines(comments).splitlines()
    oddities = {
        "blank": [b"", b"  "],
        "not json": [lines[0][:-9], b"\x00\x00", b"not at all"],
        "not text": [lines[1].replace(b"body", b"b\xe9dy")],
        "not an object": [b"[]", b"null", b"3"],
        "incomplete": [b"{}", json.dumps({"id": "a", "title": "a post"}).encode()],
    }
    for number, odd in enumerate([line for each in oddities.values() for line in each]):
        lines.insert(20 * number, odd)
    # The last line is cut short.
    dump = write_dump(tmp_path / "dump", b"\n".join(lines) + b"\n" + lines[-1][:40])
    skipped = skipped_by(source := RedditSource([dump], tmp_path / "work", num_workers=1))
    assert skipped["broken lines in dump"] == sum(map(len, oddities.values())) - 2 + 1
    distinct = {(fields["link_id"], fields["id"]): fields for fields in reversed(comments)}
    assert skipped["comments: duplicates"] == len(comments) - len(distinct)
    bodies = Counter(
        "bot" if body.startswith("body") and fields["author"] == "AutoModerator" else body
        for fields in distinct.values()
        for body in [fields["body"].strip()]
    )
    found = [skipped[f"comments: {kind}"] for kind in ("deleted", "removed", "empty", "bots")]
    assert found == [bodies[body] for body in ("[deleted]", "[removed]", "", "bot")]
    in_all = sum(count for what, count in skipped.items() if what.startswith("comments: "))
    assert in_all + len(documents(source)) == len(comments)


def test_a_damaged_dump_is_refused(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(0, 5_000), "zst")
    dump.write_bytes(dump.read_bytes()[: 3 * dump.stat().st_size // 4])
    with pytest.raises(InputError, match=r"whole, got .*dump \(it ends inside a frame, before "):
        documents(RedditSource([dump], tmp_path / "work", num_workers=1))


def test_a_dump_may_be_without_a_comment(tmp_path):
    dump = write_dump(tmp_path / "dump", b"\n\nnothing\n")
    source = RedditSource([dump], tmp_path / "work", num_workers=1)
    assert (documents(source), skipped_by(source)) == ([], {"broken lines in dump": 1})


def test_other_options_use_the_same_partitions_and_other_dumps_others(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(7, 50))
    first = RedditSource([dump], tmp_path / "work", num_workers=1)
    expected = everything(first)
    files = [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
    times = [path.stat().st_mtime_ns for path in files]
    for options in (RedditOptions(form="leaves"), RedditOptions(), RedditOptions(maximum_depth=2)):
        watcher = RecordedProgress()
        source = RedditSource([dump], tmp_path / "work", options, num_workers=1, progress=watcher)
        assert documents(source)
        assert not watcher.reports
    assert [path.stat().st_mtime_ns for path in files] == times
    write_dump(dump, random_comments(8, 50))
    changed = everything(RedditSource([dump], tmp_path / "work", num_workers=1))
    assert changed == everything(RedditSource([dump], tmp_path / "fresh", num_workers=1))
    assert changed != expected


@pytest.mark.parametrize("num_workers", [1, 2])
def test_progress_reaches_its_end_also_after_a_stop(tmp_path, commits, num_workers):
    dumps = [
        write_dump(tmp_path / "first.xz", random_comments(9, 200), "xz"),
        write_dump(tmp_path / "second.gz", random_comments(10, 100), "gz"),
    ]

    def stop(num_told):
        if num_told == 20:
            raise KeyboardInterrupt

    def source(watcher):
        return RedditSource(dumps, tmp_path / "work", num_workers=num_workers, progress=watcher)

    with pytest.raises(KeyboardInterrupt):
        documents(source(RecordedProgress(stop)))
    resumed = source(RecordedProgress())
    assert documents(resumed)
    assert resumed.progress.said == ["reading the dumps"]
    _, (_, total_bytes, done_bytes), *_, (_, last_bytes, _) = resumed.progress.reports
    assert 0 < done_bytes < last_bytes == total_bytes == resumed.total_bytes


def test_two_preparations_may_not_share_a_folder(tmp_path):
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    other = RedditSource([dump], tmp_path / "work", num_workers=1)

    def intrude(_):
        with pytest.raises(ValueError, match="used by one process at a time, got two for"):
            documents(other)

    watcher = RecordedProgress(intrude)
    assert documents(RedditSource([dump], tmp_path / "work", num_workers=1, progress=watcher))
    assert watcher.num_advances > 0


def test_invalid_paths_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"a dump must be a file, got .*nowhere; check"):
        RedditSource([tmp_path / "nowhere"], tmp_path)
    with pytest.raises(ValueError, match="paths must be a list of one dump or more"):
        RedditSource("dump.zst", tmp_path)
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    with pytest.raises(ValueError, match="num_workers must be an integer of at least 1"):
        RedditSource([dump], tmp_path, num_workers=0)


@pytest.mark.parametrize("count", [3, 20])
def test_joined_parts_have_the_bytes_of_one_preparation(tmp_path, count):
    """Also the counts of what was skipped, and where some parts are empty."""
    comments = random_comments(3, 400, num_threads=30)
    dump = write_dump(tmp_path / "dump", as_lines(comments) + b"broken\n")
    held_out = HeldOut(valid=0.3, test=0.3)

    def prepared(part=None):
        # Parts share the work folder, which one of them fills.
        options = RedditOptions(held_out=held_out)
        source = RedditSource([dump], tmp_path / "work", options, num_workers=1)
        folder = tmp_path / ("parts" if part else "whole")
        settings = {"tokeniser": ByteTokeniser(), "held_out": held_out}
        return prepare([Part(source=source)], folder, kind="reddit", part=part, **settings)

    parts = [prepared((number, count)).folder for number in range(1, count + 1)]
    joined = join(parts, tmp_path / "joined")
    assert contents(joined.folder) == contents(prepared().folder)
    skipped = joined.manifest.preparation.sources[0].skipped
    assert skipped["broken lines in dump"] == 1
    assert len(skipped) > 3
